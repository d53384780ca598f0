// What a compile can be told. All aggregates: designated initialisers read as named arguments.
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
// How a kernel knows the tiles of a mask that is a prefix, padding, or one of them with a band:
// ranges: computed in the kernel; block_mask: built beside it, as for masks of other forms.
// automatic is ranges, but for deterministic CUDA kernels and where reads outside buffers are
// reported.
enum class TileSource : std::uint8_t { automatic, ranges, block_mask };
// In which gradients of captured buffers are returned: buffer is the buffer's own type. Sums are
// f32 in any case; for narrower types they take 4 bytes more of workspace for each element.
enum class GradientType : std::uint8_t { f32, buffer };

// How the tensors of several requests lie. dense: [B, H, S, D], all of one length. ragged: the rows
// of all requests one after another, [TOTAL, H, D]. paged, of keys alone: in pages of a cache,
// [PAGES, PAGE_SIZE, H_KV, D], that a table lists for each request. Lengths come with the plan: see
// Lengths.
enum class Layout : std::uint8_t { dense, ragged, paged };
std::string_view name(Layout layout); // "dense", ...

// Of a program's sink. absent: it is left out, as results over parts of the keys need it that are
// merged; alone: every score is the sink and all are visible, so that lse over one key is the sink
// of each row, and d_lse its gradient. Without a sink in the program both are as they would be with
// one of -inf.
enum class SinkUse : std::uint8_t { joins, absent, alone };

// Of a program of ragged requests whose rows lie one after another in dense tensors, [1, H, TOTAL,
// D], so that kernels of dense layouts compute it, in parts as well: buffers "requests.of_query",
// "requests.of_key" and "requests.facts" (passes/one_sequence.h) say which rows are whose.
// of_same_lengths: queries and keys of a request are the same rows, and q_idx begins at 0.
enum class OneSequence : std::uint8_t { no, of_any_lengths, of_same_lengths };

// A buffer of which a call has some rows of one dim alone, "Q_LEN" or "KV_LEN": position i is its
// row i + the param "BUFFER.DIM.shift" of the plan, and what is not there reads 0. Every read has
// q_idx, or kv_idx, itself as its index there.
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
    // A folder of compiled kernels that is looked at before the cache, and never written: see
    // Cubin::pack_name. Empty: FLEXC_PACK, if set.
    std::string pack;
};

// Of one compile, with all of its kernels; 0: none. It fails with ErrorCode::limit then, within two
// seconds: work of a backend compiler that does not end by then is left to end by itself, in a
// thread of its own, and while four of those run, no other compile that has limits begins.
struct CompileLimits {
    double seconds = 120;
    // By how much the process may grow meanwhile, whoever it is that takes the memory: raise it
    // where others do. Pages of files do not count. Only where there is /proc.
    std::uint64_t memory_bytes = 8ull << 30;
};

// Copies are one token. A compile that was given it fails with ErrorCode::cancelled soon after
// cancel(), which any thread may call, and which nothing takes back.
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
    // Of k and v, where it is another: e4m3, e5m2 or i8, with scales in ForwardTensors. Forward
    // only; on a GPU beside q of f16 or bf16.
    std::optional<DType> kv_dtype;
    int head_dim = 64;  // D, 1 to 256
    int head_dim_v = 0; // DV; 0 means D
    // Paged keys have no backward. Of others than dense, Hopper has a forward of its own where both
    // are ragged; on CUDA, the rest is computed by generic kernels.
    Layout query_layout = Layout::dense; // of q, o, lse and their gradients
    Layout key_layout = Layout::dense;   // of k, v and their gradients
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
    // workspace: 80 bytes for each element of most of those gradients. A CPU does without it.
    bool deterministic = false;
    // o and lse of a batch entry, or request, have the same bits whatever others are in the batch.
    // Few queries on many keys are slower where few of them are in a batch, and take more
    // workspace: each divides its keys by itself.
    bool batch_invariant = false;
    // For ForwardTensors::max_scores.
    bool max_scores = false;
    // What is visible, instead of attention: every score is 0 but those that the score_mod makes
    // -inf, so that lse is the logarithm of how many keys a row sees. There is no backward then.
    bool count_visible = false;
    SinkUse sink_use = SinkUse::joins;
    OneSequence one_sequence = OneSequence::no;
    std::vector<ShardedBuffer> sharded;
    // For calls that have some of the heads of a larger whole, such as tensor parallelism has: h
    // and h_kv begin where PlanOptions::head_offset says, H and H_KV are the heads of the whole,
    // and so are buffers' dims of those names.
    bool part_of_heads = false;
    bool report_out_of_range = false; // for Kernel::out_of_range; costs speed
    CacheOptions cache;
    // A compile that failed for them, or that a backend compiler refused, is remembered for five
    // minutes where cache.memory is set: until then the same with no wider limits fails at once.
    CompileLimits limits;
    CancelToken cancel;
    LogSink log;
};

} // namespace flexc
