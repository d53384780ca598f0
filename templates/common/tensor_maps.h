// How the copy engine of Hopper and later walks through tensors. Included by device and host code.
#pragma once

// The driver's CUtensorMap: opaque, made by cuTensorMapEncodeTiled.
struct alignas(64) TensorMap {
    unsigned long long words[16];
};

// Boxes of 64 columns (128 bytes, swizzled); rows in a box: the query tile for q, the key tile for
// k and v, 16 for o, the rows of one warp.
struct ForwardMaps {
    TensorMap q, k, v, o;
};

// The same for the backward: 16 rows for dk and dv.
struct BackwardMaps {
    TensorMap q, k, v, d_out, dk, dv;
};
