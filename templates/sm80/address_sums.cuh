// Sums of what a block's elements add to memory, by address, so that memory sees each address once
// for a block: a hash table in shared memory. What finds no slot near its own is added to memory at
// once.
#pragma once

#include "common/mod_prelude.cuh"
#include "common/shared_words.cuh"

namespace sm80 {

// kBytes: of the shared memory. kMost: how many addresses elements may have.
template <int kThreads, int kBytes, int kMost> class AddressSums {
    static constexpr int kSlotBytes = 12, kMostProbes = 8;
    static constexpr int log2_of_slots() {
        int log2 = 0;
        while (2 << log2 <= kBytes / kSlotBytes && 1 << log2 < 2 * kMost)
            ++log2;
        return log2;
    }
    static constexpr int kLog2Slots = log2_of_slots(), kSlots = 1 << kLog2Slots;
    static_assert(kSlots * kSlotBytes <= kBytes && kLog2Slots > 0);

  public:
    // memory: eight aligned bytes, which a barrier keeps from their use before.
    __device__ explicit AddressSums(unsigned memory) : memory_(memory) {}

    // A barrier must follow.
    __device__ void clear() const {
#pragma unroll 1
        for (int slot = thread(); slot < kSlots; slot += kThreads) {
            store_shared_long(address(slot), 0);
            store_shared_word(sum(slot), 0);
        }
    }
    // Called by all lanes of a warp; null adds nothing. If all have one address, as beyond a clamp,
    // one of them adds their sum.
    __device__ void add(float* to, float x) const {
        const auto wanted = reinterpret_cast<unsigned long long>(to);
        int same = 0;
        __match_all_sync(0xffffffffu, wanted, &same);
        if (same) x = flexc_warp_sum(x);
        if (to == nullptr || x == 0 || (same && thread() % 32 != 0)) return;
        unsigned slot = static_cast<unsigned>(wanted >> 2) * 0x9e3779b1u >> (32 - kLog2Slots);
#pragma unroll 1
        for (int probe = 0; probe < kMostProbes; ++probe, slot = (slot + 1) % kSlots) {
            unsigned long long found = load_shared_long(address(slot));
            if (found == 0) found = set_shared_if_zero(address(slot), wanted);
            if (found != 0 && found != wanted) continue;
            add_shared(sum(slot), x);
            return;
        }
        add_float(to, x);
    }
    // Adds the sums to memory. All threads have passed a barrier behind their additions.
    __device__ void flush() const {
#pragma unroll 1
        for (int slot = thread(); slot < kSlots; slot += kThreads) {
            float* const to = reinterpret_cast<float*>(load_shared_long(address(slot)));
            if (to != nullptr) add_float(to, __uint_as_float(load_shared_word(sum(slot))));
        }
    }

  private:
    static __device__ int thread() { return static_cast<int>(threadIdx.x); }
    __device__ unsigned address(unsigned slot) const { return memory_ + 8 * slot; }
    __device__ unsigned sum(unsigned slot) const { return memory_ + 8 * kSlots + 4 * slot; }

    unsigned memory_;
};

} // namespace sm80
