// Stands in for the device file of the same name.
#pragma once

inline float min_nan(float x, float y) { return x != x || y != y ? NAN : x < y ? x : y; }
inline float max_nan(float x, float y) { return x != x || y != y ? NAN : x < y ? y : x; }
// Of the memory that warpgroup.cuh's stand-in has.
float load_shared_float(unsigned address);
float load_shared_float_if(bool condition, unsigned address);
inline float divide_full(float x, float y) { return x / y; }
template <typename T> T load_if(bool condition, const T* p) { return condition ? *p : T(0); }
