// Stands in for the device file of the same name.
#pragma once

static unsigned char memory_of_block[1 << 18];

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
inline void add_float(float* to, float x) {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    *to += x;
}
inline void add_shared(unsigned to, int x) {
    __atomic_fetch_add(reinterpret_cast<int*>(memory_of_block + to), x, __ATOMIC_RELAXED);
}
