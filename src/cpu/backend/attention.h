// The loops over tiles: forward and joint backward.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/backend_table.h"
#include "cpu/tile.h"

namespace flexc::cpu {

// Of one module; those that it does not have are null.
struct TileFunctions {
    TileFunction forward, forward_full, backward, backward_full, band;
};

std::size_t forward_workspace(const Launch& launch);
void forward(const TileFunctions& functions, const Launch& launch);

std::size_t backward_workspace(const Launch& launch);
void backward(const TileFunctions& functions, const Launch& launch);

} // namespace flexc::cpu
