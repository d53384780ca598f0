// Divides many short sequences evenly over the blocks, each of which computes its sequences one
// after another.
#pragma once

namespace sm80 {

struct SequenceRange {
    int first, end;
};
// sequences: batch entries times heads (KV heads in a backward).
__device__ inline SequenceRange sequences_of_block(long long sequences) {
    return {static_cast<int>(sequences * blockIdx.x / gridDim.x),
            static_cast<int>(sequences * (blockIdx.x + 1) / gridDim.x)};
}

} // namespace sm80
