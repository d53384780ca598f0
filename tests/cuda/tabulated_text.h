// Values tabulated for keys and distances, as the host's threads run the kernels that find them and
// what TMA copies of them, for texts of Hopper's forward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "host_arguments.h"
#include "host_module.h"
#include "sm90/arguments.h"

namespace flexc::test {

// Starts the text of a module that tabulates.
constexpr std::string_view kTabulatedText = R"(
#include "mod.cuh"
#include "sm90/tabulate_distances.cuh"
#include "sm90/tabulate_keys.cuh"
#include "sm90/forward_tabulated.cuh"
using namespace sm90;
template <typename Tabulate>
void tabulate_all(const sm90::KernelArguments& attention, int entries, Tabulate tabulate) {
    for (int block = 0; block < vector_heads(attention) * (entries / kTabulatedStep); ++block)
        for (threadIdx.x = 0; threadIdx.x < kTabulatedStep; ++threadIdx.x) tabulate(block);
}
extern "C" long long count_tabulated(const sm90::KernelArguments* attention, bool keys) {
    const int heads = vector_heads(*attention);
    using Vectors = mod::TabulatedVectors;
    const int of_key = Vectors::kByKey - kFirstStagedKey + kOperandFloats * kKeyOperands;
    return keys ? heads * of_key * padded(attention->kv_len)
                : heads * Vectors::kByDistance * Vectors::kDistanceCopies * kEntryFloats *
                      distance_count(*attention);
}
extern "C" void tabulate(const unsigned long long* words, const sm90::KernelArguments* attention) {
    const mod::Arguments& arguments = *reinterpret_cast<const mod::Arguments*>(words);
    if (mod::TabulatedVectors::kByDistance > 0)
        tabulate_all(*attention, distance_count(*attention), [&](int block) {
            tabulate_distances(*attention, arguments, block, DistanceUnits{attention->scale});
        });
    if (mod::TabulatedVectors::kByKey > 0)
        tabulate_all(*attention, padded(attention->kv_len),
                   [&](int block) { tabulate_keys(*attention, arguments, block); });
}
// As TMA does, to the start of shared memory.
void copy_tabulated(const sm90::KernelArguments& attention, int head, int first_row,
                    int first_key) {
    unsigned char* to = memory_of_block;
    const int at = vector_head(attention, head / attention.heads, head % attention.heads);
    for (int i = kFirstStagedKey; i < mod::TabulatedVectors::kByKey;
         ++i, to += kTabulatedSlices.key_bytes)
        std::memcpy(to, key_vector(attention, at, i) + first_key, kTabulatedSlices.key_bytes);
    const int first = first_distance_entry(attention, first_row, first_key);
    for (int i = 0; i < mod::TabulatedVectors::kByDistance;
         ++i, to += kTabulatedSlices.distance_bytes)
        for (int copy = 0; copy < mod::TabulatedVectors::kDistanceCopies; ++copy)
            std::memcpy(to + 4 * copy * kTabulatedSlices.twin,
                        distance_vector(attention, at,
                                        mod::TabulatedVectors::kDistanceCopies * i + copy) +
                            kEntryFloats * first,
                        4 * kEntryFloats * kTabulatedSlices.distances);
}
)";

// What such a module tabulates for a call, to which it points. What is not found is NaN.
struct TabulatedValues {
    std::vector<float> of_keys, of_distances;

    TabulatedValues(const HostModule& module, const HostArguments& arguments,
                    ::sm90::KernelArguments& attention)
        : of_keys(count(module, attention, true), kNever),
          of_distances(count(module, attention, false), kNever) {
        attention.key_values = of_keys.data();
        attention.distance_values = of_distances.data();
        using Tabulate = void(const std::uint64_t* words, const ::sm90::KernelArguments*);
        module.function<Tabulate>("tabulate")(arguments.words(), &attention);
    }

  private:
    static constexpr float kNever = std::numeric_limits<float>::quiet_NaN();

    static std::size_t count(const HostModule& module, const ::sm90::KernelArguments& attention,
                             bool keys) {
        using Count = long long(const ::sm90::KernelArguments*, bool keys);
        return static_cast<std::size_t>(
            module.function<Count>("count_tabulated")(&attention, keys));
    }
};

} // namespace flexc::test
