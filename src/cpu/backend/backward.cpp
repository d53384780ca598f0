// Joint backward: for a tile of keys, all query rows that see it; dk and dv are summed in the tile,
// dq in memory, captured gradients in the emitted code.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

#include "cpu/backend/attention.h"
#include "cpu/backend/gradient_copies.h"
#include "cpu/backend/tensors.h"
#include "cpu/backend/threads.h"
#include "cpu/backend/tile_range.h"
#include "cpu/backend/tiles.h"
#include "support/amounts.h"
#include "support/arena.h"

namespace flexc::cpu {

namespace {

constexpr std::int64_t kKeyTile = 128;
constexpr std::int64_t kQueryTile = 64;
static_assert(kKeyTile <= kMaxColumns && kKeyTile % kColumnUnit == 0);

// Beyond this, f32 represents an lse with an error of 2^-14 or more, and weights e^(score - lse) no
// longer sum to 1; at scores of 1e10, an lse cannot be told from the maximum at all. The maximum
// and the sum of such rows are computed again from their scores.
constexpr float kLargestLse = 1024;
// Largest relative difference between lse and the value computed again; if it is larger, lse
// includes keys that are not here.
constexpr float kSameLse = 0x1p-22f;

// Scratch memory of a lane.
struct Scratch {
    float *keys, *keys_transposed, *values_transposed, *dk, *dv, *scores, *gradients;
    float *row_max, *row_sum, *row_correction;
    std::uint64_t* emitted;
};

// How work is divided into units: a range of (b, h_kv) pairs with a part of the key tiles. Each
// stream computes every n-th unit, in order, and results of streams are added in the order of
// streams. All of it depends on sizes only, so that every sum has the same order for any number of
// threads.
struct Split {
    std::int64_t batch_units = 1, head_units = 1,
                 chunks = 1; // 1: the variable is looped over inside
    std::uint32_t variables = 0;
    std::int64_t units() const { return batch_units * head_units * chunks; }
};

// Units enough for any machine, but none of less than kLeastTiles. Each chunk has a dq of its own.
constexpr std::int64_t kEnoughUnits = 64, kLeastTiles = 2;
constexpr std::int64_t kMaxChunkBytes = std::int64_t{128} << 20;

Split split_of(const Launch& launch, std::uint32_t allowed) {
    const AttentionArguments& in = *launch.arguments;
    Split split;
    if ((allowed & kSeparatesB) != 0 && in.batch > 1) {
        split.batch_units = in.batch;
        split.variables |= kSeparatesB;
    }
    if ((allowed & kSeparatesHKv) != 0 && in.kv_heads > 1) {
        split.head_units = in.kv_heads;
        split.variables |= kSeparatesHKv;
    }
    if ((allowed & kSeparatesKv) != 0) {
        const std::int64_t dq_bytes = std::int64_t{in.batch} * in.heads * in.q_len *
                                      launch.shape->head_dim *
                                      static_cast<std::int64_t>(sizeof(float));
        const std::int64_t whole = split.units();
        split.chunks = std::max<std::int64_t>(
            1, std::min({(kEnoughUnits + whole - 1) / whole, in.kv_len / (kLeastTiles * kKeyTile),
                         kMaxChunkBytes / std::max<std::int64_t>(dq_bytes, 1)}));
    }
    if (split.chunks > 1) split.variables |= kSeparatesKv;
    return split;
}

class Backward {
  public:
    // is_small: work is not divided, to need the least memory.
    explicit Backward(const Launch& launch, bool is_small = false)
        : launch_(launch), shape_(*launch.shape), in_(*launch.arguments), arena_(launch.workspace),
          key_tiles_((in_.kv_len + kKeyTile - 1) / kKeyTile),
          choice_(is_small ? GradientSplit{.variables = 0}
                           : GradientCopies::choose(launch,
                                                    [&](std::uint32_t variables) {
                                                        return split_of(launch, variables).units();
                                                    })),
          split_(split_of(launch, choice_.variables)),
          threads_(useful_threads(launch.threads, multiplications(in_, shape_))),
          gradients_(launch, split_.variables, choice_.streams, threads_, arena_) {
        query_tile_ = std::min(kQueryTile, power_of_two(in_.q_len));
        query_tiles_ = (in_.q_len + query_tile_ - 1) / query_tile_;
        padded_rows_ = query_tiles_ * query_tile_;
        heads_ = std::int64_t{in_.batch} * in_.heads;
        const std::int64_t rows = heads_ * padded_rows_;
        queries_ = arena_.take<float>(rows * shape_.head_dim);
        d_outs_ = arena_.take<float>(rows * shape_.head_dim_v);
        reference_ = arena_.take<float>(rows);
        log2_sum_ = arena_.take<float>(rows);
        delta_ = arena_.take<float>(rows);
        sink_delta_ = arena_.take<float>(shape_.learns_sink ? rows : 0);
        queries_are_ = arena_.take<Magnitude>(heads_ * query_tiles_);
        finite_d_outs_ = arena_.take<bool>(heads_ * query_tiles_);
        has_dq_ = arena_.take<bool>(support::product(split_.chunks, heads_, query_tiles_));
        dq_ = arena_.take<float>(support::product(split_.chunks, rows, shape_.head_dim));
        mask_results_ = MaskResultsOfEntries(launch, arena_);
        support::Arena lane(nullptr);
        take_scratch(lane);
        lane_bytes_ = static_cast<std::int64_t>(lane.used());
        lanes_ = arena_.take<char>(lane_bytes_ * threads_);
    }

    std::size_t workspace() const { return arena_.used(); }

    void run(const TileFunctions& functions) {
        evaluate_mask_for_all_heads(functions);
        for_units(*launch_.pool, threads_, heads_ * query_tiles_,
                  [&](std::int64_t unit, int lane) { prepare(functions, unit, lane); });
        for_units(*launch_.pool, threads_, choice_.streams, [&](std::int64_t stream, int lane) {
            const Scratch scratch = scratch_of(lane);
            const std::uint64_t* words = gradients_.begin(stream);
            for (std::int64_t unit = stream; unit < split_.units(); unit += choice_.streams)
                do_unit(functions, unit, scratch, words);
        });
        for_units(*launch_.pool, threads_, heads_ * query_tiles_,
                  [&](std::int64_t unit, int) { store_dq(unit); });
        gradients_.finish();
    }

  private:
    static std::int64_t multiplications(const AttentionArguments& in, const KernelShape& shape) {
        const std::int64_t of_score = 3 * shape.head_dim + 2 * shape.head_dim_v;
        return std::int64_t{in.batch} * in.heads * in.q_len * in.kv_len * of_score;
    }

    Scratch take_scratch(support::Arena& arena) const {
        const std::int64_t dim = shape_.head_dim, dim_v = shape_.head_dim_v;
        return {.keys = arena.take<float>(kKeyTile * dim),
                .keys_transposed = arena.take<float>(kKeyTile * dim),
                .values_transposed = arena.take<float>(kKeyTile * dim_v),
                .dk = arena.take<float>(kKeyTile * dim),
                .dv = arena.take<float>(kKeyTile * dim_v),
                .scores = arena.take<float>(query_tile_ * kKeyTile),
                .gradients = arena.take<float>(query_tile_ * kKeyTile),
                .row_max = arena.take<float>(query_tile_),
                .row_sum = arena.take<float>(query_tile_),
                .row_correction = arena.take<float>(query_tile_),
                .emitted = arena.take<std::uint64_t>(shape_.scratch_arrays * kMaxColumns + 1)};
    }

    Scratch scratch_of(int lane) const {
        support::Arena arena(lanes_ + lane * lane_bytes_);
        return take_scratch(arena);
    }

    // Uses all threads; otherwise those that compute heads of one tile would all evaluate its mask.
    void evaluate_mask_for_all_heads(const TileFunctions& functions) {
        if (!mask_results_.begin() || threads_ == 1) return;
        for_units(
            *launch_.pool, threads_, in_.batch * query_tiles_, [&](std::int64_t unit, int lane) {
                const std::int64_t b = unit / query_tiles_;
                Tile tile = tile_of(b, 0, scratch_of(lane));
                const VisibleBand band = visible_band(functions, launch_, launch_.words, tile);
                const VisibleTiles tiles(in_.block_mask, b, 0);
                for (std::int64_t key_tile = 0; key_tile < key_tiles_; ++key_tile)
                    enter(functions, tile, band, tiles, unit % query_tiles_,
                          keys_of(b, 0, key_tile));
            });
    }

    // Computes rows of q and d_out in f32, the reference of their weights, and delta = rowsum(d_out
    // * o) - d_lse.
    void prepare(const TileFunctions& functions, std::int64_t unit, int lane) {
        const std::int64_t head = unit / query_tiles_, first = unit % query_tiles_ * query_tile_;
        const Rows rows{head / in_.heads, head % in_.heads, first,
                        std::min(query_tile_, in_.q_len - first)};
        const int dim = shape_.head_dim, dim_v = shape_.head_dim_v;
        const std::int64_t place = head * padded_rows_ + first;
        queries_are_[unit] =
            load_rows(in_.q, shape_.dtype, rows, dim, queries_ + place * dim, query_tile_);
        // o is only needed here, a row at a time.
        const DType o_type = (in_.o_flags & kOutputF32) != 0 ? DType::f32 : shape_.dtype;
        float* d_outs = d_outs_ + place * dim_v;
        float o[kMaxHeadDim];
        finite_d_outs_[unit] =
            load_rows(in_.d_out, shape_.dtype, rows, dim_v, d_outs, query_tile_).is_finite;
        float* lse = reference_ + place;
        load_rows(in_.lse, DType::f32, rows, 1, lse, query_tile_);
        std::fill_n(log2_sum_ + place, query_tile_, 0.0f);
        if (std::any_of(lse, lse + rows.count, is_large))
            measure_rows(functions, rows, unit, scratch_of(lane));
        const float* sinks =
            functions.sink == nullptr ? nullptr : find_sinks(functions, rows, lane);
        for (std::int64_t row = 0; row < rows.count; ++row) {
            const Rows one{rows.b, rows.h, first + row, 1};
            load_rows(in_.o, o_type, one, dim_v, o, 1);
            float sum = 0, d_lse = 0;
            for (int d = 0; d < dim_v; ++d)
                sum += o[d] * d_outs[row * dim_v + d];
            if (in_.d_lse.data != nullptr) load_rows(in_.d_lse, DType::f32, one, 1, &d_lse, 1);
            if (sinks != nullptr) add_sink(sinks[row], place + row, sum, d_lse);
            delta_[place + row] = sum - d_lse;
        }
        for (std::int64_t chunk = 0; chunk < split_.chunks; ++chunk)
            has_dq(chunk, unit) = false;
    }

    // Returns the sink of each row. NaN counts as infinite.
    const float* find_sinks(const TileFunctions& functions, const Rows& rows, int lane) const {
        const Scratch scratch = scratch_of(lane);
        Tile tile = tile_without_keys(rows, scratch);
        set_rows(tile, {rows.first, rows.first + rows.count});
        functions.sink(launch_.words, &tile);
        return scratch.row_max;
    }
    // Sets the rows of a tile with one key, as which the sink is computed.
    void set_rows(Tile& tile, Range rows) const {
        tile.q_begin = rows.begin + in_.q_offset;
        tile.q_row = rows.begin + launch_.q_row;
        tile.rows = rows.end - rows.begin;
        tile.columns = 1;
    }

    // Makes the row's weights include the sink: they decrease by 2^more. product: rowsum(d_out *
    // o). d_lse refers to weights without the sink and is scaled to match.
    void add_sink(float sink, std::int64_t place, float product, float& d_lse) const {
        // From here on, weights are negligible beside d_lse.
        constexpr double kMost = 56;
        double more = 0, share = 0;
        if (reference_[place] != -std::numeric_limits<float>::infinity()) {
            const double above =
                (double{sink} - reference_[place]) * std::numbers::log2e - log2_sum_[place];
            more = std::max(above, 0.0) +
                   std::log1p(std::exp2(-std::abs(above))) * std::numbers::log2e;
            share = 1 / (1 + std::exp2(-above));
        }
        if (d_lse != 0) {
            more = std::min(more, kMost);
            d_lse = static_cast<float>(d_lse * std::exp2(more));
        }
        log2_sum_[place] = static_cast<float>(log2_sum_[place] + more);
        if (shape_.learns_sink) sink_delta_[place] = static_cast<float>(share * product);
    }

    // Adds the gradients of what the sinks of one head read: those of a key whose value is zero.
    void learn_sinks(TileFunction function, std::int64_t b, std::int64_t h, const Scratch& scratch,
                     const std::uint64_t* words) const {
        Tile tile = tile_of(b, h, scratch);
        std::fill_n(scratch.row_sum, query_tile_, 0.0f);
        tile.reference = tile.log2_sum = scratch.row_sum;
        const float* deltas = sink_delta_ + (b * in_.heads + h) * padded_rows_;
        for (std::int64_t begin = 0; begin < in_.q_len;) {
            // Skip rows without a gradient, whose derivatives may be infinite.
            std::int64_t end = begin;
            while (end < in_.q_len && end - begin < query_tile_ && deltas[end] != 0)
                ++end;
            if (end == begin) {
                ++begin;
                continue;
            }
            set_rows(tile, {begin, end});
            tile.delta = deltas + begin;
            for (std::int64_t row = 0; row < tile.rows; ++row)
                scratch.gradients[row * tile.stride] = 0;
            function(words, &tile);
            begin = end;
        }
    }

    static bool is_large(float lse) { return std::isfinite(lse) && std::abs(lse) > kLargestLse; }

    // Computes the maximum and sum of rows whose lse is too large to be exact, with the forward
    // functions, from the same scores as the backward functions see.
    void measure_rows(const TileFunctions& functions, const Rows& rows, std::int64_t query_unit,
                      const Scratch& scratch) {
        Tile tile = tile_without_keys(rows, scratch);
        const std::int64_t query_tile = query_unit % query_tiles_;
        const VisibleBand band = visible_band(functions, launch_, launch_.words, tile);
        const VisibleTiles tiles(in_.block_mask, rows.b, rows.h);
        for (std::int64_t key_tile = 0; key_tile < key_tiles_; ++key_tile) {
            const Rows keys = keys_of(rows.b, tile.h_kv, key_tile);
            const auto [columns, is_full] = enter(functions, tile, band, tiles, query_tile, keys);
            if (columns.empty()) continue;
            load_transposed(in_.k, shape_.dtype, keys, shape_.head_dim, scratch.keys_transposed,
                            kKeyTile, round_up(keys.count, kColumnUnit));
            mma_qk(tile, query_unit, scratch, columns.begin - keys.first);
            const bool full = is_full && functions.forward_full != nullptr;
            (full ? functions.forward_full : functions.forward)(launch_.words, &tile);
        }
        for (std::int64_t row = 0; row < rows.count; ++row) {
            const std::int64_t place = query_unit * query_tile_ + row;
            const float lse = reference_[place], maximum = scratch.row_max[row];
            if (!is_large(lse) || !std::isfinite(maximum)) continue;
            const double sum = scratch.row_sum[row];
            const auto own = static_cast<float>(double{maximum} + std::log(sum));
            const bool is_same = std::abs(own - lse) <= kSameLse * std::abs(lse);
            // If lse includes more keys than these, only lse is known; no weight exceeds 1.
            reference_[place] = is_same ? maximum : std::max(lse, maximum);
            log2_sum_[place] = is_same ? static_cast<float>(std::log2(sum)) : 0.0f;
        }
    }

    // Returns a tile with running maxima and sums of rows that have seen no key.
    Tile tile_without_keys(const Rows& rows, const Scratch& scratch) const {
        std::fill_n(scratch.row_max, rows.count, -std::numeric_limits<float>::infinity());
        std::fill_n(scratch.row_sum, rows.count, 0.0f);
        Tile tile = tile_of(rows.b, rows.h, scratch);
        tile.row_max = scratch.row_max;
        tile.row_sum = scratch.row_sum;
        tile.row_correction = scratch.row_correction;
        return tile;
    }

    Tile tile_of(std::int64_t b, std::int64_t h, const Scratch& scratch) const {
        Tile tile{};
        tile.scores = scratch.scores;
        tile.gradients = scratch.gradients;
        tile.stride = kKeyTile;
        tile.scratch = scratch.emitted;
        tile.b = launch_.request + b;
        tile.q_len = in_.q_len;
        tile.kv_len = in_.kv_len;
        tile.h = h;
        tile.h_kv = h / (in_.heads / in_.kv_heads);
        tile.scale = in_.scale;
        return tile;
    }

    Rows keys_of(std::int64_t b, std::int64_t h_kv, std::int64_t key_tile) const {
        const std::int64_t first = key_tile * kKeyTile;
        return {b, h_kv, first, std::min<std::int64_t>(kKeyTile, in_.kv_len - first)};
    }

    Range rows_in(std::int64_t query_tile) const {
        return {query_tile * query_tile_,
                std::min<std::int64_t>((query_tile + 1) * query_tile_, in_.q_len)};
    }

    // Returns the columns of a pair of tiles that may be visible, rounded to the unit, to which
    // `tile` is set; none if nothing is visible.
    VisibleColumns enter(const TileFunctions& functions, Tile& tile, const VisibleBand& band,
                         const VisibleTiles& tiles, std::int64_t query_tile,
                         const Rows& keys) const {
        const Range rows = rows_in(query_tile);
        const Range seen = band.columns_of(rows, in_.kv_len);
        const Range inside{std::max(keys.first, seen.begin / kColumnUnit * kColumnUnit),
                           std::min(keys.first + keys.count, seen.end)};
        tile.q_begin = rows.begin + in_.q_offset;
        tile.q_row = rows.begin + launch_.q_row;
        tile.rows = rows.end - rows.begin;
        const VisibleColumns visible = find_visible_columns(
            functions, launch_, band, tiles, mask_results_.of(keys.b), tile, rows, inside);
        tile.kv_begin = visible.columns.begin + in_.kv_offset;
        tile.kv_row = visible.columns.begin + launch_.kv_row;
        tile.columns = visible.columns.end - visible.columns.begin;
        return visible;
    }

    // `skipped`: columns of the keys before the tile's first.
    void mma_qk(const Tile& tile, std::int64_t query_unit, const Scratch& scratch,
                std::int64_t skipped) const {
        const int dim = shape_.head_dim;
        const auto stride = static_cast<int>(kKeyTile);
        multiply({padded_rows(tile), padded_columns(tile), dim, dim, stride, stride},
                 queries_ + query_unit * query_tile_ * dim, scratch.keys_transposed + skipped,
                 scratch.scores);
    }
    static int padded_rows(const Tile& tile) { return static_cast<int>(power_of_two(tile.rows)); }
    static int padded_columns(const Tile& tile) {
        return static_cast<int>(round_up(tile.columns, kColumnUnit));
    }

    // A chunk's share of dq for one query tile of a head, and whether it has any.
    float* dq_of(std::int64_t chunk, std::int64_t query_unit) const {
        return dq_ + (chunk * heads_ * query_tiles_ + query_unit) * query_tile_ * shape_.head_dim;
    }
    bool& has_dq(std::int64_t chunk, std::int64_t query_unit) const {
        return has_dq_[chunk * heads_ * query_tiles_ + query_unit];
    }

    void do_unit(const TileFunctions& functions, std::int64_t unit, const Scratch& scratch,
                 const std::uint64_t* words) {
        const std::int64_t chunk = unit % split_.chunks, rest = unit / split_.chunks;
        auto share = [](std::int64_t part, std::int64_t parts, std::int64_t whole) {
            return Range{part * whole / parts, (part + 1) * whole / parts};
        };
        const Range batches = share(rest / split_.head_units, split_.batch_units, in_.batch);
        const Range kv_heads = share(rest % split_.head_units, split_.head_units, in_.kv_heads);
        const Range tiles = share(chunk, split_.chunks, key_tiles_);
        for (std::int64_t b = batches.begin; b < batches.end; ++b)
            for (std::int64_t h_kv = kv_heads.begin; h_kv < kv_heads.end; ++h_kv) {
                for (std::int64_t tile = tiles.begin; tile < tiles.end; ++tile)
                    key_tile(functions, b, h_kv, tile, chunk, scratch, words);
                if (functions.sink_backward == nullptr || chunk != 0) continue;
                const std::int64_t group = in_.heads / in_.kv_heads;
                for (std::int64_t h = h_kv * group; h < (h_kv + 1) * group; ++h)
                    learn_sinks(functions.sink_backward, b, h, scratch, words);
            }
    }

    void key_tile(const TileFunctions& functions, std::int64_t b, std::int64_t h_kv,
                  std::int64_t key_tile, std::int64_t chunk, const Scratch& scratch,
                  const std::uint64_t* words) {
        const Rows rows = keys_of(b, h_kv, key_tile);
        const std::int64_t padded = round_up(rows.count, kColumnUnit);
        const int dim = shape_.head_dim, dim_v = shape_.head_dim_v;
        const Magnitude keys_are = load_rows(in_.k, shape_.dtype, rows, dim, scratch.keys, padded);
        load_transposed(in_.k, shape_.dtype, rows, dim, scratch.keys_transposed, kKeyTile, padded);
        load_transposed(in_.v, shape_.dtype, rows, dim_v, scratch.values_transposed, kKeyTile,
                        padded);
        std::fill_n(scratch.dk, padded * dim, 0.0f);
        std::fill_n(scratch.dv, padded * dim_v, 0.0f);

        const std::int64_t group = in_.heads / in_.kv_heads;
        for (std::int64_t h = h_kv * group; h < (h_kv + 1) * group; ++h) {
            Tile tile = tile_of(b, h, scratch);
            const VisibleBand band = visible_band(functions, launch_, words, tile);
            const Range visible = band.rows_of({rows.first, rows.first + rows.count}, in_.q_len);
            if (visible.empty()) continue;
            const VisibleTiles tiles(in_.block_mask, b, h);
            for (std::int64_t q = visible.begin / query_tile_; q * query_tile_ < visible.end; ++q) {
                const std::int64_t head = b * in_.heads + h;
                tile.is_moderate = keys_are.is_moderate && is_moderate(in_.scale) &&
                                   queries_are_[head * query_tiles_ + q].is_moderate;
                const auto [columns, is_full] = enter(functions, tile, band, tiles, q, rows);
                if (columns.empty()) continue;
                const bool full = is_full && functions.backward_full != nullptr;
                pair_step(full ? functions.backward_full : functions.backward, tile, scratch, words,
                          {head, q, chunk, columns.begin - rows.first, keys_are.is_finite});
            }
        }
        store_rows(in_.dk, shape_.dtype, in_.dk_flags, rows, dim, scratch.dk, dim);
        store_rows(in_.dv, shape_.dtype, in_.dv_flags, rows, dim_v, scratch.dv, dim_v);
    }

    struct Pair {
        std::int64_t head, query_tile, chunk, skipped; // skipped: columns before the tile's first
        bool finite_keys;
    };

    // One tile of scores: five products around the emitted code.
    void pair_step(TileFunction function, Tile& tile, const Scratch& scratch,
                   const std::uint64_t* words, const Pair& pair) {
        const int dim = shape_.head_dim, dim_v = shape_.head_dim_v;
        const int rows = padded_rows(tile), columns = padded_columns(tile);
        const std::int64_t query_unit = pair.head * query_tiles_ + pair.query_tile;
        const std::int64_t place = query_unit * query_tile_;
        const float* queries = queries_ + place * dim;
        const float* d_outs = d_outs_ + place * dim_v;
        tile.reference = reference_ + place;
        tile.log2_sum = log2_sum_ + place;
        tile.delta = delta_ + place;
        const auto stride = static_cast<int>(kKeyTile);
        mma_qk(tile, query_unit, scratch, pair.skipped);
        multiply({rows, columns, dim_v, dim_v, stride, stride}, d_outs,
                 scratch.values_transposed + pair.skipped, scratch.gradients);
        function(words, &tile);
        clear_padding(scratch.scores, tile, rows, columns);
        clear_padding(scratch.gradients, tile, rows, columns);

        auto add = [](bool finite, const Product& product, const float* left, const float* right,
                      float* out) {
            (finite ? multiply : multiply_skipping_zeros)(product, left, right, out);
        };
        add(finite_d_outs_[query_unit], {columns, dim_v, rows, stride, dim_v, dim_v, true, true},
            scratch.scores, d_outs, scratch.dv + pair.skipped * dim_v);
        add(queries_are_[query_unit].is_finite, {columns, dim, rows, stride, dim, dim, true, true},
            scratch.gradients, queries, scratch.dk + pair.skipped * dim);
        bool& has_dq = this->has_dq(pair.chunk, query_unit);
        add(pair.finite_keys, {rows, dim, columns, stride, dim, dim, false, has_dq},
            scratch.gradients, scratch.keys + pair.skipped * dim, dq_of(pair.chunk, query_unit));
        has_dq = true;
    }

    static void clear_padding(float* matrix, const Tile& tile, int rows, int columns) {
        for (std::int64_t row = 0; row < rows; ++row) {
            const std::int64_t from = row < tile.rows ? tile.columns : 0;
            std::fill(matrix + row * kKeyTile + from, matrix + row * kKeyTile + columns, 0.0f);
        }
    }

    void store_dq(std::int64_t unit) {
        const std::int64_t head = unit / query_tiles_, first = unit % query_tiles_ * query_tile_;
        const Rows rows{head / in_.heads, head % in_.heads, first,
                        std::min(query_tile_, in_.q_len - first)};
        const int dim = shape_.head_dim;
        float* sum = nullptr;
        for (std::int64_t chunk = 0; chunk < split_.chunks; ++chunk) {
            if (!has_dq(chunk, unit)) continue;
            float* part = dq_of(chunk, unit);
            if (sum == nullptr)
                sum = part;
            else
                for (std::int64_t i = 0; i < rows.count * dim; ++i)
                    sum[i] += part[i];
        }
        if (sum == nullptr) {
            sum = dq_of(0, unit);
            std::fill_n(sum, rows.count * dim, 0.0f);
        }
        store_rows(in_.dq, shape_.dtype, in_.dq_flags, rows, dim, sum, dim);
    }

    const Launch& launch_;
    const KernelShape& shape_;
    const AttentionArguments& in_;
    support::Arena arena_;
    std::int64_t key_tiles_;
    GradientSplit choice_;
    Split split_;
    int threads_;
    GradientCopies gradients_;
    std::int64_t query_tile_, query_tiles_, padded_rows_, heads_, lane_bytes_;
    float *queries_, *d_outs_, *reference_, *log2_sum_, *delta_, *dq_;
    float* sink_delta_;      // what the sink gets: rowsum(d_out * o) times its weight
    Magnitude* queries_are_; // of each query tile
    bool* finite_d_outs_;    // likewise
    bool* has_dq_;           // of each chunk and query tile
    MaskResultsOfEntries mask_results_;
    char* lanes_;
};

// One of many requests as a launch of its own: its tensors start at its rows.
class OneRequest {
  public:
    OneRequest(const Launch& all, int request) : arguments(*all.arguments), launch(all) {
        const Sequence& sequence = all.sequences->of(request);
        arguments.batch = 1;
        arguments.q_len = sequence.q_len;
        arguments.kv_len = sequence.kv_len;
        arguments.q_offset = sequence.q_start;
        const DType type = all.shape->dtype;
        const auto typed = [&](unsigned flags) {
            return (flags & kOutputF32) != 0 ? DType::f32 : type;
        };
        const auto move = [&](TensorArgument& tensor, DType element, long long row) {
            if (tensor.data == nullptr) return;
            const long long elements = request * tensor.stride_b + row * tensor.stride_s;
            tensor.data = static_cast<char*>(tensor.data) +
                          elements * static_cast<long long>(size_of_element(element));
        };
        move(arguments.q, type, sequence.q_row);
        move(arguments.k, type, sequence.kv_row);
        move(arguments.v, type, sequence.kv_row);
        move(arguments.o, typed(arguments.o_flags), sequence.q_row);
        move(arguments.lse, DType::f32, sequence.q_row);
        move(arguments.d_lse, DType::f32, sequence.q_row);
        move(arguments.d_out, type, sequence.q_row);
        move(arguments.dq, typed(arguments.dq_flags), sequence.q_row);
        move(arguments.dk, typed(arguments.dk_flags), sequence.kv_row);
        move(arguments.dv, typed(arguments.dv_flags), sequence.kv_row);
        launch.arguments = &arguments;
        launch.sequences = nullptr;
        launch.request = request;
        launch.q_row = sequence.q_row;
        launch.kv_row = sequence.kv_row;
    }
    OneRequest(const OneRequest&) = delete;
    OneRequest& operator=(const OneRequest&) = delete;

    // Clears the gradients of rows that take no part.
    void clear(std::int64_t first_query, std::int64_t queries, std::int64_t first_key,
               std::int64_t keys) const {
        const DType type = launch.shape->dtype;
        const std::array<float, kMaxHeadDim> zeros{};
        const int dim = launch.shape->head_dim, dim_v = launch.shape->head_dim_v;
        for (std::int64_t row = first_query; row < queries; ++row)
            for (int head = 0; head < arguments.heads; ++head)
                store_rows(arguments.dq, type, arguments.dq_flags, {0, head, row, 1}, dim,
                           zeros.data(), dim);
        for (std::int64_t row = first_key; row < keys; ++row)
            for (int head = 0; head < arguments.kv_heads; ++head) {
                store_rows(arguments.dk, type, arguments.dk_flags, {0, head, row, 1}, dim,
                           zeros.data(), dim);
                store_rows(arguments.dv, type, arguments.dv_flags, {0, head, row, 1}, dim_v,
                           zeros.data(), dim_v);
            }
    }

    AttentionArguments arguments;
    Launch launch;

  private:
    static std::size_t size_of_element(DType type) { return type == DType::f32 ? 4 : 2; }
};

} // namespace

// Requests are computed one after another, so that sums over them have a fixed order.
std::size_t backward_sequences_workspace(const Launch& launch) {
    AttentionArguments longest = *launch.arguments;
    longest.batch = 1;
    longest.q_len = std::max(longest.q_len, 1);
    longest.kv_len = std::max(longest.kv_len, 1);
    Launch one = launch;
    one.arguments = &longest;
    one.sequences = nullptr;
    one.workspace = nullptr;
    return Backward(one).workspace();
}

void backward_sequences(const TileFunctions& functions, const Launch& launch) {
    const std::size_t most = backward_sequences_workspace(launch);
    for (int request = 0; request < launch.sequences->count; ++request) {
        const Sequence& sequence = launch.sequences->of(request);
        const OneRequest one(launch, request);
        const bool is_empty = sequence.q_len == 0 || sequence.kv_len == 0;
        one.clear(is_empty ? 0 : sequence.q_len, sequence.q_rows, is_empty ? 0 : sequence.kv_len,
                  sequence.kv_rows);
        if (is_empty) continue;
        // For shorter requests, the work may be divided in a way that needs more memory than the
        // longest one.
        Backward whole(one.launch);
        if (whole.workspace() <= most)
            whole.run(functions);
        else
            Backward(one.launch, true).run(functions);
    }
}

std::size_t backward_workspace(const Launch& launch) {
    if (launch.sequences != nullptr) return backward_sequences_workspace(launch);
    return Backward(launch).workspace();
}

void backward(const TileFunctions& functions, const Launch& launch) {
    if (launch.sequences != nullptr) return backward_sequences(functions, launch);
    Backward(launch).run(functions);
}

} // namespace flexc::cpu
