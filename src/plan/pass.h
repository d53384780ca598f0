// A pass as a value: the regions of its workspace, and its fills and launches in order. The runtime
// executes it, and `explain --stage plan` prints it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/arguments.h"
#include "passes/gradient_order.h"
#include "plan/bound_tables.h"
#include "plan/dense_biases.h"
#include "plan/few_work.h"
#include "plan/kernel.h"
#include "plan/small_buffers.h"

namespace flexc::plan {

// A length of a call: rows of q or keys, batch entries or heads. For requests with lengths of their
// own, queries and keys are the maxima over all requests, and all_queries and all_keys the rows of
// ragged tensors.
struct Length {
    // few_rows: rows of requests with few queries, see sequences.h. few_parts and merging_blocks:
    // FewWork, for launches of a call whose lengths the host knows. entry_parts: the parts of each
    // batch entry of dense tensors. joined_parts: few_parts, or 0 where each entry has one.
    enum class Of : std::uint8_t {
        batch,
        heads,
        kv_heads,
        queries,
        keys,
        all_queries,
        all_keys,
        few_rows,
        few_parts,
        merging_blocks,
        entry_parts,
        joined_parts
    };
    Of of;
    int plus = 0; // what is added, before
    int step = 1; // it is lengthened to a multiple of this, and
    int per = 1;  // divided by this
};
constexpr Length tiles_of(Length::Of of, int tile) { return {of, 0, tile, tile}; }

// The values of these lengths in one call.
struct CallLengths {
    std::int64_t batch = 1, heads = 1, kv_heads = 1, queries = 1, keys = 1;
    std::int64_t all_queries = 0, all_keys = 0;
    FewWork few = {};
};

// A sum of products of lengths. Sums that overflow saturate.
struct Extent {
    struct Product {
        std::int64_t factor = 1;
        std::vector<Length> lengths;
    };
    std::vector<Product> terms;

    std::int64_t of(const CallLengths& call) const;
};
std::string text_of(const Extent& extent); // "2 * B * H * ceil(Q / 128)"

// A region of the workspace, which its name tells from the others of a pass. Those of one family
// alone are in its folder.
struct Region {
    std::string_view name;
    friend bool operator==(const Region&, const Region&) = default;
};
namespace regions {
inline constexpr Region row_statistics{"row_statistics"}, exact_sums{"exact_sums"};
}
std::string_view text_of_heads(bool by_batch, bool by_head); // "each b and h"

// A kernel's first argument is AttentionArguments, followed by its family's own members: at most
// this many bytes.
inline constexpr std::size_t kMostFamilyBytes = 96;
inline constexpr std::size_t kNoArgument = std::numeric_limits<std::size_t>::max();

// Returns the byte offset of a member in a kernel's first argument.
template <typename Arguments, typename T> std::size_t argument(T Arguments::* member) {
    static_assert(sizeof(Arguments) <= sizeof(AttentionArguments) + kMostFamilyBytes);
    static const Arguments all{};
    return static_cast<std::size_t>(reinterpret_cast<const std::byte*>(&(all.*member)) -
                                    reinterpret_cast<const std::byte*>(&all));
}

struct WorkspaceRegion {
    Region region;
    int element_bytes = sizeof(float);
    Extent elements;
    // The region has one more element for each element of these buffers' gradients.
    std::vector<std::uint32_t> of_gradients = {};
    std::size_t argument = kNoArgument; // byte of the first argument where its address goes
    // Zeroed, and passed to the kernel, only in calls that use PassPlan::stored_gradients.
    bool of_stored_gradients = false;
};

// An int of the first argument that depends on a call's lengths.
struct LengthArgument {
    std::size_t argument;
    Extent value;
};

// A fill with zeros.
struct Fill {
    Region region;
};
// A fill of the gradients of captured buffers with zeros, unless they are accumulated or stored
// first.
struct FillGradients {};

struct Launch {
    // Of which tensors it takes maps for TMA. forward_queries: threads copy keys and values.
    enum class Maps : std::uint8_t { none, forward, forward_queries, backward };

    std::size_t kernel = 0; // of PassPlan::kernels, in whose module the function is
    std::string_view entry;
    Extent blocks;
    Extent known_blocks = {}; // no more than these are needed, where the host knows the lengths
    int threads = 0, threads_y = 1;
    int shared_bytes = 0;
    Extent used_shared_bytes = {}; // where a call may need less
    bool is_persistent = false;    // no more blocks than so many for each multiprocessor
    int blocks_at_once = 1;
    bool has_queue = false; // whose tiles they then take from a counter
    Maps tensor_maps = Maps::none;
    bool starts_early = false; // programmatic dependent launch
    bool by_heads = false;     // as often as PassPlan::heads_at_once says
    bool of_many_rows = false; // not where all requests have few queries
    std::optional<MaskTiling> block_mask = {}; // the one that it reads
    std::vector<Region> reads = {}, writes = {};
};
// kernel: where `config` is in PassPlan::kernels.
Launch launch_of(std::size_t kernel, const KernelConfig& config, Extent blocks);
// One launch for each exactly summed gradient, which rounds its sums and adds them to the gradient.
struct RoundSums {
    std::size_t kernel = 0;
};
// One launch for each gradient that is returned in a type other than f32.
struct RoundGradients {
    std::size_t kernel = 0;
};
using Step = std::variant<Fill, FillGradients, Launch, RoundSums, RoundGradients>;

// A gradient that is summed exactly, and the argument word that names the sums.
struct ExactGradient {
    std::uint32_t buffer = 0;
    std::size_t word = 0;
};

// From so many sequences on (batch entries times heads), a call counts as having many short
// sequences: they fill a GPU several times over.
inline constexpr int kManySequences = 1024;

struct PassPlan {
    std::vector<KernelConfig> kernels;
    std::size_t main = 0; // the one that has candidates
    std::vector<WorkspaceRegion> workspace;
    std::vector<LengthArgument> length_arguments;
    std::vector<Step> steps;

    // What a call must satisfy to use this pass, besides tensors that TMA can walk.
    bool is_of_inside_calls = false;  // passes::is_of_inside_calls()
    int most_rows = 0;                // SequenceForm::most_rows
    bool has_few_queries = false;     // SequenceForm::has_few_queries
    bool heads_have_own_keys = false; // every query head has a KV head of its own
    float least_scale = -std::numeric_limits<float>::infinity();
    // q_offset and kv_offset must be multiples of these.
    int query_offset_step = 1, key_offset_step = 1;
    std::vector<CopiedBias> tiled_biases;   // whose rows must be aligned
    std::vector<BufferWords> small_buffers; // whose offsets must fit into 32 bits
    std::vector<BoundTables> bound_tables;  // whose entries must fit into a block's memory

    std::vector<CopiedBias> copied_biases; // by TMA, where its rows allow it: none or one
    StoredGradients stored_gradients;
    std::vector<ExactGradient> exact_gradients;
    passes::HeadsAtOnce heads_at_once = passes::HeadsAtOnce::all;
    std::size_t first_head_word = 0; // the argument word that says where a launch by heads starts
};

} // namespace flexc::plan
