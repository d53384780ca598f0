// A tile of a read whose address is affine in q and kv, in shared memory. Included by device and
// host code.
#pragma once

#include "common/host_device.h"

namespace sm90 {

// A tile of a shifted read: lines of elements that are side by side in memory, each as far behind
// 16 aligned bytes as it is there, so that chunks of 16 bytes can be copied. The pitch that
// memory's rows ask for is up to a chunk more than the least. It is an odd number of chunks: lanes
// that read the same column of eight lines, or the same elements of four pairs of lines, hardly
// meet.
struct ShiftedTileLayout {
    static constexpr int kChunk = 16;
    int least_pitch, bytes;
};
FLEXC_SHARED constexpr ShiftedTileLayout shifted_tile_layout(int lines, int length,
                                                             int element_bytes) {
    constexpr int kChunk = ShiftedTileLayout::kChunk, kLine = 128;
    const int chunks = (length * element_bytes + kChunk - 1) / kChunk + 1;
    const int least_pitch = kChunk * (chunks | 1);
    const int bytes = lines * (least_pitch + kChunk) + kChunk;
    return {least_pitch, (bytes + kLine - 1) / kLine * kLine};
}

} // namespace sm90
