// The loops over tiles: forward and joint backward.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/backend_table.h"
#include "cpu/tile.h"

namespace flexc::cpu {

// Functions of one module; null if it does not have one.
struct TileFunctions {
    TileFunction forward, forward_full, backward, backward_full, sink, sink_backward, band, mask,
        intervals;
};

std::size_t forward_workspace(const Launch& launch);
void forward(const TileFunctions& functions, const Launch& launch);

// For launches with sequences (requests with lengths of their own).
std::size_t forward_sequences_workspace(const Launch& launch);
void forward_sequences(const TileFunctions& functions, const Launch& launch);

std::size_t backward_sequences_workspace(const Launch& launch);
void backward_sequences(const TileFunctions& functions, const Launch& launch);

std::size_t backward_workspace(const Launch& launch);
void backward(const TileFunctions& functions, const Launch& launch);

} // namespace flexc::cpu
