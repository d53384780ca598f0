// A score taken apart, multiplier * score and addends, or cap * tanh of that: ScoreForm
// (sm90/score_form.h) says what there is.
#pragma once

namespace defaults {

template <typename At> __device__ float multiplier(const At&) { return 1; } // uses no kv, no score
template <typename At> __device__ float row_addend(const At&) { return 0; } // affine in kv
template <typename At> __device__ float slope(const At&) { return 0; } // row_addend's step per key
template <typename At> __device__ float cap(const At&) { return 0; }   // uses the head at most
// Addends by the row and by the column of the 2-D key index, and by the element.
template <typename At> __device__ float quotient_addend(const At&) { return 0; }
template <typename At> __device__ float remainder_addend(const At&) { return 0; }
template <typename At> __device__ float element_addend(const At&, float bias) { return 0; }

} // namespace defaults
