// Stands in for the device file of the same name.
#pragma once

inline int lane_again() { return static_cast<int>(threadIdx.x) % 32; }
inline int thread_again() { return static_cast<int>(threadIdx.x); }
template <typename T> T computed_again(T x) { return x; }
