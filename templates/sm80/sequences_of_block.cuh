// Many short sequences: a block computes one after another, as many as any other, or one more.
#pragma once

namespace sm80 {

struct SequenceRange {
    int first, end;
};
// sequences: of all heads; a backward counts heads of keys.
__device__ inline SequenceRange sequences_of_block(long long sequences) {
    return {static_cast<int>(sequences * blockIdx.x / gridDim.x),
            static_cast<int>(sequences * (blockIdx.x + 1) / gridDim.x)};
}

} // namespace sm80
