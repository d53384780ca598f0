// Makes records of requests from lengths and tables of keys in the device's memory, in two launches
// that graphs may hold. The host makes the same records of the same arrays.
#include "mod.cuh"

#include "common/dependence.cuh"
#include "common/sequence_records.h"

namespace {

constexpr int kThreads = 32 * mod::kWarps;
constexpr unsigned kAllLanes = 0xffffffffu;

// The requests [first, end) of a thread of flexc_divide_keys.
struct Span {
    int first, end;
    __device__ explicit Span(int requests) {
        const int each = (requests + kThreads - 1) / kThreads;
        first = min(static_cast<int>(threadIdx.x) * each, requests);
        end = min(first + each, requests);
    }
};

// Return what the lanes of a warp have together.
__device__ FewRequests of_warp(FewRequests own) {
    for (int lanes = 16; lanes > 0; lanes /= 2)
        own.keys += __shfl_xor_sync(kAllLanes, own.keys, lanes);
    return {__reduce_add_sync(kAllLanes, own.count), __reduce_max_sync(kAllLanes, own.rows),
            own.keys};
}
__device__ PartsByDivision of_warp(PartsByDivision own) {
    for (Parts& parts : own.of)
        parts = {__reduce_add_sync(kAllLanes, parts.count),
                 __reduce_max_sync(kAllLanes, parts.longest)};
    return own;
}
// Returns what all threads of the block have together. No other call may use `shared` meanwhile.
template <typename T> __device__ T of_block(const T& own, T (&shared)[mod::kWarps]) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const T all_lanes = of_warp(own);
    if (lane == 0) shared[warp] = all_lanes;
    __syncthreads();
    return of_warp(lane < mod::kWarps ? shared[lane] : T{});
}

// Returns the sum over the threads before this one; sets `all` to the sum over all threads.
__device__ int sum_before(int own, int (&shared)[mod::kWarps], int& all) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    int sum = own;
    for (int lanes = 1; lanes < 32; lanes *= 2) {
        const int before = __shfl_up_sync(kAllLanes, sum, lanes);
        if (lane >= lanes) sum += before;
    }
    if (lane == 31) shared[warp] = sum;
    __syncthreads();
    const int of_lane = lane < mod::kWarps ? shared[lane] : 0;
    all = __reduce_add_sync(kAllLanes, of_lane);
    return __reduce_add_sync(kAllLanes, lane < warp ? of_lane : 0) + sum - own;
}

} // namespace

// Makes the records of requests, without parts: a block for each request.
extern "C" __global__ void __launch_bounds__(kThreads)
    flexc_read_lengths(const __grid_constant__ LengthArrays arrays,
                       const __grid_constant__ SequenceRecords records) {
    let_next_start();
    const int request = static_cast<int>(blockIdx.x);
    bool is_wrong = false;
    lengths::Numbers numbers{};
    Sequence sequence = lengths::sequence_of(arrays, request, numbers, is_wrong);

    __shared__ int end; // index of the first number that is wrong
    if (threadIdx.x == 0) end = numbers.count;
    __syncthreads();
    constexpr int kAtOnce = 8; // numbers whose loads are under way together
    for (int first = static_cast<int>(threadIdx.x); first < numbers.count;
         first += kAtOnce * kThreads) {
        int read[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const int index = first + i * kThreads;
            read[i] = index < numbers.count ? numbers.from[index] : 0;
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const int index = first + i * kThreads;
            if (index >= numbers.count) break;
            const bool is_there = read[i] >= 0 && read[i] < numbers.below;
            if (!is_there) atomicMin(&end, index);
            records.numbers[sequence.first_number + index] = is_there ? read[i] : 0;
        }
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    if (end < numbers.count) {
        is_wrong = true;
        lengths::end_keys(sequence, end, numbers);
    }
    sequence.q_start = lengths::start_of(arrays, request, sequence, is_wrong);
    records.sequences[request] = sequence;
    if (is_wrong && records.is_wrong != nullptr) *records.is_wrong = 1;
}

// Divides the keys of requests with few queries into parts. Launched as one block, which may start
// before flexc_read_lengths has ended.
extern "C" __global__ void __launch_bounds__(kThreads)
    flexc_divide_keys(const __grid_constant__ LengthArrays arrays,
                      const __grid_constant__ SequenceRecords records) {
    wait_for_kernel_ahead();
    const Span own(arrays.requests);
    __shared__ FewRequests shared_requests[mod::kWarps];
    __shared__ PartsByDivision shared_parts[mod::kWarps];
    __shared__ int shared_counts[mod::kWarps];
    const auto for_own_requests = [&](auto visit) {
#pragma unroll 1
        for (int request = own.first; request < own.end; ++request)
            visit(records.sequences[request]);
    };
    long long shared_keys = 0;
    if (!arrays.batch_invariant) {
        FewRequests few;
        for_own_requests(
            [&](const Sequence& sequence) { few = joined(few, few_of(sequence, arrays.group)); });
        few = of_block(few, shared_requests);
        shared_keys = shared_part_keys(few, arrays.kv_heads, [&](const PartKeys& keys) {
            PartsByDivision parts;
            for_own_requests(
                [&](const Sequence& sequence) { add_parts(parts, keys, sequence, arrays.group); });
            return of_block(parts, shared_parts);
        });
    }
    const auto parts_of = [&](const Sequence& sequence) {
        const long long keys =
            arrays.batch_invariant ? own_part_keys(sequence, arrays.kv_heads) : shared_keys;
        return parts_by(sequence, arrays.group, keys).count;
    };

    int count = 0, all = 0;
    for_own_requests([&](const Sequence& sequence) { count += parts_of(sequence); });
    int part = sum_before(count, shared_counts, all);
    for_own_requests([&](Sequence& sequence) {
        sequence.first_part = part;
        part += parts_of(sequence);
    });
    if (threadIdx.x != 0) return;
    Sequence end{};
    end.first_part = all;
    records.sequences[arrays.requests] = end;
}
