// Columns of the 2-D key index; where there is none, a tile of keys is one row.
#pragma once

#include "mod.cuh"

namespace sm90 {

constexpr int kKeyWidth = mod::KeyIndex2d::kWidth > 0 ? mod::KeyIndex2d::kWidth : mod::kKeyTile;

} // namespace sm90
