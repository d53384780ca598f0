// The loops over tiles: forward and joint backward.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/backend_table.h"
#include "cpu/tile.h"

namespace flexc::cpu {

// Of one module; those that it does not have are null.
struct TileFunctions {
    TileFunction forward, forward_full, backward, backward_full, sink, sink_backward, band, look,
        intervals;
};

std::size_t forward_workspace(const Launch& launch);
void forward(const TileFunctions& functions, const Launch& launch);

// Of requests with lengths of their own, where launches have sequences.
std::size_t forward_sequences_workspace(const Launch& launch);
void forward_sequences(const TileFunctions& functions, const Launch& launch);

std::size_t backward_sequences_workspace(const Launch& launch);
void backward_sequences(const TileFunctions& functions, const Launch& launch);

std::size_t backward_workspace(const Launch& launch);
void backward(const TileFunctions& functions, const Launch& launch);

} // namespace flexc::cpu
