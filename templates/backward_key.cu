// Attention, backward: each block computes dk and dv of kKeyTile keys of one KV head. If
// mod::kAccumulatesQueryGradient, it also adds their contribution to dq_accumulator.
//
// Keys and values stay in shared memory; the block loops over tiles of queries and d_out of all
// query heads of the group:
//     P = exp(mod(S) - lse)                            dv += P^T d_out
//     dS = P * (d_out V^T - delta) * mod'(S)           dk += dS^T Q       dq += dS K
// P and dS go through shared memory, because each product needs them in another layout of
// registers. So does what elements add to tables where that is no multiple of dS.
#include "mod.cuh"

#include "sm80/backward_output.cuh"
#include "sm80/backward_scores.cuh"
#include "sm80/dq_writer.cuh"
#include "sm80/row_references.cuh"
#include "sm80/stages.cuh"
#include "sm80/table_sums.cuh"
#include "sm80/tile_order.cuh"

using namespace sm80;

namespace {

using Scores = WarpResult<kScoreRows, mod::kKeyTile, mod::kWarps>;
using WeightedTile = Tile<WeightedElement, mod::kQueryTile, mod::kKeyTile>;
using KeyGradientTile = Tile<float, mod::kKeyTile, mod::kHeadDim>;
using ValueGradientTile = Tile<float, mod::kKeyTile, mod::kHeadDimV>;

constexpr BackwardKeyLayout kLayout = backward_key_layout(kSizes);
static_assert(kLayout.bytes == mod::kSharedBytes); // what the plan knows of it
extern __shared__ __align__(128) unsigned char shared_memory[];

struct Stage {
    unsigned base;
    __device__ QueryTile queries() const { return {base}; }
    __device__ DOutTile d_out() const { return {base + kLayout.d_out}; }
    __device__ unsigned row_statistics() const { return base + kLayout.row_statistics; }
};
struct Shared {
    unsigned base;
    __device__ KeyTile keys() const { return {base}; }
    __device__ ValueTile values() const { return {base + kLayout.values}; }
    __device__ PTile p() const { return {base + kLayout.p}; }
    __device__ PTile d_scores() const { return {base + kLayout.d_scores}; }
    __device__ unsigned table_sums() const { return base + kLayout.table_sums; }
    __device__ WeightedTile weighted() const { return {base + kLayout.weighted}; }
    __device__ unsigned terms() const { return base + kLayout.terms; }
    __device__ Stage stage(int step) const {
        return {base + kLayout.stages + step % mod::kStages * kLayout.stage_bytes};
    }
};

// The tile of keys of a block. Heads are KV heads over the whole batch, of which a launch may
// compute some.
__device__ BlockTile key_tile_of(const AttentionArguments& attention,
                                 const mod::Arguments& arguments, int block) {
    if constexpr (mod::Mask::kHasBlockMask && !mod::Layouts::kAreDense && !mod::kLoopsOverHeads)
        return longest_tile_of<mod::Layouts::kKeysAreRagged>(
            attention, attention.kv_heads, block, mod::kKeyTile, attention.kv_len,
            [&](int b) { return attention.sequences.of(b).kv_row; });
    if constexpr (mod::Layouts::kKeysAreRagged && !mod::kLoopsOverHeads)
        return ragged_tile_of(attention, attention.kv_heads, block,
                              ragged_tiles(attention, attention.kv_rows, mod::kKeyTile),
                              mod::kKeyTile,
                              [&](int b) { return attention.sequences.of(b).kv_row; });
    const int tiles = (attention.kv_len + mod::kKeyTile - 1) / mod::kKeyTile;
    const int heads = mod::kLoopsOverHeads ? static_cast<int>(gridDim.x) / tiles
                                           : attention.batch * attention.kv_heads;
    const int first_head = mod::first_kv_head(arguments);
    const int group = attention.heads / attention.kv_heads;
    BlockTile found = KeyTileOrder::of(block, heads, tiles, [&](int head, int place) {
        head += first_head;
        return row_in_order(attention.block_mask, head / attention.kv_heads,
                            head % attention.kv_heads * group, place);
    });
    found.head += first_head;
    return found;
}

__device__ void load_keys(Shared shared, const KernelArguments& attention,
                          const SequenceLength& length, int h_kv, int first_kv) {
    const Plane<Element> k = key_plane<Element>(attention.k, length, h_kv),
                         v = key_plane<Element>(attention.v, length, h_kv);
    load_tile<kThreads>(shared.keys(), k, first_kv, length.keys());
    load_tile<kThreads>(shared.values(), v, first_kv, length.keys());
    clear_padding<kThreads>(shared.keys());
    clear_padding<kThreads>(shared.values());
    for (int i = 0; i < mod::kStages; ++i) {
        clear_padding<kThreads>(shared.stage(i).queries());
        clear_padding<kThreads>(shared.stage(i).d_out());
    }
}

// Addresses are computed again for each tile to save registers.
__device__ void load_queries(Stage stage, const KernelArguments& attention,
                             const SequenceLength& length, int h, int first_q) {
    h = computed_again(h);
    const Plane<Element> q = query_plane<Element>(attention.q, length, h),
                         d_out = query_plane<Element>(attention.d_out, length, h);
    load_tile<kThreads>(stage.queries(), q, first_q, length.queries());
    load_tile<kThreads>(stage.d_out(), d_out, first_q, length.queries());
    load_row_statistics<mod::kQueryTile>(stage.row_statistics(), attention, length, h, first_q);
}

// Computes P and dS of a tile and writes them to shared memory.
__device__ void compute_scores(Shared shared, Stage stage, const Surroundings& around, int first_q,
                               int first_kv, bool is_full, mod::GradientSums& sums,
                               TableGradients& tables) {
#pragma unroll 1
    for (int row = 0; row < mod::kQueryTile && Scores::has_unit(0); row += kScoreRows) {
        Scores scores, d_scores;
        LaterGradients<Scores> later;
        scores.clear();
        d_scores.clear();
        mma_rows(scores, rows_of<kScoreRows>(stage.queries(), row), shared.keys());
        mma_rows(d_scores, rows_of<kScoreRows>(stage.d_out(), row), shared.values());
        differentiate_tile(scores, d_scores, around,
                           {first_q + row, first_kv, stage.row_statistics() + 4 * row,
                            4 * mod::kQueryTile, is_full},
                           sums, later);
        tables.update_largest(d_scores.values);
        store_result(rows_of<kScoreRows>(shared.p(), row), scores);
        store_result(rows_of<kScoreRows>(shared.d_scores(), row), d_scores);
        later.weighted.use([&](auto& elements) {
            tables.template update_largest<1>(elements.values);
            store_result(rows_of<kScoreRows>(shared.weighted(), row), elements);
        });
        sum_terms(later.terms, around, first_q + row, first_kv, shared.terms());
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads, mod::kBlocksAtOnce)
    flexc_backward_key(const __grid_constant__ KernelArguments attention,
                       const __grid_constant__ mod::Arguments arguments) {
    const BlockTile block = key_tile_of(attention, arguments, static_cast<int>(blockIdx.x));
    const int b = block.head / attention.kv_heads, h_kv = block.head % attention.kv_heads;
    const int group = attention.heads / attention.kv_heads;
    const SequenceLength length(attention, b);
    const int first_kv = block.tile * mod::kKeyTile;
    if (mod::Layouts::kKeysAreRagged && (block.tile < 0 || first_kv >= length.key_rows())) return;
    const int last_kv = min(first_kv + mod::kKeyTile, length.keys()) - 1;

    const Shared shared{shared_address(shared_memory)};
    load_keys(shared, attention, length, h_kv, first_kv);
    KeyGradient dk;
    ValueGradient dv;
    dk.clear();
    dv.clear();
    TableGradients tables(shared.table_sums());

    for (int h = h_kv * group; h < (h_kv + 1) * group; ++h) {
        const HeadPlace place(attention, arguments, b * attention.heads + h);
        const Surroundings around{attention, arguments, place, length};
        const auto load = [&](const TileWalk& at) {
            if (!at.is_done())
                load_queries(shared.stage(at.step()), attention, length, h,
                             at.tile() * mod::kQueryTile);
        };
        mod::GradientSums sums{};
        clear_terms<Scores>(around, shared.terms());

        __syncthreads(); // everyone has left the head before
        TileWalk walk(attention.block_mask,
                      row_of_keys(attention.block_mask, length, h, block.tile),
                      seeing_tiles(place, length, first_kv, last_kv, mod::kQueryTile));
        Stages<mod::kStages>::begin(walk, load);
        for (TileWalk next = walk; !walk.is_done(); walk = next) {
            next.advance();
            Stages<mod::kStages>::wait(walk, next, load);
            const int first_q = walk.tile() * mod::kQueryTile;
            const Stage stage = shared.stage(walk.step());
            tables.take(); // of the tile before
            compute_scores(shared, stage, around, first_q, first_kv, walk.is_full(), sums, tables);
            tables.publish_ranges(around, first_q, first_kv);
            __syncthreads(); // P and dS are here
            tables.add(around, shared.d_scores(), shared.weighted(), first_q, first_kv);
            mma_columns(dv, shared.p(), stage.d_out());
            mma_columns(dk, shared.d_scores(), stage.queries());
            DqWriter::add(around, shared.d_scores(), shared.keys(), first_q);
        }
        tables.flush(around, first_kv);
        flush_terms<Scores>(around, first_kv, shared.terms());
        mod::flush_gradients(arguments, place.launch, place.head, b, h, h_kv, sums);
    }

    wait_for_copies(); // of the first tiles too, where no loop did
    __syncthreads();   // everyone has left the last tile
    store_gradient<KeyGradientTile, kThreads>(
        shared.base, dk, key_gradient<Element>(attention.dk, attention.dk_flags, length, h_kv),
        first_kv, length.key_rows(), attention.scale);
    __syncthreads();
    store_gradient<ValueGradientTile, kThreads>(
        shared.base, dv, key_gradient<Element>(attention.dv, attention.dv_flags, length, h_kv),
        first_kv, length.key_rows(), 1);
}
