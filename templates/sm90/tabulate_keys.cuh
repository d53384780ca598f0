// Computes, before the kernel that uses them, values that depend on kv alone, for every key. One
// thread computes one key of one head.
#pragma once

#include "sm90/distance.cuh"
#include "sm90/key_addend.cuh"

namespace sm90 {

#ifdef FLEXC_TABULATES

__device__ inline float per_product(float factor) {
    return mod::kScoreForm.has_factor ? usable_factor(factor) : factor;
}

__device__ inline void tabulate_keys(const KernelArguments& attention,
                                     const mod::Arguments& arguments, int block) {
    // Keys past the end get the last key's values, since places in tables have to be inside of
    // these for them, too.
    constexpr bool kRepeatsLast = mod::StagedTables::kCount != 0;
    Entry entry = Entry::of_key(attention, block);
    if (kRepeatsLast && !entry.exists) entry.key = attention.kv_len - 1;
    entry.visit(attention, arguments, [&](const mod::At& at) {
        if constexpr (kMultipliesKeyAddend) {
            const float addend = entry.exists ? mod::TabulatedVectors::key_value(at, 0) : 0;
            *reinterpret_cast<KeyAddend*>(key_operands(attention, entry.head) +
                                          kOperandFloats * entry.index) =
                KeyAddend(addend, per_product(attention.scale * mod::multiplier(at)));
        }
        if constexpr (kRowKeyProducts > 0) {
#pragma unroll
            for (int i = 0; i < kKeyOperands; ++i) {
                const bool exists = i < kRowKeyProducts && entry.exists;
                const float factor = exists ? mod::TabulatedVectors::key_value(at, i) : 0;
                *reinterpret_cast<KeyFactor*>(key_operands(attention, entry.head, i) +
                                              kOperandFloats * entry.index) =
                    KeyFactor(factor, attention.scale * mod::multiplier(at));
            }
        }
#pragma unroll
        for (int i = kFirstStagedKey; i < mod::TabulatedVectors::kByKey; ++i)
            key_vector(attention, entry.head, i)[entry.index] =
                kRepeatsLast || entry.exists ? mod::TabulatedVectors::key_value(at, i) : 0;
    });
}

#endif

} // namespace sm90
