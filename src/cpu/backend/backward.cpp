// Joint backward: for a tile of keys, all query rows that see it; dk and dv are summed in the tile,
// dq in memory, captured gradients in the emitted code.
#include <algorithm>
#include <limits>

#include "cpu/backend/arena.h"
#include "cpu/backend/attention.h"
#include "cpu/backend/gradient_copies.h"
#include "cpu/backend/tensors.h"
#include "cpu/backend/threads.h"
#include "cpu/backend/tile_range.h"
#include "cpu/backend/tiles.h"

namespace flexc::cpu {

namespace {

constexpr std::int64_t kKeyTile = 128;
constexpr std::int64_t kQueryTile = 64;
static_assert(kKeyTile <= kMaxColumns && kKeyTile % kColumnUnit == 0);

// What one lane works in.
struct Scratch {
    float *keys, *keys_transposed, *values_transposed, *dk, *dv, *scores, *gradients;
    std::uint64_t* emitted;
};

// How work is split into units, each done by a fixed lane in a fixed order, so that every sum has
// one order. A unit is a range of (b, h_kv) pairs, with a share of the key tiles.
struct Split {
    std::int64_t batch_units = 1, head_units = 1,
                 chunks = 1; // 1: the variable is looped over inside
    std::uint32_t variables = 0;
    std::int64_t units() const { return batch_units * head_units * chunks; }
};

Split split_of(const Launch& launch, std::int64_t key_tiles) {
    const AttentionArguments& in = *launch.arguments;
    const std::int64_t lanes = launch.shape->threads;
    Split split;
    if (lanes == 1) return split;
    const std::uint32_t allowed = GradientCopies::allowed_split(launch);
    if ((allowed & kSeparatesB) != 0 && in.batch > 1) {
        split.batch_units = in.batch;
        split.variables |= kSeparatesB;
    }
    if ((allowed & kSeparatesHKv) != 0 && in.kv_heads > 1) {
        split.head_units = in.kv_heads;
        split.variables |= kSeparatesHKv;
    }
    // Each chunk has a dq of its own, so there are no more than what keeps the lanes busy.
    const std::int64_t whole = split.units();
    if ((allowed & kSeparatesKv) != 0 && whole < 2 * lanes)
        split.chunks = std::clamp<std::int64_t>((2 * lanes + whole - 1) / whole, 1, key_tiles);
    if (split.chunks > 1) split.variables |= kSeparatesKv;
    return split;
}

class Backward {
  public:
    explicit Backward(const Launch& launch)
        : launch_(launch), shape_(*launch.shape), in_(*launch.arguments), arena_(launch.workspace),
          key_tiles_((in_.kv_len + kKeyTile - 1) / kKeyTile), split_(split_of(launch, key_tiles_)),
          lane_count_(static_cast<int>(std::min<std::int64_t>(shape_.threads, split_.units()))),
          gradients_(launch, lane_count_ == 1 ? 0 : split_.variables, lane_count_, arena_) {
        query_tile_ = std::min(kQueryTile, power_of_two(in_.q_len));
        query_tiles_ = (in_.q_len + query_tile_ - 1) / query_tile_;
        padded_rows_ = query_tiles_ * query_tile_;
        heads_ = std::int64_t{in_.batch} * in_.heads;
        const std::int64_t rows = heads_ * padded_rows_;
        queries_ = arena_.take<float>(rows * shape_.head_dim);
        d_outs_ = arena_.take<float>(rows * shape_.head_dim_v);
        lse_ = arena_.take<float>(rows);
        delta_ = arena_.take<float>(rows);
        finite_queries_ = arena_.take<bool>(heads_ * query_tiles_);
        finite_d_outs_ = arena_.take<bool>(heads_ * query_tiles_);
        dq_ = arena_.take<float>(split_.chunks * rows * shape_.head_dim);
        Arena lane(nullptr);
        take_scratch(lane);
        lane_bytes_ = static_cast<std::int64_t>(lane.used());
        lanes_ = arena_.take<char>(lane_bytes_ * lane_count_);
    }

    std::size_t workspace() const { return arena_.used(); }

    void run(const TileFunctions& functions) {
        for_units(shape_.threads, heads_ * query_tiles_,
                  [&](std::int64_t unit, int) { prepare(unit); });
        for_lanes(lane_count_, [&](int lane) {
            Arena arena(lanes_ + lane * lane_bytes_);
            const Scratch scratch = take_scratch(arena);
            const std::uint64_t* words = gradients_.begin_lane(lane);
            for (std::int64_t unit = lane; unit < split_.units(); unit += lane_count_)
                do_unit(functions, unit, scratch, words);
        });
        for_units(shape_.threads, heads_ * query_tiles_,
                  [&](std::int64_t unit, int) { store_dq(unit); });
        gradients_.finish();
    }

  private:
    Scratch take_scratch(Arena& arena) const {
        const std::int64_t dim = shape_.head_dim, dim_v = shape_.head_dim_v;
        return {.keys = arena.take<float>(kKeyTile * dim),
                .keys_transposed = arena.take<float>(kKeyTile * dim),
                .values_transposed = arena.take<float>(kKeyTile * dim_v),
                .dk = arena.take<float>(kKeyTile * dim),
                .dv = arena.take<float>(kKeyTile * dim_v),
                .scores = arena.take<float>(query_tile_ * kKeyTile),
                .gradients = arena.take<float>(query_tile_ * kKeyTile),
                .emitted = arena.take<std::uint64_t>(shape_.scratch_arrays * kMaxColumns + 1)};
    }

    // Rows of q and d_out in f32, lse, and delta = rowsum(d_out * o) - d_lse; zeroes dq.
    void prepare(std::int64_t unit) {
        const std::int64_t head = unit / query_tiles_, first = unit % query_tiles_ * query_tile_;
        const Rows rows{head / in_.heads, head % in_.heads, first,
                        std::min(query_tile_, in_.q_len - first)};
        const int dim = shape_.head_dim, dim_v = shape_.head_dim_v;
        const std::int64_t place = head * padded_rows_ + first;
        finite_queries_[unit] =
            load_rows(in_.q, shape_.dtype, rows, dim, queries_ + place * dim, query_tile_);
        // o is only needed here, a row at a time.
        const DType o_type = (in_.o_flags & kOutputF32) != 0 ? DType::f32 : shape_.dtype;
        float* d_outs = d_outs_ + place * dim_v;
        float o[256];
        finite_d_outs_[unit] = load_rows(in_.d_out, shape_.dtype, rows, dim_v, d_outs, query_tile_);
        load_rows(in_.lse, DType::f32, rows, 1, lse_ + place, query_tile_);
        for (std::int64_t row = 0; row < rows.count; ++row) {
            const Rows one{rows.b, rows.h, first + row, 1};
            load_rows(in_.o, o_type, one, dim_v, o, 1);
            float sum = 0, d_lse = 0;
            for (int d = 0; d < dim_v; ++d)
                sum += o[d] * d_outs[row * dim_v + d];
            if (in_.d_lse.data != nullptr) load_rows(in_.d_lse, DType::f32, one, 1, &d_lse, 1);
            delta_[place + row] = sum - d_lse;
        }
        for (std::int64_t chunk = 0; chunk < split_.chunks; ++chunk)
            std::fill_n(dq_of(chunk, head, first), query_tile_ * dim, 0.0f);
    }

    float* dq_of(std::int64_t chunk, std::int64_t head, std::int64_t row) const {
        return dq_ + ((chunk * heads_ + head) * padded_rows_ + row) * shape_.head_dim;
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
            for (std::int64_t h_kv = kv_heads.begin; h_kv < kv_heads.end; ++h_kv)
                for (std::int64_t tile = tiles.begin; tile < tiles.end; ++tile)
                    key_tile(functions, b, h_kv, tile, chunk, scratch, words);
    }

    void key_tile(const TileFunctions& functions, std::int64_t b, std::int64_t h_kv,
                  std::int64_t key_tile, std::int64_t chunk, const Scratch& scratch,
                  const std::uint64_t* words) {
        const std::int64_t first = key_tile * kKeyTile;
        const Rows rows{b, h_kv, first, std::min<std::int64_t>(kKeyTile, in_.kv_len - first)};
        const std::int64_t padded = round_up(rows.count, kColumnUnit);
        const int dim = shape_.head_dim, dim_v = shape_.head_dim_v;
        const bool finite_keys = load_rows(in_.k, shape_.dtype, rows, dim, scratch.keys, padded);
        load_transposed(in_.k, shape_.dtype, rows, dim, scratch.keys_transposed, kKeyTile, padded);
        load_transposed(in_.v, shape_.dtype, rows, dim_v, scratch.values_transposed, kKeyTile,
                        padded);
        std::fill_n(scratch.dk, padded * dim, 0.0f);
        std::fill_n(scratch.dv, padded * dim_v, 0.0f);

        Tile tile{};
        tile.scores = scratch.scores;
        tile.gradients = scratch.gradients;
        tile.stride = kKeyTile;
        tile.scratch = scratch.emitted;
        tile.b = b;
        tile.h_kv = h_kv;
        tile.scale = in_.scale;
        const std::int64_t group = in_.heads / in_.kv_heads;
        for (tile.h = h_kv * group; tile.h < (h_kv + 1) * group; ++tile.h) {
            const VisibleBand band = visible_band(functions, launch_, words, tile);
            const Range visible = band.rows_of({first, first + rows.count}, in_.q_len);
            if (visible.empty()) continue;
            const VisibleTiles tiles(in_.map, b, tile.h);
            for (std::int64_t q = visible.begin / query_tile_; q * query_tile_ < visible.end; ++q) {
                const Range row_range{q * query_tile_,
                                      std::min<std::int64_t>((q + 1) * query_tile_, in_.q_len)};
                const Range seen = band.columns_of(row_range, in_.kv_len);
                const Range columns{std::max(first, seen.begin / kColumnUnit * kColumnUnit),
                                    std::min(first + rows.count, seen.end)};
                if (columns.empty() || !tiles.shows(row_range, columns)) continue;
                tile.q_begin = row_range.begin + in_.q_offset;
                tile.rows = row_range.end - row_range.begin;
                tile.kv_begin = columns.begin + in_.kv_offset;
                tile.columns = columns.end - columns.begin;
                const bool full =
                    functions.backward_full != nullptr &&
                    (band.covers(row_range, columns) || tiles.covers(row_range, columns));
                pair_step(full ? functions.backward_full : functions.backward, tile, scratch, words,
                          {b * in_.heads + tile.h, q, chunk, columns.begin - first, finite_keys});
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
        const auto rows = static_cast<int>(power_of_two(tile.rows));
        const auto columns = static_cast<int>(round_up(tile.columns, kColumnUnit));
        const std::int64_t row = pair.query_tile * query_tile_;
        const std::int64_t place = pair.head * padded_rows_ + row;
        const float* queries = queries_ + place * dim;
        const float* d_outs = d_outs_ + place * dim_v;
        tile.lse = lse_ + place;
        tile.delta = delta_ + place;
        const auto stride = static_cast<int>(kKeyTile);
        multiply({rows, columns, dim, dim, stride, stride}, queries,
                 scratch.keys_transposed + pair.skipped, scratch.scores);
        multiply({rows, columns, dim_v, dim_v, stride, stride}, d_outs,
                 scratch.values_transposed + pair.skipped, scratch.gradients);
        function(words, &tile);
        clear_padding(scratch.scores, tile, rows, columns);
        clear_padding(scratch.gradients, tile, rows, columns);

        const std::int64_t query_unit = pair.head * query_tiles_ + pair.query_tile;
        auto add = [](bool finite, const Product& product, const float* left, const float* right,
                      float* out) {
            (finite ? multiply : multiply_skipping_zeros)(product, left, right, out);
        };
        add(finite_d_outs_[query_unit], {columns, dim_v, rows, stride, dim_v, dim_v, true, true},
            scratch.scores, d_outs, scratch.dv + pair.skipped * dim_v);
        add(finite_queries_[query_unit], {columns, dim, rows, stride, dim, dim, true, true},
            scratch.gradients, queries, scratch.dk + pair.skipped * dim);
        add(pair.finite_keys, {rows, dim, columns, stride, dim, dim, false, true},
            scratch.gradients, scratch.keys + pair.skipped * dim,
            dq_of(pair.chunk, pair.head, row));
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
        float* sum = dq_of(0, head, first);
        for (std::int64_t chunk = 1; chunk < split_.chunks; ++chunk) {
            const float* part = dq_of(chunk, head, first);
            for (std::int64_t i = 0; i < rows.count * dim; ++i)
                sum[i] += part[i];
        }
        store_rows(in_.dq, shape_.dtype, in_.dq_flags, rows, dim, sum, dim);
    }

    const Launch& launch_;
    const KernelShape& shape_;
    const AttentionArguments& in_;
    Arena arena_;
    std::int64_t key_tiles_;
    Split split_;
    int lane_count_;
    GradientCopies gradients_;
    std::int64_t query_tile_, query_tiles_, padded_rows_, heads_, lane_bytes_;
    float *queries_, *d_outs_, *lse_, *delta_, *dq_;
    bool *finite_queries_, *finite_d_outs_; // of each query tile
    char* lanes_;
};

} // namespace

std::size_t backward_workspace(const Launch& launch) { return Backward(launch).workspace(); }

void backward(const TileFunctions& functions, const Launch& launch) {
    Backward(launch).run(functions);
}

} // namespace flexc::cpu
