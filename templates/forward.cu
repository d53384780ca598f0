// Attention, forward: one block computes kQueryTile rows of one head's output.
//
// FlashAttention-2's loop over tiles of keys and values: scores = scale * Q K', changed by the mod;
// a running maximum and sum per row; output += exp(scores - maximum) V. Each warp owns whole rows,
// so that only the four threads of a quad exchange anything.
#include "mod.cuh"

#include "common/math.cuh"
#include "common/place.cuh"
#include "common/tile_walk.cuh"
#include "sm80/mma.cuh"

using namespace sm80;
using mod::Element;

namespace {

constexpr int kThreads = 32 * mod::kWarps;
constexpr int kSlabs = mod::kQueryTile / mod::kWarps / 16; // of 16 rows, in one warp
constexpr int kKeyColumns = mod::kKeyTile / 8;             // accumulators of 8 columns
constexpr int kValueColumns = round_up(mod::kHeadDimV, 16) / 8;

using QueryTile = Tile<Element, mod::kQueryTile, mod::kHeadDim>;
using KeyTile = Tile<Element, mod::kKeyTile, mod::kHeadDim>;
using ValueTile = Tile<Element, mod::kKeyTile, mod::kHeadDimV>;
constexpr int kStageBytes = KeyTile::kBytes + ValueTile::kBytes;
static_assert(mod::kStages == 2, "one tile is read while the next arrives");
static_assert(QueryTile::kBytes + mod::kStages * kStageBytes <= mod::kSharedBytes);

extern __shared__ __align__(128) unsigned char shared_memory[];

// A thread's part of the matrices: in each slab, columns 2t and 2t + 1 of rows g and g + 8.
using Scores = float[kSlabs][kKeyColumns][4];
using Output = float[kSlabs][kValueColumns][4];

// What a block computes. Tiles of one head are neighbours, so that its keys and values stay in L2;
// where a band lets later rows see more, they go first, and where there is a block mask, the
// longest.
struct Work {
    int head; // over batch and query heads
    int first_row;
    __device__ Work(const AttentionArguments& attention, int block) {
        if constexpr (mod::kHasBlockMask) {
            const int heads = attention.batch * attention.heads;
            head = block % heads;
            first_row = mod::kQueryTile * row_in_order(attention.block_mask, head / attention.heads,
                                                       head % attention.heads, block / heads);
            return;
        }
        const int tiles = (attention.q_len + mod::kQueryTile - 1) / mod::kQueryTile;
        const int tile = block % tiles;
        head = block / tiles;
        first_row = (mod::kHasBand ? tiles - 1 - tile : tile) * mod::kQueryTile;
    }
};

// The rows of one thread: row i is row 8 (i % 2) + g of slab i / 2.
constexpr int kRows = 2 * kSlabs;
struct Rows {
    mod::Row value[kRows];
    int q[kRows]; // as the program sees it; rows past the end repeat the last

    __device__ void find(const AttentionArguments& attention, int first_row, int lane) {
#pragma unroll
        for (int i = 0; i < kRows; ++i)
            q[i] = min(first_row + 8 * i + lane / 4, attention.q_len - 1) +
                   static_cast<int>(attention.q_offset);
    }
};
// The scale rides on the exponent where nothing needs the true score. A maximum of unscaled
// products is one of scores only when the scale is positive.
__device__ bool scales_early(const AttentionArguments& attention) {
    return mod::kHasScoreMod || mod::kReportsOutOfRange || !(attention.scale > 0);
}
struct Softmax {
    float maximum[kRows]; // of scores so far
    float sum[kRows];     // of exp(score - maximum), this thread's columns only
    float to_log2;        // score to exponent of 2

    // Natural; total: of all threads' columns.
    __device__ float lse(int row, float total) const {
        const float max_log2 = __fmul_rn(maximum[row], to_log2), more = log2_fast(total);
        return fabsf(max_log2) < kLargeExponent ? (max_log2 + more) * kLn2
                                                : maximum[row] * (to_log2 * kLn2) + more * kLn2;
    }
};

__device__ void multiply_query_key(Scores& scores, QueryTile query, int first_row, KeyTile key) {
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab)
#pragma unroll
        for (int column = 0; column < kKeyColumns; ++column)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                scores[slab][column][i] = 0;
#pragma unroll
    for (int k = 0; k < QueryTile::kPaddedColumns; k += kStepK<Element>) {
        OperandA<Element> a[kSlabs];
#pragma unroll
        for (int slab = 0; slab < kSlabs; ++slab)
            a[slab] = load_a(query, first_row + 16 * slab, k);
#pragma unroll
        for (int column = 0; column < kKeyColumns; column += 2) {
            OperandB<Element> b[2];
            load_b(b, key, 8 * column, k);
#pragma unroll
            for (int slab = 0; slab < kSlabs; ++slab) {
                multiply(scores[slab][column], a[slab], b[0]);
                multiply(scores[slab][column + 1], a[slab], b[1]);
            }
        }
    }
}

// Calls visit(row, element, inside) for this thread's rows at one of its 2 * kKeyColumns columns.
// What the program computes once for a column lives only that long.
template <typename Visit>
__device__ void visit_column(int column, const AttentionArguments& attention,
                             const mod::Arguments& arguments, const HeadPlace& place,
                             const Rows& rows, int first_kv, Visit visit) {
    const int position = first_kv + column / 2 * 8 + lane_index() % 4 * 2 + column % 2;
    const bool inside = position < attention.kv_len;
    const int kv = min(position, attention.kv_len - 1) + static_cast<int>(attention.kv_offset);
    const mod::Column value =
        mod::at_column(arguments, place.launch, place.head, place.b, place.h, place.h_kv, kv);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
        const mod::At at{arguments, place.launch, place.head, rows.value[row], value,
                         place.b,   place.h,      place.h_kv, rows.q[row],     kv};
        visit(row, at, inside);
    }
}

__device__ void change_scores(Scores& scores, float scale, const AttentionArguments& attention,
                              const mod::Arguments& arguments, const HeadPlace& place,
                              const Rows& rows, int first_kv) {
    constexpr int kGroup = 4; // columns whose reads may be in flight together
#pragma unroll
    for (int group = 0; group < 2 * kKeyColumns; group += kGroup) {
        if (first_kv + 4 * group >= attention.kv_len) break;
#pragma unroll
        for (int column = group; column < group + kGroup; ++column)
            visit_column(column, attention, arguments, place, rows, first_kv,
                         [&](int row, const mod::At& at, bool inside) {
                             float& score = scores[row / 2][column / 2][row % 2 * 2 + column % 2];
                             score *= scale;
                             if constexpr (mod::kReportsOutOfRange)
                                 if (inside) mod::report_out_of_range(at, score);
                             if constexpr (mod::kHasScoreMod) score = mod::score(at, score);
                         });
    }
}

// The mask is evaluated into bits first: that loop need not be unrolled, as scores in registers
// ask.
__device__ void hide_scores(Scores& scores, const AttentionArguments& attention,
                            const mod::Arguments& arguments, const HeadPlace& place,
                            const Rows& rows, int first_kv) {
    static_assert(2 * kKeyColumns <= 32);
    unsigned visible[kRows] = {};
#pragma unroll(mod::kHasMask ? 4 : 2 * kKeyColumns)
    for (int column = 0; column < 2 * kKeyColumns; ++column)
        visit_column(column, attention, arguments, place, rows, first_kv,
                     [&](int row, const mod::At& at, bool inside) {
                         const bool seen = inside && (!mod::kHasMask || mod::visible(at));
                         visible[row] |= static_cast<unsigned>(seen) << column;
                     });
#pragma unroll
    for (int column = 0; column < 2 * kKeyColumns; ++column)
#pragma unroll
        for (int row = 0; row < kRows; ++row)
            if (!(visible[row] >> column & 1))
                scores[row / 2][column / 2][row % 2 * 2 + column % 2] = negative_infinity();
}

// scores become exp(score - maximum); output and sums follow a maximum that has moved.
__device__ void update_softmax(Scores& scores, Softmax& softmax, Output& output) {
    float shrink[kRows];
    bool moved = false;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
        const float before = softmax.maximum[row];
        float maximum = before;
#pragma unroll
        for (int column = 0; column < kKeyColumns; ++column) {
            const float(&s)[4] = scores[row / 2][column];
            maximum = fmaxf(maximum, fmaxf(s[row % 2 * 2], s[row % 2 * 2 + 1]));
        }
        maximum = quad_max(maximum);
        softmax.maximum[row] = maximum;
        moved |= maximum != before;
        // Nothing visible yet: any finite max_log2 gives exp(-inf) = 0. Products are rounded alike,
        // so that a maximum that stays shrinks by exactly 1.
        const float reference = maximum == negative_infinity() ? 0 : maximum;
        float max_log2 = __fmul_rn(reference, softmax.to_log2);
        shrink[row] = exp2_fast(__fmul_rn(before, softmax.to_log2) - max_log2);
        if (__any_sync(0xffffffffu, fabsf(max_log2) >= kLargeExponent)) {
            shrink[row] = exp2_fast((before - reference) * softmax.to_log2);
            max_log2 = 0;
#pragma unroll
            for (int column = 0; column < kKeyColumns; ++column)
#pragma unroll
                for (int side = 0; side < 2; ++side)
                    scores[row / 2][column][row % 2 * 2 + side] -= reference;
        }
        float sum = 0;
#pragma unroll
        for (int column = 0; column < kKeyColumns; ++column)
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                float& s = scores[row / 2][column][row % 2 * 2 + side];
                s = exp2_fast(s * softmax.to_log2 - max_log2);
                sum += s;
            }
        softmax.sum[row] = softmax.sum[row] * shrink[row] + sum;
    }
    if (__any_sync(0xffffffffu, moved)) {
#pragma unroll
        for (int slab = 0; slab < kSlabs; ++slab)
#pragma unroll
            for (int column = 0; column < kValueColumns; ++column)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    output[slab][column][i] *= shrink[2 * slab + i / 2];
    }
}

// output += weights * V.
__device__ void add_values(Output& output, const Scores& p, ValueTile value) {
    // The matrix units round their sums toward zero. Floats are summed over one tile there, and
    // over tiles by rounded additions, so that long sequences keep f32 accuracy.
    constexpr bool kSeparateSum = sizeof(Element) == 4;
    constexpr int kGroup = kSeparateSum ? 2 : kValueColumns;
    constexpr int kSteps = mod::kKeyTile / kStepK<Element>;
    OperandA<Element> a[kSteps][kSlabs];
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
        for (int slab = 0; slab < kSlabs; ++slab)
            a[step][slab] = operand_from_accumulators<Element>(p[slab], step);
#pragma unroll
    for (int first = 0; first < kValueColumns; first += kGroup) {
        float sum[kSlabs][kGroup][4];
#pragma unroll
        for (int slab = 0; slab < kSlabs; ++slab)
#pragma unroll
            for (int column = 0; column < kGroup; ++column)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    sum[slab][column][i] = kSeparateSum ? 0 : output[slab][first + column][i];
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
#pragma unroll
            for (int column = 0; column < kGroup; column += 2) {
                OperandB<Element> b[2];
                load_b_transposed(b, value, 8 * (first + column), step * kStepK<Element>);
#pragma unroll
                for (int slab = 0; slab < kSlabs; ++slab) {
                    multiply(sum[slab][column], a[step][slab], b[0]);
                    multiply(sum[slab][column + 1], a[step][slab], b[1]);
                }
            }
        }
#pragma unroll
        for (int slab = 0; slab < kSlabs; ++slab)
#pragma unroll
            for (int column = 0; column < kGroup; ++column)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float& total = output[slab][first + column][i];
                    total = kSeparateSum ? total + sum[slab][column][i] : sum[slab][column][i];
                }
    }
}

// The output's rows of one warp, on their way to memory.
using Staging = Tile<float, 16 * kSlabs, mod::kHeadDimV>;
static_assert(mod::kWarps * Staging::kBytes <= mod::kSharedBytes);

// Of a sink's weight, relative to the maximum of its row.
__device__ float exponent_of_sink(const AttentionArguments& attention,
                                  const mod::Arguments& arguments, int b, int h, int row,
                                  float maximum) {
    const int q = min(row, attention.q_len - 1) + static_cast<int>(attention.q_offset);
    const float sink = mod::sink(arguments, b, h, h / (attention.heads / attention.kv_heads), q);
    return (sink - (scales_early(attention) ? maximum : maximum * attention.scale)) * kLog2E;
}

__device__ void store_results(const AttentionArguments& attention, const Softmax& softmax,
                              const mod::Arguments& arguments, const Output& output,
                              unsigned shared) {
    // Found again, so that the loop need not keep them in registers.
    const Work work(attention, block_index_again());
    const int b = work.head / attention.heads, h = work.head % attention.heads;
    const int lane = lane_index(), warp = static_cast<int>(threadIdx.x) / 32;
    const int first_row = work.first_row + warp * 16 * kSlabs;
    const Staging staging{shared + warp * Staging::kBytes};
    float* const lse = static_cast<float*>(attention.lse.data) + b * attention.lse.stride_b +
                       h * attention.lse.stride_h;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
        const float sum = quad_sum(softmax.sum[i]);
        const bool nothing_visible = softmax.maximum[i] == negative_infinity();
        float whole = sum;
        if constexpr (mod::kHasSink)
            whole += exp2_fast(exponent_of_sink(attention, arguments, b, h,
                                                first_row + 8 * i + lane / 4, softmax.maximum[i]));
        const float factor = nothing_visible ? 0 : reciprocal_fast(whole);
#pragma unroll
        for (int column = 0; column < kValueColumns; ++column) {
            const float(&o)[4] = output[i / 2][column];
            store_shared(staging.at(8 * i + lane / 4, 8 * column + lane % 4 * 2),
                         o[i % 2 * 2] * factor, o[i % 2 * 2 + 1] * factor);
        }
        const int row = first_row + 8 * i + lane / 4;
        if (attention.lse.data && lane % 4 == 0 && row < attention.q_len)
            lse[row * attention.lse.stride_s] =
                nothing_visible ? negative_infinity() : softmax.lse(i, sum);
    }
    __syncwarp();
    if (attention.o_flags & kOutputF32)
        store_rows(Plane<float>(attention.o, b, h), staging, first_row, attention.q_len);
    else
        store_rows(Plane<Element>(attention.o, b, h), staging, first_row, attention.q_len);
}

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    flexc_forward(const __grid_constant__ AttentionArguments attention,
                  const __grid_constant__ mod::Arguments arguments) {
    const Work work(attention, static_cast<int>(blockIdx.x));
    const HeadPlace place(attention, arguments, work.head);
    const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16 * kSlabs; // within the tile
    const int first_row = work.first_row + warp_row;

    const unsigned shared = shared_address(shared_memory);
    const QueryTile query{shared};
    const auto stage = [&](int step) {
        return shared + QueryTile::kBytes + step % mod::kStages * kStageBytes;
    };
    TileWalk walk(
        attention.block_mask, place.b, place.h, work.first_row / mod::kQueryTile,
        tiles_between(place.keys_of(work.first_row,
                                    min(work.first_row + mod::kQueryTile, attention.q_len) - 1),
                      attention.kv_len, mod::kKeyTile));
    TileSource<kThreads, KeyTile> keys(Plane<Element>(attention.k, place.b, place.h_kv),
                                       walk.tile() * mod::kKeyTile);
    TileSource<kThreads, ValueTile> values(Plane<Element>(attention.v, place.b, place.h_kv),
                                           walk.tile() * mod::kKeyTile);
    const auto start_loading = [&](const TileWalk& at, int tile_before) {
        if (at.is_done()) return;
        const int distance = (at.tile() - tile_before) * mod::kKeyTile;
        keys.advance(distance);
        values.advance(distance);
        const int rows_left = attention.kv_len - at.tile() * mod::kKeyTile;
        keys.load(KeyTile{stage(at.step())}, rows_left);
        values.load(ValueTile{stage(at.step()) + KeyTile::kBytes}, rows_left);
    };

    TileSource<kThreads, QueryTile>(Plane<Element>(attention.q, place.b, place.h), work.first_row)
        .load(query, attention.q_len - work.first_row);
    clear_padding<kThreads>(query);
#pragma unroll 1
    for (int i = 0; i < mod::kStages; ++i) {
        clear_padding<kThreads>(KeyTile{stage(i)});
        clear_padding<kThreads>(ValueTile{stage(i) + KeyTile::kBytes});
    }

    Rows rows;
    Softmax softmax;
    Output output;
    const bool scale_early = scales_early(attention);
    rows.find(attention, first_row, lane_index());
    softmax.to_log2 = scale_early ? kLog2E : attention.scale * kLog2E;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
        rows.value[i] = mod::at_row(arguments, place.launch, place.head, place.b, place.h,
                                    place.h_kv, rows.q[i]);
        softmax.maximum[i] = negative_infinity();
        softmax.sum[i] = 0;
    }
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab)
#pragma unroll
        for (int column = 0; column < kValueColumns; ++column)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                output[slab][column][i] = 0;

    start_loading(walk, walk.tile());
    while (!walk.is_done()) {
        TileWalk next = walk;
        next.advance();
        wait_for_copies();
        __syncthreads(); // this tile is here, and everyone has left the one before
        start_loading(next, walk.tile());

        const unsigned here = stage(walk.step());
        Scores scores;
        multiply_query_key(scores, query, warp_row, KeyTile{here});

        const int first_kv = walk.tile() * mod::kKeyTile;
        const int last_kv = first_kv + mod::kKeyTile - 1;
        rows.find(attention, first_row, lane_again());
        if (scale_early)
            change_scores(scores, attention.scale, attention, arguments, place, rows, first_kv);
        const bool wholly_visible =
            last_kv < attention.kv_len &&
            (!mod::kHasMask || walk.is_full() ||
             (mod::kHasBand && mod::kBandIsExact &&
              place.band_holds(first_row, first_row + 16 * kSlabs - 1, first_kv, last_kv)));
        if (!wholly_visible) hide_scores(scores, attention, arguments, place, rows, first_kv);
        update_softmax(scores, softmax, output);
        add_values(output, scores, ValueTile{here + KeyTile::kBytes});
        walk = next;
    }
    wait_for_copies();
    __syncthreads(); // the tiles make room for the output
    store_results(attention, softmax, arguments, output, shared);
}
