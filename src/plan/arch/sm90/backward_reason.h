// What a chosen fused backward does, in words for users.
#pragma once

#include <string>

#include "plan/arch/sm90/backward_tile.h"

namespace flexc::plan::sm90 {

// config: the tile's, but for its reason. follows_others: other tiles are tried before.
std::string reason_of(const KernelRequest& request, const FusedTile& tile,
                      const KernelConfig& config, bool follows_others);

} // namespace flexc::plan::sm90
