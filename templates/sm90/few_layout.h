// Shared memory of forward_few.cu where a warpgroup has 64 rows: what lies where. Included by
// device and host code.
#pragma once

#include "common/host_device.h"

namespace sm90 {

// Tiles are in panels of 64 columns, swizzled as wgmma reads them.
constexpr int kFewWarps = 4, kFewRows = 64;
constexpr int kFewPanelColumns = 64, kFewRowBytes = 128;
constexpr int kFewAlignment = 1024, kFewLeastAlignment = 128; // of eight rows; of a block's memory
constexpr int kFewTiles =
    3; // in turn of keys and of values: one is read while two are on their way

struct FewSizes {
    int warp_keys; // keys of a tile that each warp loads
    int head_dim, head_dim_v, element_bytes;

    // Returns whether products consist of whole panels and have no more columns than one may have.
    FLEXC_SHARED constexpr bool suits() const {
        constexpr int kMostColumns = 128;
        const auto is_whole = [](int columns) {
            return columns % kFewPanelColumns == 0 && columns <= kMostColumns;
        };
        return element_bytes == 2 && is_whole(head_dim) && is_whole(head_dim_v) &&
               kFewWarps * warp_keys <= kMostColumns;
    }
};

struct FewLayout {
    int panel_bytes, tile_bytes; // of keys, or values
    int queries;                 // behind the tiles
    int bytes;
};
FLEXC_SHARED constexpr FewLayout few_layout(const FewSizes& sizes) {
    const int most = sizes.head_dim > sizes.head_dim_v ? sizes.head_dim : sizes.head_dim_v;
    FewLayout layout{};
    layout.panel_bytes = kFewWarps * sizes.warp_keys * kFewRowBytes;
    layout.tile_bytes = most / kFewPanelColumns * layout.panel_bytes;
    layout.queries = kFewTiles * layout.tile_bytes;
    layout.bytes = layout.queries + sizes.head_dim / kFewPanelColumns * kFewRows * kFewRowBytes +
                   kFewAlignment - kFewLeastAlignment;
    return layout;
}
// Returns where tiles begin in memory that begins at `address`.
FLEXC_SHARED constexpr unsigned few_memory(unsigned address) {
    return (address + (kFewAlignment - 1)) / kFewAlignment * kFewAlignment;
}

} // namespace sm90
