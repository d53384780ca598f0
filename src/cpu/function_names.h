// Functions of an emitted module, all of type TileFunction. The `full` ones leave the mask out: for
// tiles that the band proves visible.
#pragma once

namespace flexc::cpu {

inline constexpr char kForwardFunction[] = "flexc_forward";
inline constexpr char kForwardFullFunction[] = "flexc_forward_full";
inline constexpr char kBackwardFunction[] = "flexc_backward";
inline constexpr char kBackwardFullFunction[] = "flexc_backward_full";
inline constexpr char kBandFunction[] = "flexc_band";

} // namespace flexc::cpu
