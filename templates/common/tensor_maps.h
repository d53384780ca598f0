// Tensor maps for TMA. Included by device and host code.
#pragma once

// The driver's CUtensorMap: opaque, made by cuTensorMapEncodeTiled.
struct alignas(64) TensorMap {
    unsigned long long words[16];
};

// Boxes of 64 columns (128 bytes, swizzled); rows in a box: the query tile for q, the key tile for
// k and v, 16 for o, the rows of one warp.
struct ForwardTensorMaps {
    TensorMap q, k, v, o;
    // Map of the dense bias, as one matrix of all rows of its buffer: boxes of 128 bytes (swizzled)
    // by the query tile. biases_from: its first element; null if there is no such map.
    TensorMap biases;
    const void* biases_from = nullptr;
    long long bias_row_step = 0; // in elements
};

// The same for the backward: 16 rows for dk and dv.
struct BackwardTensorMaps {
    TensorMap q, k, v, d_out, dk, dv;
};
