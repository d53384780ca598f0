// What the compiler fixes in a kernel before it is built: printed into mod.cuh as constants.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "flexc/types.h"

namespace flexc::cuda {

enum class KernelKind : std::uint8_t {
    forward,
    delta,
    backward_dq,
    backward_dkdv,
    backward_fused,
    convert
};

// Everything that a choice depends on.
struct KernelRequest {
    KernelKind kind = KernelKind::forward;
    int arch = 80; // compute capability times ten: 80, 86, 90, 100, 120
    DType dtype = DType::bf16;
    int head_dim = 64;
    int head_dim_v = 64;
    bool has_score_mod = false;
    bool has_mask = false;
};

struct KernelConfig {
    KernelKind kind = KernelKind::forward;
    std::string_view template_path; // within templates/: "forward.cu"
    std::string_view entry;         // name of the extern "C" function
    int query_tile = 0;             // kQueryTile ... kSharedBytes of mod.cuh
    int key_tile = 0;
    int warps = 0; // 32 * warps threads in a block
    int stages = 1;
    int shared_bytes = 0; // dynamic
    std::string reason;   // one line, for people
};

} // namespace flexc::cuda
