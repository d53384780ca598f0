// Computes the forward: for each tile of query rows, all visible tiles of keys, with a running
// softmax.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/backend/attention.h"
#include "cpu/backend/part_tiles.h"
#include "cpu/backend/rescale.h"
#include "cpu/backend/tensors.h"
#include "cpu/backend/threads.h"
#include "cpu/backend/tile_range.h"
#include "cpu/backend/tiles.h"
#include "cpu/work.h"
#include "support/arena.h"

namespace flexc::cpu {

namespace {

constexpr std::int64_t kKeyTile = 256;
constexpr std::int64_t kQueryTile = 64;
static_assert(kKeyTile <= kMaxColumns && kKeyTile % kColumnUnit == 0);
static_assert(parts::kTileUnit % kColumnUnit == 0 && kKeyTile % parts::kTileUnit == 0 &&
              kStripRows % parts::kTileUnit == 0 && kQueryTile % kStripRows == 0);

// The scratch memory of a lane (a thread of the pool).
struct Scratch {
    float *q, *scores, *output, *row_max, *row_sum, *row_correction, *lse;
    std::uint64_t* emitted;
    // Of bf16 parts; f32 of a tile of keys or values.
    std::uint16_t* packed_q;
    float* wide;
};

class Forward {
  public:
    explicit Forward(const Launch& launch)
        : launch_(launch), shape_(*launch.shape), in_(*launch.arguments), arena_(launch.workspace) {
        query_tile_ = std::min(kQueryTile, power_of_two(in_.q_len));
        if (query_tile_ % parts::kTileUnit == 0) unit_ = parts::unit_for(shape_, in_);
        query_tiles_ = (in_.q_len + query_tile_ - 1) / query_tile_;
        key_tiles_ = (in_.kv_len + kKeyTile - 1) / kKeyTile;
        packed_tiles_ = std::int64_t{in_.batch} * in_.kv_heads * key_tiles_;
        keys_ = arena_.take<float>(packed_tiles_ * shape_.head_dim * kKeyTile);
        values_ = arena_.take<float>(packed_tiles_ * shape_.head_dim_v * kKeyTile);
        moderate_keys_ = arena_.take<bool>(packed_tiles_);
        finite_keys_ = arena_.take<bool>(packed_tiles_);
        finite_values_ = arena_.take<bool>(packed_tiles_);
        mask_results_ = MaskResultsOfEntries(launch, arena_);
        support::Arena lane(nullptr);
        take_scratch(lane);
        lane_bytes_ = static_cast<std::int64_t>(lane.used());
        threads_ =
            useful_threads(launch.threads, std::int64_t{in_.batch} * in_.heads * in_.q_len *
                                               in_.kv_len * (shape_.head_dim + shape_.head_dim_v));
        lanes_ = arena_.take<char>(lane_bytes_ * threads_);
    }

    std::size_t workspace() const { return arena_.used(); }

    void run(const TileFunctions& functions) {
        for_units(*launch_.pool, threads_, packed_tiles_,
                  [&](std::int64_t unit, int) { pack(unit); });
        evaluate_mask_for_all_heads(functions);
        for_units(*launch_.pool, threads_, std::int64_t{in_.batch} * in_.heads * query_tiles_,
                  [&](std::int64_t unit, int lane) { query_tile(functions, unit, lane); });
    }

  private:
    Scratch take_scratch(support::Arena& arena) const {
        const std::int64_t most_parts = parts::most_parts(shape_);
        return {.q = arena.take<float>(query_tile_ * shape_.head_dim),
                // A strip's, and those of sinks of all rows.
                .scores = arena.take<float>(query_tile_ * kKeyTile),
                .output = arena.take<float>(query_tile_ * shape_.head_dim_v),
                .row_max = arena.take<float>(query_tile_),
                .row_sum = arena.take<float>(query_tile_),
                .row_correction = arena.take<float>(query_tile_),
                .lse = arena.take<float>(query_tile_),
                .emitted = arena.take<std::uint64_t>(shape_.scratch_arrays * kMaxColumns + 1),
                .packed_q = arena.take<std::uint16_t>(most_parts * query_tile_ * shape_.head_dim),
                .wide = arena.take<float>(
                    most_parts > 0 ? std::max(shape_.head_dim, shape_.head_dim_v) * kKeyTile : 0)};
    }

    // The rows of a packed tile: of its KV head.
    Rows keys_of(std::int64_t unit) const {
        const std::int64_t head = unit / key_tiles_, first = unit % key_tiles_ * kKeyTile;
        return {head / in_.kv_heads, head % in_.kv_heads, first,
                std::min<std::int64_t>(kKeyTile, in_.kv_len - first)};
    }
    float* keys_at(std::int64_t unit) const { return keys_ + unit * shape_.head_dim * kKeyTile; }
    float* values_at(std::int64_t unit) const {
        return values_ + unit * shape_.head_dim_v * kKeyTile;
    }

    // Whether products of tiles are those of bf16 parts.
    bool has_parts() const { return unit_ != parts::Unit::none; }

    // Packs a tile of keys, as parts or in f32.
    void pack(std::int64_t unit) {
        const Rows rows = keys_of(unit);
        const Magnitude keys =
            has_parts() ? parts::pack_keys(shape_.kv_dtype, list_rows(in_.k, rows), shape_.head_dim,
                                           kKeyTile, parts::bits(keys_at(unit)))
                        : widen_keys(rows, keys_at(unit));
        const Magnitude values =
            has_parts()
                ? parts::pack_values(shape_.kv_dtype, list_rows(in_.v, rows), shape_.head_dim_v,
                                     kKeyTile, parts::bits(values_at(unit)))
                : widen_values(rows, values_at(unit));
        moderate_keys_[unit] = keys.is_moderate;
        finite_keys_[unit] = keys.is_finite;
        finite_values_[unit] = values.is_finite;
    }
    // Transposed, so that a tile of scores is a plain product.
    Magnitude widen_keys(const Rows& rows, float* keys) const {
        return load_transposed(in_.k, shape_.kv_dtype, rows, shape_.head_dim, keys, kKeyTile,
                               round_up(rows.count, parts::kTileUnit),
                               in_.k_scale.of(rows.b, static_cast<int>(rows.h)));
    }
    Magnitude widen_values(const Rows& rows, float* values) const {
        return load_rows(in_.v, shape_.kv_dtype, rows, shape_.head_dim_v, values,
                         round_up(rows.count, parts::kTileUnit),
                         in_.v_scale.of(rows.b, static_cast<int>(rows.h)));
    }
    Magnitude widen_queries(const Rows& rows, float* queries) const {
        return load_rows(in_.q, shape_.dtype, rows, shape_.head_dim, queries,
                         padded_rows(rows.count));
    }
    // Rows of numbers of 16 bits.
    static RowList list_rows(const TensorArgument& tensor, const Rows& rows) {
        constexpr std::int64_t kBytes = 2;
        const std::int64_t first =
            rows.b * tensor.stride_b + rows.h * tensor.stride_h + rows.first * tensor.stride_s;
        return {static_cast<const char*>(tensor.data) + first * kBytes, tensor.stride_s * kBytes,
                nullptr, rows.count};
    }

    Tile tile_of(const Rows& rows, const Scratch& scratch) const {
        Tile tile{};
        tile.scores = scratch.scores;
        tile.stride = kKeyTile;
        tile.row_max = scratch.row_max;
        tile.row_sum = scratch.row_sum;
        tile.row_correction = scratch.row_correction;
        tile.scratch = scratch.emitted;
        tile.b = rows.b;
        tile.h = rows.h;
        tile.h_kv = rows.h / (in_.heads / in_.kv_heads);
        tile.q_begin = rows.first + in_.q_offset;
        tile.rows = rows.count;
        tile.scale = in_.scale;
        return tile;
    }

    // Calls visit(number, visible_columns) for each tile of keys that the band shows to some row of
    // `tile`; visible_columns() evaluates the mask and returns the tile's VisibleColumns.
    template <typename Visit>
    void visit_tiles(const TileFunctions& functions, Tile& tile, const Rows& rows,
                     const Visit& visit) const {
        const VisibleBand band = visible_band(functions, launch_, launch_.words, tile);
        const Range row_range{rows.first, rows.first + rows.count};
        const Range visible = band.columns_of(row_range, in_.kv_len);
        const VisibleTiles tiles(in_.block_mask, rows.b, rows.h);
        const SharedMaskResults mask_results = mask_results_.of(rows.b);
        for (std::int64_t key_tile = visible.begin / kKeyTile;
             !visible.empty() && key_tile * kKeyTile < visible.end; ++key_tile) {
            // The part of the tile inside the band, starting at a multiple of the unit.
            const Range inside{
                std::max(visible.begin / kColumnUnit * kColumnUnit, key_tile * kKeyTile),
                std::min(visible.end, (key_tile + 1) * kKeyTile)};
            visit(key_tile, [&] {
                return find_visible_columns(functions, launch_, band, tiles, mask_results, tile,
                                            row_range, inside);
            });
        }
    }

    // Evaluates the mask of all tiles first, by all threads. Otherwise threads with different heads
    // would evaluate the same tile at once.
    void evaluate_mask_for_all_heads(const TileFunctions& functions) {
        if (!mask_results_.begin() || threads_ == 1) return;
        for_units(
            *launch_.pool, threads_, in_.batch * query_tiles_, [&](std::int64_t unit, int lane) {
                support::Arena arena(lanes_ + lane * lane_bytes_);
                const Rows rows = rows_of(unit / query_tiles_, 0, unit % query_tiles_);
                Tile tile = tile_of(rows, take_scratch(arena));
                visit_tiles(functions, tile, rows,
                            [](std::int64_t, const auto& visible_columns) { visible_columns(); });
            });
    }

    Rows rows_of(std::int64_t b, std::int64_t h, std::int64_t query_tile) const {
        const std::int64_t first = query_tile * query_tile_;
        return {b, h, first, std::min<std::int64_t>(query_tile_, in_.q_len - first)};
    }

    void query_tile(const TileFunctions& functions, std::int64_t unit, int lane) {
        support::Arena arena(lanes_ + lane * lane_bytes_);
        const Scratch scratch = take_scratch(arena);
        const std::int64_t head = unit / query_tiles_;
        // Long tiles first: under a causal mask, later rows see more keys.
        const Rows rows =
            rows_of(head / in_.heads, head % in_.heads, query_tiles_ - 1 - unit % query_tiles_);
        const Magnitude queries =
            has_parts() ? parts::pack_queries(shape_.dtype, list_rows(in_.q, rows), shape_.head_dim,
                                              padded_rows(rows.count), scratch.packed_q)
                        : widen_queries(rows, scratch.q);
        const bool moderate_queries = queries.is_moderate && is_moderate(in_.scale);
        const bool finite_queries = queries.is_finite || !parts::needs_finite(shape_.dtype);
        std::fill_n(scratch.row_max, rows.count, -std::numeric_limits<float>::infinity());
        std::fill_n(scratch.row_sum, rows.count, 0.0f);

        Tile tile = tile_of(rows, scratch);
        bool started = false;
        visit_tiles(functions, tile, rows, [&](std::int64_t key_tile, const auto& visible_columns) {
            const std::int64_t packed = (rows.b * in_.kv_heads + tile.h_kv) * key_tiles_ + key_tile;
            tile.is_moderate = moderate_queries && moderate_keys_[packed];
            const auto [columns, is_full] = visible_columns();
            if (columns.empty()) return;
            tile.kv_begin = columns.begin + in_.kv_offset;
            tile.columns = columns.end - columns.begin;
            const bool full = is_full && functions.forward_full != nullptr;
            key_step(full ? functions.forward_full : functions.forward, tile, scratch, packed,
                     columns.begin - key_tile * kKeyTile, started, finite_queries);
            started = true;
        });
        finish(functions, tile, rows, scratch, started);
    }

    std::int64_t padded_rows(std::int64_t rows) const {
        return has_parts() ? round_up(rows, parts::kTileUnit) : power_of_two(rows);
    }

    // The scratch memory of the rows from `row` on; scores are those of one strip.
    Scratch from_row(Scratch scratch, std::int64_t row) const {
        scratch.q += row * shape_.head_dim;
        scratch.output += row * shape_.head_dim_v;
        scratch.row_correction += row;
        scratch.packed_q += row * parts::query_stride(shape_.head_dim);
        return scratch;
    }

    void key_step(TileFunction function, const Tile& tile, const Scratch& scratch,
                  std::int64_t packed, std::int64_t skipped, bool started, bool finite_queries) {
        for (std::int64_t row = 0; row < tile.rows; row += kStripRows) {
            Tile strip = tile;
            strip.rows = std::min<std::int64_t>(kStripRows, tile.rows - row);
            strip.q_begin += row;
            strip.row_max += row;
            strip.row_sum += row;
            strip.row_correction += row;
            strip_step(function, strip, from_row(scratch, row), packed, skipped, started,
                       finite_queries);
        }
    }
    void strip_step(TileFunction function, Tile& tile, const Scratch& scratch, std::int64_t packed,
                    std::int64_t skipped, bool started, bool finite_queries) {
        // Parts begin at a multiple of their own unit: `before` columns more.
        const std::int64_t before = has_parts() ? skipped % parts::kTileUnit : 0;
        const std::int64_t first = skipped - before, after = before + tile.columns;
        const Step step{.queries = {tile.b, tile.h, tile.q_begin - in_.q_offset, tile.rows},
                        .rows = padded_rows(tile.rows),
                        .columns = round_up(after, has_parts() ? parts::kTileUnit : kColumnUnit),
                        .packed = packed,
                        .first = first};
        multiply_by_keys(step, scratch, finite_queries);
        tile.scores = scratch.scores + before;
        function(launch_.words, &tile);
        tile.scores = scratch.scores;
        for (std::int64_t row = 0; row < tile.rows; ++row) {
            float* const scores = scratch.scores + row * kKeyTile;
            std::fill(scores, scores + before, 0.0f);
            std::fill(scores + after, scores + step.columns, 0.0f);
        }
        if (started) rescale(tile.rows, shape_.head_dim_v, scratch.row_correction, scratch.output);
        add_values(step, scratch, started);
    }

    // The products of a tile: `columns` keys from `first` on, of a packed tile.
    struct Step {
        Rows queries;
        std::int64_t rows, columns, packed, first;
    };
    parts::TileProduct product_of(const Step& step, int dim) const {
        return {unit_, shape_.kv_dtype, dim, step.rows, step.columns, step.first, kKeyTile};
    }

    void multiply_by_keys(const Step& step, const Scratch& scratch, bool finite_queries) const {
        const int dim = shape_.head_dim;
        const float* keys = keys_at(step.packed);
        if (has_parts()) {
            if (finite_queries &&
                (finite_keys_[step.packed] || !parts::needs_finite(shape_.kv_dtype)))
                return parts::multiply_by_keys(product_of(step, dim), scratch.packed_q,
                                               parts::bits(keys_at(step.packed)), scratch.scores,
                                               kKeyTile);
            widen_queries(step.queries, scratch.q);
            widen_keys(keys_of(step.packed), scratch.wide);
            keys = scratch.wide;
        }
        multiply({.rows = static_cast<int>(step.rows),
                  .columns = static_cast<int>(step.columns),
                  .inner = dim,
                  .left_stride = dim,
                  .right_stride = kKeyTile,
                  .out_stride = kKeyTile},
                 scratch.q, keys + step.first, scratch.scores);
    }

    void add_values(const Step& step, const Scratch& scratch, bool started) const {
        const int dim = shape_.head_dim_v;
        const bool is_finite = finite_values_[step.packed];
        const float* values = values_at(step.packed);
        if (has_parts()) {
            if (is_finite) {
                parts::pack_weights(shape_.kv_dtype, step.rows, step.columns, scratch.scores,
                                    kKeyTile);
                return parts::add_weighted_values(product_of(step, dim), scratch.scores, kKeyTile,
                                                  parts::bits(values_at(step.packed)),
                                                  scratch.output, started);
            }
            widen_values(keys_of(step.packed), scratch.wide);
            values = scratch.wide;
        }
        (is_finite ? multiply : multiply_skipping_zeros)({.rows = static_cast<int>(step.rows),
                                                          .columns = dim,
                                                          .inner = static_cast<int>(step.columns),
                                                          .left_stride = kKeyTile,
                                                          .right_stride = dim,
                                                          .out_stride = dim,
                                                          .accumulate = started},
                                                         scratch.scores, values + step.first * dim,
                                                         scratch.output);
    }

    void finish(const TileFunctions& functions, Tile& tile, const Rows& rows,
                const Scratch& scratch, bool started) {
        constexpr float kNothing = -std::numeric_limits<float>::infinity();
        const int dim_v = shape_.head_dim_v;
        for (std::int64_t row = 0; row < rows.count; ++row) {
            const float maximum = scratch.row_max[row];
            const double sum = scratch.row_sum[row];
            scratch.lse[row] = !started || maximum == kNothing
                                   ? kNothing
                                   : static_cast<float>(double{maximum} + std::log(sum));
        }
        // A sink raises the running maximum.
        if (in_.max_scores.data != nullptr)
            store_rows(in_.max_scores, DType::f32, 0, rows, 1, scratch.row_max, 1);
        std::fill_n(scratch.row_correction, rows.count, 1.0f);
        if (functions.sink != nullptr) {
            tile.columns = 1;
            functions.sink(launch_.words, &tile);
        }
        divide(rows.count, dim_v, scratch.row_correction, scratch.row_sum, scratch.output);
        for (std::int64_t row = 0; row < rows.count; ++row)
            if (scratch.lse[row] == kNothing)
                std::fill_n(scratch.output + row * dim_v, dim_v, 0.0f);
        store_rows(in_.o, shape_.dtype, in_.o_flags, rows, dim_v, scratch.output, dim_v);
        if (in_.lse.data != nullptr) store_rows(in_.lse, DType::f32, 0, rows, 1, scratch.lse, 1);
    }

    const Launch& launch_;
    const KernelShape& shape_;
    const AttentionArguments& in_;
    support::Arena arena_;
    std::int64_t query_tile_, query_tiles_, key_tiles_, packed_tiles_, lane_bytes_;
    float *keys_, *values_;
    bool *moderate_keys_, *finite_keys_, *finite_values_; // for each packed tile
    parts::Unit unit_ = parts::Unit::none;
    MaskResultsOfEntries mask_results_;
    int threads_;
    char* lanes_;
};

bool has_few_queries(const Launch& launch) { return launch.arguments->q_len <= kFewQueries; }

Launch of_requests(const Launch& launch, const SequenceArguments& requests) {
    Launch result = launch;
    result.sequences = &requests;
    return result;
}

void forward_few_queries(const TileFunctions& functions, const Launch& launch) {
    const AttentionArguments& in = *launch.arguments;
    const std::vector<Sequence> sequences(static_cast<std::size_t>(in.batch),
                                          {.q_row = 0,
                                           .kv_row = 0,
                                           .first_number = 0,
                                           .q_len = in.q_len,
                                           .kv_len = in.kv_len,
                                           .q_rows = in.q_len,
                                           .kv_rows = in.kv_len,
                                           .q_start = static_cast<int>(in.q_offset),
                                           .first_part = 0});
    // Heads that lie apart are read one by one: each is one stream for a longer time.
    const bool heads_are_adjacent = in.k.stride_h < in.k.stride_s;
    const std::vector<SequenceWork> work =
        list_work(sequences, in.heads, in.kv_heads, launch.shape->batch_invariant,
                  heads_are_adjacent ? kFewRowGroups : 1);
    const SequenceArguments arguments{.sequences = sequences.data(),
                                      .count = in.batch,
                                      .keys = {},
                                      .work = work.data(),
                                      .work_count = static_cast<std::int64_t>(work.size())};
    forward_sequences(functions, of_requests(launch, arguments));
}

} // namespace

std::size_t forward_workspace(const Launch& launch) {
    if (launch.sequences != nullptr) return forward_sequences_workspace(launch);
    if (has_few_queries(launch)) return forward_sequences_workspace(of_requests(launch, {}));
    return Forward(launch).workspace();
}

void forward(const TileFunctions& functions, const Launch& launch) {
    if (launch.sequences != nullptr) return forward_sequences(functions, launch);
    if (has_few_queries(launch)) return forward_few_queries(functions, launch);
    Forward(launch).run(functions);
}

} // namespace flexc::cpu
