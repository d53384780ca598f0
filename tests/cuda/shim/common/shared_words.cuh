// Stands in for the device file of the same name.
#pragma once

alignas(16) static unsigned char memory_of_block[1 << 18];

template <typename T> T loaded(unsigned from) {
    T value;
    std::memcpy(&value, memory_of_block + from, sizeof value);
    return value;
}
inline unsigned load_shared_word(unsigned from) { return loaded<unsigned>(from); }
inline void load_shared(unsigned from, int& x, int& y, int& z, int& w) {
    x = loaded<int>(from);
    y = loaded<int>(from + 4);
    z = loaded<int>(from + 8);
    w = loaded<int>(from + 12);
}
inline void store_shared(unsigned to, int x, int y, int z, int w) {
    const int words[] = {x, y, z, w};
    std::memcpy(memory_of_block + to, words, sizeof words);
}
inline void store_shared_word(unsigned to, unsigned x) {
    std::memcpy(memory_of_block + to, &x, sizeof x);
}
inline void store_shared_long(unsigned to, unsigned long long x) {
    std::memcpy(memory_of_block + to, &x, sizeof x);
}
inline unsigned long long load_shared_long(unsigned from) {
    return loaded<unsigned long long>(from);
}
inline unsigned long long set_shared_if_zero(unsigned to, unsigned long long x) {
    unsigned long long before = 0;
    __atomic_compare_exchange_n(reinterpret_cast<unsigned long long*>(memory_of_block + to),
                                &before, x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return before;
}
inline void add_float(float* to, float x) {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    *to += x;
}
inline void add_shared(unsigned to, int x) {
    __atomic_fetch_add(reinterpret_cast<int*>(memory_of_block + to), x, __ATOMIC_RELAXED);
}
inline void add_shared(unsigned to, float x) {
    atomicAdd(reinterpret_cast<float*>(memory_of_block + to), x);
}
