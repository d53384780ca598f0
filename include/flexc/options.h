// What a compile can be told. All aggregates: designated initialisers read as named arguments.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flexc/types.h"

namespace flexc {

struct BufferDeclaration {
    std::string name;
    DType type = DType::f32;
    std::vector<std::string> dims; // numbers, size names (H, Q_LEN, ...) or new names
    bool grad = false;
};

struct ParamDeclaration {
    std::string name;
    double value = 0;        // the default
    DType type = DType::f32; // f32, i64 or boolean
};

// hopper: wgmma and the copy engine, on sm_90a, for f16 and bf16 and head dims in steps of 8;
// generic: any GPU from sm_80 up. automatic is hopper where that is possible.
enum class ForwardKernel : std::uint8_t { automatic, generic, hopper };
// fused: dq is added up beside dk and dv, on Hopper by a kernel of its own where it can; split: dq
// in a second kernel; generic: fused, for any GPU from sm_80 up; hopper: that of Hopper or none.
// Fused kernels other than Hopper's add in no fixed order: CompileOptions::deterministic makes them
// split.
enum class BackwardKernel : std::uint8_t { automatic, fused, split, generic, hopper };
// How a CUDA kernel knows the tiles of a mask that is a prefix, padding, or one of them with a
// band: ranges: computed in the kernel; maps: built beside it, as for masks of other forms.
// automatic is ranges.
enum class TileSource : std::uint8_t { automatic, ranges, maps };
// In which gradients of captured buffers are returned: buffer is the buffer's own type. Sums are
// f32 in any case; for narrower types they take 4 bytes more of workspace for each element.
enum class GradientType : std::uint8_t { f32, buffer };

enum class LogLevel : std::uint8_t { debug, info, warning, error };

// Called with no lock held, from any thread. Text is valid during the call.
struct LogSink {
    void (*write)(void* user, LogLevel level, std::string_view text) = nullptr;
    void* user = nullptr;
};

struct CacheOptions {
    bool memory = true;
    bool disk = true;
    std::string
        directory; // empty: FLEXC_CACHE_DIR, else $XDG_CACHE_HOME/flexc, else ~/.cache/flexc
    std::uint64_t max_bytes = 1ull << 30;
    // A folder of compiled kernels that is looked at before the cache, and never written: see
    // Cubin::pack_name. Empty: FLEXC_PACK, if set.
    std::string pack;
};

struct CompileOptions {
    std::string source_name = "<text>"; // how errors name the text
    std::string mask_mod;               // used when the text has none
    std::vector<BufferDeclaration> buffers;
    std::vector<ParamDeclaration> params;

    DType dtype = DType::bf16; // of q, k, v: f32, f16 or bf16
    int head_dim = 64;         // D, 1 to 256
    int head_dim_v = 0;        // DV; 0 means D
    Device device;
    bool backward = true;
    ForwardKernel forward_kernel = ForwardKernel::automatic;
    BackwardKernel backward_kernel = BackwardKernel::automatic;
    TileSource tile_source = TileSource::automatic;
    GradientType gradient_type = GradientType::f32;
    // How the forward kernel divides its work: one of forward_schedules(). Empty: what
    // keep_schedule() kept for the program, else flexc's own choice.
    std::string schedule;
    // The same bits on every run, for dq, dk, dv and the gradients of buffers. Takes more
    // workspace: 80 bytes for each element of most of those gradients.
    bool deterministic = false;
    bool report_out_of_range = false; // for Kernel::out_of_range; costs speed
    CacheOptions cache;
    LogSink log;
};

} // namespace flexc
