// Functions of an emitted module, all of type TileFunction. The `full` ones leave the mask out: for
// tiles that it is known to leave whole.
#pragma once

namespace flexc::cpu {

inline constexpr char kForwardFunction[] = "flexc_forward";
inline constexpr char kForwardFullFunction[] = "flexc_forward_full";
inline constexpr char kBackwardFunction[] = "flexc_backward";
inline constexpr char kBackwardFullFunction[] = "flexc_backward_full";
inline constexpr char kBandFunction[] = "flexc_band";
// The sink's functions treat it as a tile with one key, whose score it is.
inline constexpr char kSinkFunction[] = "flexc_sink";
inline constexpr char kSinkBackwardFunction[] = "flexc_sink_backward";
inline constexpr char kMaskFunction[] = "flexc_mask";
inline constexpr char kIntervalsFunction[] = "flexc_intervals";

} // namespace flexc::cpu
