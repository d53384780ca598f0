// Options of a compile. All are aggregates: designated initialisers read like named arguments.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
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

// specialized: made for the target's architecture, or an error. sm_90a has one, with wgmma and TMA,
// for f16 and bf16 and head dims in steps of 8. generic: any GPU from sm_80 up. automatic:
// specialized where that is possible.
enum class ForwardKernel : std::uint8_t { automatic, generic, specialized };
// fused: dq is added up beside dk and dv, by the specialized kernel where it can; split: dq in a
// second kernel; generic: fused, for any GPU from sm_80 up; specialized: made for the target's
// architecture, or an error. Generic fused kernels add in no fixed order:
// CompileOptions::deterministic makes them split.
enum class BackwardKernel : std::uint8_t { automatic, fused, split, generic, specialized };
// How a kernel finds the tiles of a mask that is a prefix, padding, or one of these combined with a
// band. ranges: computed in the kernel; block_mask: built ahead, as for other masks. automatic is
// ranges, except for deterministic CUDA kernels and if reads outside buffers are reported.
enum class TileSource : std::uint8_t { automatic, ranges, block_mask };
// The type in which gradients of captured buffers are returned; buffer: the buffer's own type. Sums
// are always f32; narrower types take 4 more bytes of workspace for each element.
enum class GradientType : std::uint8_t { f32, buffer };

// The layout of the tensors of several requests. dense: [B, H, S, D], all of one length. ragged:
// the rows of all requests one after another, [TOTAL, H, D]. paged (keys only): in pages of a
// cache, [PAGES, PAGE_SIZE, H_KV, D], which a table lists for each request. Lengths are given with
// the plan: see Lengths.
enum class Layout : std::uint8_t { dense, ragged, paged };
std::string_view name(Layout layout); // "dense", ...

// How a program's sink is used. joins: as a part of the softmax. absent: left out, for results over
// parts of the keys that are merged later. alone: every score is the sink and everything is
// visible, so that lse over one key is the sink of each row, and d_lse its gradient. Without a sink
// in the program, the last two act as with a sink of -inf.
enum class SinkUse : std::uint8_t { joins, absent, alone };

// Turns a program of ragged requests into one of dense tensors, [1, H, TOTAL, D], that hold the
// requests' rows one after another, so that kernels of dense layouts can compute it, also in parts.
// Buffers "requests.of_query", "requests.of_key" and "requests.facts" (passes/one_sequence.h) say
// which rows belong to which request. of_same_lengths: queries and keys of a request are the same
// rows, and q_idx starts at 0.
enum class OneSequence : std::uint8_t { no, of_any_lengths, of_same_lengths };

// A buffer of which a call has only some rows of one dim, "Q_LEN" or "KV_LEN": position i is its
// row i + the param "BUFFER.DIM.shift" of the plan, and other rows read as 0. Every read must have
// q_idx, or kv_idx, itself as that index.
struct ShardedBuffer {
    std::string buffer, dim;
};

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
    // A folder of compiled kernels that is searched before the cache and never written: see
    // Cubin::pack_name. Empty: FLEXC_PACK, if set.
    std::string pack;
};

// Limits on one compile with all of its kernels; 0: none. When one is exceeded, the compile fails
// with ErrorCode::limit within two seconds: work of a backend compiler that is still running then
// ends by itself in a thread of its own, and while four of these run, no other compile with limits
// starts.
struct CompileLimits {
    double seconds = 120;
    // How much the process may grow during the compile, whatever takes the memory: raise it if
    // other threads allocate much. Pages of files do not count. Needs /proc.
    std::uint64_t memory_bytes = 8ull << 30;
};

// Copies share one token. A compile that was given it fails with ErrorCode::cancelled soon after
// cancel(), which any thread may call and which cannot be undone.
class CancelToken {
  public:
    CancelToken() = default; // never cancels
    static CancelToken create();
    void cancel() const;
    bool is_cancelled() const;
    explicit operator bool() const { return flag_ != nullptr; }

  private:
    std::shared_ptr<std::atomic<bool>> flag_;
};

struct CompileOptions {
    std::string source_name = "<text>"; // how errors name the text
    std::string mask_mod;               // used when the text has none
    std::string sink;                   // likewise
    std::vector<BufferDeclaration> buffers;
    std::vector<ParamDeclaration> params;

    DType dtype = DType::bf16; // of q, k, v: f32, f16 or bf16
    // Type of k and v if it differs: e4m3, e5m2 or i8, with scales in ForwardTensors. Forward only;
    // on a GPU with q in f16 or bf16.
    std::optional<DType> kv_dtype;
    int head_dim = 64;  // D, 1 to 256
    int head_dim_v = 0; // DV; 0 means D
    // Paged keys have no backward. For layouts other than dense, Hopper has its own forward if both
    // are ragged; on CUDA, the rest is computed by generic kernels.
    Layout query_layout = Layout::dense; // of q, o, lse and their gradients
    Layout key_layout = Layout::dense;   // of k, v and their gradients
    Device device;
    bool backward = true;
    ForwardKernel forward_kernel = ForwardKernel::automatic;
    BackwardKernel backward_kernel = BackwardKernel::automatic;
    TileSource tile_source = TileSource::automatic;
    GradientType gradient_type = GradientType::f32;
    // The schedule of the forward kernel: one of forward_schedules(). Empty: the one that
    // keep_schedule() stored for the program, else flexc's own choice.
    std::string schedule;
    // Makes dq, dk, dv and the gradients of buffers bitwise reproducible. Takes more workspace on a
    // GPU: 80 bytes for each element of most of those gradients. The CPU needs none.
    bool deterministic = false;
    // Makes o and lse of a batch entry, or request, bitwise independent of the others in the batch.
    // Few queries on many keys are slower in small batches, and take more workspace, as each
    // request divides its keys by itself.
    bool batch_invariant = false;
    // Enables ForwardTensors::max_scores.
    bool max_scores = false;
    // Counts visible keys instead of computing attention: every score is 0, except where the
    // score_mod makes it -inf, so that lse is the logarithm of the number of keys that a row sees.
    // There is no backward then.
    bool count_visible = false;
    SinkUse sink_use = SinkUse::joins;
    OneSequence one_sequence = OneSequence::no;
    std::vector<ShardedBuffer> sharded;
    // For calls with some of the heads of a larger whole, as in tensor parallelism: h and h_kv
    // start at PlanOptions::head_offset, and H and H_KV (also as buffers' dims) are the heads of
    // the whole.
    bool part_of_heads = false;
    bool report_out_of_range = false; // for Kernel::out_of_range; costs speed
    CacheOptions cache;
    // A compile that exceeded them, or that a backend compiler rejected, is remembered for five
    // minutes if cache.memory is set: meanwhile, the same compile with no wider limits fails at
    // once.
    CompileLimits limits;
    CancelToken cancel;
    LogSink log;
};

} // namespace flexc
