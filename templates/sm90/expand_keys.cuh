// What a kernel has computed before it: values that use kv alone, for every key. One thread does
// one key of one head.
#pragma once

#include "sm90/distance.cuh"

namespace sm90 {

__device__ inline void expand_keys(const KernelArguments& attention,
                                   const mod::Arguments& arguments, int block) {
    // Places in tables have to be inside of these for keys past the end, too: the last key's.
    constexpr bool kRepeatsLast = mod::StagedTables::kCount != 0;
    Entry entry = Entry::of_key(attention, block);
    if (kRepeatsLast && !entry.exists) entry.key = attention.kv_len - 1;
    entry.visit(attention, arguments, [&](const mod::At& at) {
#pragma unroll
        for (int i = 0; i < mod::TabulatedVectors::kByKey; ++i)
            key_vector(attention, entry.head, i)[entry.index] =
                kRepeatsLast || entry.exists ? mod::TabulatedVectors::key_value(at, i) : 0;
    });
}

} // namespace sm90
