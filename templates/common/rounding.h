// Arguments of round_gradients.cu.
#pragma once

struct Rounding {
    enum Type : int { kF16, kBf16, kF64 };

    const float* from;
    void* to;
    long long count;
    Type type;
};
