// Records of requests from lengths and pages that lie in the device's memory: two launches, which
// graphs may hold. Results are what the host makes of the same arrays.
#include "mod.cuh"

#include "common/dependence.cuh"
#include "common/length_arrays.h"

namespace {

constexpr int kThreads = 32 * mod::kWarps;

// Requests [first, end) of a thread of divide_keys.
struct Span {
    int first, end;
    __device__ explicit Span(int requests) {
        const int each = (requests + kThreads - 1) / kThreads;
        first = min(static_cast<int>(threadIdx.x) * each, requests);
        end = min(first + each, requests);
    }
};

// What the threads before this one have, and all together.
__device__ Parts joined_before(const Parts& own, Parts (&shared)[kThreads], Parts& all) {
    const int thread = static_cast<int>(threadIdx.x);
    __syncthreads();
    shared[thread] = own;
    Parts joint = own;
    for (int distance = 1; distance < kThreads; distance *= 2) {
        __syncthreads();
        if (thread >= distance) joint = joined(shared[thread - distance], joint);
        __syncthreads();
        shared[thread] = joint;
    }
    __syncthreads();
    all = shared[kThreads - 1];
    return thread > 0 ? shared[thread - 1] : Parts{};
}

} // namespace

// A block for each request.
extern "C" __global__ void __launch_bounds__(kThreads)
    flexc_read_lengths(const __grid_constant__ LengthArrays arrays,
                       const __grid_constant__ SequenceRecords records) {
    let_next_start();
    const int request = static_cast<int>(blockIdx.x);
    bool is_wrong = false;
    lengths::Pages pages{nullptr, 0};
    Sequence sequence = lengths::sequence_of(arrays, request, pages, is_wrong);

    __shared__ int end_page; // the first that the cache does not have
    if (threadIdx.x == 0) end_page = pages.count;
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < pages.count; i += kThreads) {
        const int id = pages.ids[i];
        const bool is_there = id >= 0 && id < arrays.pages;
        if (!is_there) atomicMin(&end_page, i);
        records.pages[sequence.first_page + i] = is_there ? id : 0;
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    if (end_page < pages.count) {
        is_wrong = true;
        lengths::end_keys(sequence, end_page, arrays.page_size);
    }
    sequence.q_start = lengths::start_of(arrays, request, sequence, is_wrong);
    records.sequences[request] = sequence;
    if (is_wrong && records.is_wrong != nullptr) *records.is_wrong = 1;
}

// One block, which starts before those have ended: the keys of requests with few queries, in parts.
extern "C" __global__ void __launch_bounds__(kThreads)
    flexc_divide_keys(const __grid_constant__ LengthArrays arrays,
                      const __grid_constant__ SequenceRecords records) {
    wait_for_kernel_ahead();
    const Span own(arrays.requests);
    __shared__ Parts shared[kThreads];
    const auto of_own_requests = [&](auto part_keys) {
        Parts parts;
        for (int request = own.first; request < own.end; ++request) {
            const Sequence& sequence = records.sequences[request];
            parts = joined(parts, parts_by(sequence, arrays.group, part_keys(sequence)));
        }
        return parts;
    };
    const long long shared_keys =
        arrays.batch_invariant ? 0 : shared_part_keys(arrays.kv_heads, [&](long long part_keys) {
            Parts all;
            joined_before(of_own_requests([&](const Sequence&) { return part_keys; }), shared, all);
            return all;
        });
    const auto part_keys_of = [&](const Sequence& sequence) {
        return arrays.batch_invariant ? own_part_keys(sequence, arrays.kv_heads) : shared_keys;
    };

    Parts all;
    int part = joined_before(of_own_requests(part_keys_of), shared, all).count;
    for (int request = own.first; request < own.end; ++request) {
        Sequence& sequence = records.sequences[request];
        sequence.first_part = part;
        part += parts_by(sequence, arrays.group, part_keys_of(sequence)).count;
    }
    if (threadIdx.x != 0) return;
    Sequence end{};
    end.first_part = all.count;
    records.sequences[arrays.requests] = end;
}
