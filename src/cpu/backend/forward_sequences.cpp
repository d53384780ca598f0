// Forward of requests with lengths of their own, in pieces of the plan's work. A tile of keys is
// loaded once for all queries of a piece, including those of several heads. A few queries of many
// heads are rows of one product.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "cpu/backend/attention.h"
#include "cpu/backend/flush_denormals.h"
#include "cpu/backend/packed_tiles.h"
#include "cpu/backend/rescale.h"
#include "cpu/backend/skinny_amx.h"
#include "cpu/backend/skinny_products.h"
#include "cpu/backend/tensors.h"
#include "cpu/backend/threads.h"
#include "cpu/backend/tile_range.h"
#include "cpu/backend/tiles.h"
#include "cpu/backend/tiles_amx.h"
#include "cpu/work.h"
#include "keys/all.h"
#include "support/amounts.h"
#include "support/arena.h"

namespace flexc::cpu {

namespace {

constexpr std::int64_t kKeyTile = 256;
static_assert(kKeyTile <= kMaxColumns && kKeyTile % kColumnUnit == 0);
static_assert(amx::kTileUnit % kColumnUnit == 0 && kKeyTile % amx::kTileUnit == 0 &&
              kBlockRows % amx::kTileUnit == 0 && kBlockRows <= kKeyTile);
static_assert(kFewRows <= kSkinnyRows && kFewRowGroups * kFewRows <= kBlockRows);
// Most memory for packed tiles that pieces share: beyond, each piece packs its own.
constexpr std::int64_t kMostPackedBytes = std::int64_t{1} << 26;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The rows of one product: some queries of consecutive heads, head by head.
struct Block {
    float *q, *scores, *output, *row_max, *row_sum, *row_correction;
    int head, heads, query, queries; // the first ones and their numbers
    std::uint16_t* packed_q;         // for the matrix unit, if is_packed
    std::uint16_t* tile_q;           // for its tiles of many rows, if has_tile_q
    bool is_moderate, is_finite, started, is_packed, has_tile_q;
    std::array<bool, kBlockRows> head_started;

    std::int64_t rows() const { return std::int64_t{heads} * queries; }
};

// The scratch memory of a lane (a thread of the pool).
struct Scratch {
    float *keys, *values, *lse, *output;
    std::int64_t *key_rows, *offsets;
    std::uint64_t* emitted;
    // For the matrix unit; f32 of a tile of keys or values.
    float* wide;
    std::array<Block, kMostBlocks> blocks;
};

// The partial result of a piece of work whose rows have further keys in other pieces.
struct Part {
    float *output, *row_max, *row_sum;
};

class Forward {
  public:
    explicit Forward(const Launch& launch)
        : launch_(launch), shape_(*launch.shape), in_(*launch.arguments), all_(*launch.sequences),
          arena_(launch.workspace) {
        if (may_split(in_.kv_len))
            parts_ =
                arena_.take<float>(most_parts(in_.batch, shape_.batch_invariant) * part_floats());
        if (shares_mask_results(launch)) {
            mask_result_room_ =
                std::min(support::product(std::int64_t{in_.batch},
                                          SharedMaskResults::count(in_.q_len, in_.kv_len)),
                         SharedMaskResults::kMost);
            mask_results_ = arena_.take<std::uint8_t>(mask_result_room_);
            first_mask_result_ = arena_.take<std::int64_t>(in_.batch);
        }
        // Otherwise no two pieces have the same keys.
        if (std::int64_t{in_.q_len} * group() > kBlockRows) {
            const std::int64_t floats = kKeyTile * (shape_.head_dim + shape_.head_dim_v);
            const std::int64_t count =
                std::min(support::product(std::int64_t{in_.batch}, tiles_of(in_.kv_len)),
                         kMostPackedBytes / (floats * std::int64_t{sizeof(float)}));
            packed_keys_ = PackedTiles(arena_, count, kKeyTile * shape_.head_dim);
            packed_values_ = PackedTiles(arena_, count, kKeyTile * shape_.head_dim_v);
            first_tile_ = arena_.take<std::int64_t>(in_.batch);
        }
        support::Arena lane(nullptr);
        take_scratch(lane);
        lane_bytes_ = static_cast<std::int64_t>(lane.used());
        lanes_ = arena_.take<char>(lane_bytes_ * launch.threads);
    }

    std::size_t workspace() const { return arena_.used(); }

    void run(const TileFunctions& functions) {
        std::int64_t multiplications = 0;
        for (std::int64_t i = 0; i < all_.work_count; ++i) {
            const SequenceWork& work = all_.work[i];
            multiplications += std::int64_t{work.heads} * work.queries * work.keys *
                               (shape_.head_dim + shape_.head_dim_v);
        }
        const int threads = useful_threads(launch_.threads, multiplications);
        place_mask_results();
        place_tiles();
        // Evaluates the mask of all tiles first, by all threads. Otherwise threads with different
        // heads would evaluate the same tile at once.
        if (mask_results_ != nullptr && threads > 1)
            for_units(*launch_.pool, threads, all_.work_count, [&](std::int64_t unit, int lane) {
                if (all_.work[unit].head != 0) return;
                support::Arena arena(lanes_ + lane * lane_bytes_);
                Scratch scratch = take_scratch(arena);
                Piece(*this, functions, all_.work[unit], scratch).evaluate_mask_for_all_heads();
            });
        for_units(*launch_.pool, threads, all_.work_count, [&](std::int64_t unit, int lane) {
            support::Arena arena(lanes_ + lane * lane_bytes_);
            Scratch scratch = take_scratch(arena);
            Piece(*this, functions, all_.work[unit], scratch).run();
        });
        // Many parts of few results: threads share the heads of each.
        const std::int64_t slices = all_.work_count <= 2 * kEnoughWork ? kFewRowGroups : 1;
        for_units(*launch_.pool, threads, all_.work_count * slices,
                  [&](std::int64_t unit, int lane) {
                      const SequenceWork* const work = all_.work + unit / slices;
                      const Range heads = slice(work->heads, unit % slices, slices);
                      if (work->parts == 0 || heads.empty()) return;
                      support::Arena arena(lanes_ + lane * lane_bytes_);
                      Scratch scratch = take_scratch(arena);
                      merge(functions, work, heads, scratch);
                  });
        for (int request = 0; request < all_.count; ++request)
            clear_unused(request);
    }

  private:
    Scratch take_scratch(support::Arena& arena) const {
        const std::int64_t parts = amx::most_parts(shape_);
        Scratch scratch{
            .keys = arena.take<float>(kKeyTile * shape_.head_dim),
            .values = arena.take<float>(kKeyTile * shape_.head_dim_v),
            .lse = arena.take<float>(kBlockRows),
            .output = arena.take<float>(kSkinnyRows * shape_.head_dim_v),
            .key_rows = arena.take<std::int64_t>(kKeyTile),
            .offsets = arena.take<std::int64_t>(kKeyTile + amx::RowList::kNext),
            .emitted = arena.take<std::uint64_t>(shape_.scratch_arrays * kMaxColumns + 1),
            .wide = arena.take<float>(
                parts > 0 ? kKeyTile * std::max(shape_.head_dim, shape_.head_dim_v) : 0),
            .blocks = {}};
        float* const scores = arena.take<float>(kBlockRows * kKeyTile);
        for (Block& block : scratch.blocks) {
            block.q = arena.take<float>(kBlockRows * shape_.head_dim);
            block.scores = scores;
            block.output = arena.take<float>(kBlockRows * shape_.head_dim_v);
            block.row_max = arena.take<float>(kBlockRows);
            block.row_sum = arena.take<float>(kBlockRows);
            block.row_correction = arena.take<float>(kBlockRows);
            block.packed_q =
                arena.take<std::uint16_t>(amx::query_room(kSkinnyRows, shape_.head_dim));
            block.tile_q = arena.take<std::uint16_t>(parts * kBlockRows * shape_.head_dim);
        }
        return scratch;
    }

    // Places the mask results of requests one after another, as far as there is room.
    void place_mask_results() {
        if (mask_results_ == nullptr) return;
        std::int64_t used = 0;
        for (int request = 0; request < all_.count; ++request) {
            const Sequence& sequence = all_.of(request);
            const std::int64_t count = SharedMaskResults::count(sequence.q_len, sequence.kv_len);
            first_mask_result_[request] = count <= mask_result_room_ - used ? used : kNoRoom;
            if (first_mask_result_[request] != kNoRoom) used += count;
        }
        std::fill_n(mask_results_, used, std::uint8_t{0});
    }
    SharedMaskResults mask_results_of(int request) const {
        if (mask_results_ == nullptr || first_mask_result_[request] == kNoRoom) return {};
        return {mask_results_ + first_mask_result_[request], all_.of(request).kv_len};
    }

    // Places the packed tiles of requests whose keys several pieces read, one after another, as far
    // as there is room.
    void place_tiles() {
        if (first_tile_ == nullptr) return;
        // At first, how many pieces read the first key of each request.
        std::fill_n(first_tile_, all_.count, 0);
        for (std::int64_t i = 0; i < all_.work_count; ++i)
            if (all_.work[i].key == 0 && all_.work[i].head < group())
                ++first_tile_[all_.work[i].request];
        std::int64_t used = 0;
        for (int request = 0; request < all_.count; ++request) {
            const bool is_shared = first_tile_[request] > 1;
            first_tile_[request] = is_shared ? used : kNoRoom;
            if (is_shared) used += tiles_of(all_.of(request).kv_len);
        }
        packed_keys_.clear();
        packed_values_.clear();
    }
    // The number of a packed tile, which may be beyond those for which there is room.
    std::int64_t packed_tile(int request, int kv_head, std::int64_t key) const {
        if (first_tile_ == nullptr || first_tile_[request] == kNoRoom) return kNoRoom;
        const std::int64_t of_head = tiles_of(all_.of(request).kv_len) / in_.kv_heads;
        return first_tile_[request] + kv_head * of_head + key / kKeyTile;
    }
    // Of all heads' keys.
    std::int64_t tiles_of(std::int64_t keys) const {
        return in_.kv_heads * ((keys + kKeyTile - 1) / kKeyTile);
    }
    int group() const { return in_.heads / in_.kv_heads; }

    std::int64_t part_rows() const {
        return std::min<std::int64_t>(kBlockRows, std::int64_t{in_.heads} * in_.q_len);
    }
    std::int64_t part_floats() const { return part_rows() * (shape_.head_dim_v + 2); }
    Part part_of(int index) const {
        float* const place = parts_ + index * part_floats();
        return {place, place + part_rows() * shape_.head_dim_v,
                place + part_rows() * (shape_.head_dim_v + 1)};
    }

    // Computes one piece of work in the scratch of a lane.
    class Piece {
      public:
        Piece(const Forward& all, const TileFunctions& functions, const SequenceWork& work,
              Scratch& scratch)
            : all_(all), functions_(functions), work_(work), scratch_(scratch),
              sequence_(all.all_.of(work.request)),
              mask_results_(all.mask_results_of(work.request)), in_(all.in_), launch_(all.launch_),
              uses_tiles_(amx::suits_tiles(all.shape_, all.in_)) {
            // The lengths of this request, for code that is written for a single length.
            in_.q_len = sequence_.q_len;
            in_.kv_len = sequence_.kv_len;
            in_.q_offset = sequence_.q_start;
            launch_.arguments = &in_;
        }

        void run() {
            fill_blocks();
            visit_key_tiles([&] {
                for (int i = 0; i < block_count_; ++i)
                    block_step(scratch_.blocks[i]);
            });
            for (int i = 0; i < block_count_; ++i)
                work_.part < 0
                    ? all_.finish(functions_, scratch_, scratch_.blocks[i], work_.request)
                    : keep(scratch_.blocks[i]);
        }

        // Evaluates the mask at the piece's tiles, with its first head.
        void evaluate_mask_for_all_heads() {
            Block& block = scratch_.blocks[0];
            block.head = work_.head;
            visit_key_tiles([&] {
                const int end = work_.query + work_.queries;
                for (block.query = work_.query; block.query < end; block.query += block.queries) {
                    block.queries = std::min(end - block.query, kBlockRows);
                    find_visible(block, 0);
                }
            });
        }

      private:
        void fill_blocks() {
            const int queries = std::min(work_.queries, kBlockRows);
            const int heads = std::min(heads_in_block(queries), in_.heads / in_.kv_heads);
            for (int head = 0; head < work_.heads; head += heads)
                for (int query = 0; query < work_.queries; query += queries) {
                    Block& block = scratch_.blocks[block_count_++];
                    block.head = work_.head + head;
                    block.heads = std::min(heads, work_.heads - head);
                    block.query = work_.query + query;
                    block.queries = std::min(queries, work_.queries - query);
                    fill(block);
                }
        }

        void fill(Block& block) {
            block.started = false;
            block.head_started.fill(false);
            block.has_tile_q = false;
            const auto rows = static_cast<int>(power_of_two(block.rows()));
            const Magnitude magnitude =
                uses_tiles_ && rows > kSkinnyRows ? pack_tile_queries(block) : widen_queries(block);
            block.is_moderate = is_moderate(in_.scale) && magnitude.is_moderate;
            block.is_finite = magnitude.is_finite;
            std::fill_n(block.row_max, block.rows(), -kInfinity);
            std::fill_n(block.row_sum, block.rows(), 0.0f);
            block.is_packed = may_use_amx(rows);
            if (block.is_packed)
                amx::pack_queries(rows, all_.shape_.head_dim, block.q, block.packed_q);
        }
        Magnitude widen_queries(const Block& block) const {
            const int dim = all_.shape_.head_dim;
            Magnitude all;
            for (int i = 0; i < block.heads; ++i) {
                const bool is_last = i + 1 == block.heads;
                const std::int64_t row = std::int64_t{i} * block.queries;
                all &= load_rows(in_.q, all_.shape_.dtype, queries_of(block, i), dim,
                                 block.q + row * dim,
                                 is_last ? most_rows(block) - row : block.queries);
            }
            return all;
        }

        // Rows with padding, in products of either kind.
        std::int64_t most_rows(const Block& block) const {
            const std::int64_t rows = power_of_two(block.rows());
            return uses_tiles_ ? round_up(rows, amx::kTileUnit) : rows;
        }
        Rows queries_of(const Block& block, int head) const {
            return all_.queries_of(block, work_.request, head);
        }
        Tile tile_of(const Block& block, int head) const {
            return all_.tile_of(scratch_, block, work_.request, head);
        }

        // Places `tile` at these columns.
        void move(Tile& tile, Range columns) const {
            tile.kv_begin = columns.begin + in_.kv_offset;
            tile.columns = columns.end - columns.begin;
            tile.kv_row = sequence_.kv_row + columns.begin;
            tile.kv_rows = scratch_.key_rows + columns.begin % kKeyTile;
        }

        // Calls visit() for each tile of the piece's keys, with keys_ set to it.
        template <typename Visit> void visit_key_tiles(const Visit& visit) {
            const std::int64_t end = std::int64_t{work_.key} + work_.keys;
            for (std::int64_t key = work_.key; key < end; key = keys_.end) {
                keys_ = {key, std::min((key / kKeyTile + 1) * kKeyTile, end)};
                has_keys_ = has_values_ = has_key_rows_ = false;
                kv_head_ = -1;
                visit();
            }
        }

        using VisibleByHead = std::array<VisibleColumns, kBlockRows>;

        void block_step(Block& block) {
            const int kv_head = block.head / (in_.heads / in_.kv_heads);
            if (kv_head != std::exchange(kv_head_, kv_head)) has_keys_ = has_values_ = false;
            VisibleByHead visible_columns;
            Range columns{keys_.end, keys_.begin};
            for (int i = 0; i < block.heads; ++i) {
                VisibleColumns& visible = visible_columns[static_cast<std::size_t>(i)];
                visible =
                    i > 0 && heads_see_the_same() ? visible_columns[0] : find_visible(block, i);
                if (visible.columns.empty()) continue;
                columns.begin = std::min(columns.begin, visible.columns.begin);
                columns.end = std::max(columns.end, visible.columns.end);
            }
            if (columns.empty()) return;
            if (may_be_skinny(power_of_two(block.rows())))
                return skinny_step(block, visible_columns, columns);
            if (uses_tiles_) columns.begin = columns.begin / amx::kTileUnit * amx::kTileUnit;
            if (block.heads > 1) return tile_step(block, visible_columns, columns);
            if (uses_tiles_ && !block.has_tile_q) pack_tile_queries(block);
            for (int query = 0; query < block.queries; query += kStripRows) {
                Block strip = rows_from(block, query);
                tile_step(strip, visible_columns, columns);
            }
            block.started = block.head_started[0] = true;
        }

        // Some rows of a block with one head.
        Block rows_from(Block block, int query) const {
            block.query += query;
            block.queries = std::min(block.queries - query, kStripRows);
            block.q += std::int64_t{query} * all_.shape_.head_dim;
            block.tile_q += query * amx::query_stride(all_.shape_.head_dim);
            block.output += std::int64_t{query} * all_.shape_.head_dim_v;
            block.row_max += query;
            block.row_sum += query;
            block.row_correction += query;
            return block;
        }

        // A few rows, whose products read keys and values from memory.
        void skinny_step(Block& block, const VisibleByHead& visible, Range columns) {
            const int dim = all_.shape_.head_dim;
            const auto rows = static_cast<int>(power_of_two(block.rows()));
            if (block.is_packed)
                amx::multiply_by_keys(rows, dim, block.packed_q, list_rows(columns, in_.k),
                                      block.scores, kKeyTile);
            else
                visit_memory(columns, in_.k, in_.k_scale,
                             [&](const MemoryRows& keys, std::int64_t column) {
                                 multiply_by_keys(all_.shape_.kv_dtype, rows, dim, block.q, keys,
                                                  block.scores + column, kKeyTile);
                             });
            weigh(block, visible, columns, rows, width_of(columns, kColumnUnit));
            add_from_memory(block, rows, columns);
            block.started = true;
        }
        void tile_step(Block& block, const VisibleByHead& visible, Range columns) {
            const auto rows = static_cast<int>(most_rows(block));
            const int width = width_of(columns, uses_tiles_ ? amx::kTileUnit : kColumnUnit);
            multiply_by_tile(block, rows, columns.begin % kKeyTile, width);
            weigh(block, visible, columns, rows, width);
            add_values(block, block.output, rows, columns.begin % kKeyTile, width);
            block.started = true;
        }
        static int width_of(Range columns, std::int64_t unit) {
            return static_cast<int>(round_up(columns.end - columns.begin, unit));
        }

        // Makes weights of the scores of all rows.
        void weigh(Block& block, const VisibleByHead& visible, Range columns, int rows, int width) {
            for (int i = 0; i < block.heads; ++i)
                head_step(block, i, visible[static_cast<std::size_t>(i)], columns, width);
            // Rows of padding have no scores.
            for (std::int64_t row = block.rows(); row < rows; ++row)
                std::fill_n(block.scores + row * kKeyTile, width, 0.0f);
        }

        // Products with `width` keys or values of the tile, from its column `first` on.
        void multiply_by_tile(Block& block, int rows, std::int64_t first, int width) {
            load_keys();
            const int dim = all_.shape_.head_dim, stride = static_cast<int>(kKeyTile);
            const DType dtype = all_.shape_.kv_dtype;
            const float* keys = packed_keys_.data;
            if (uses_tiles_) {
                if ((block.is_finite && packed_keys_.magnitude.is_finite) ||
                    !amx::needs_finite(dtype)) {
                    if (!block.has_tile_q) pack_tile_queries(block);
                    return amx::multiply_by_keys({dtype, dim, rows, width, first, kKeyTile},
                                                 block.tile_q, amx::bits(packed_keys_.data),
                                                 block.scores, kKeyTile);
                }
                widen_queries(block);
                widen_keys(scratch_.wide);
                keys = scratch_.wide;
            }
            multiply({rows, width, dim, dim, stride, stride}, block.q, keys + first, block.scores);
        }

        void add_values(const Block& block, float* output, int rows, std::int64_t first,
                        int width) {
            load_values();
            if (!uses_tiles_ || !packed_values_.magnitude.is_finite)
                return add_wide_values(block, output, rows, first, width);
            amx::pack_weights(rows, width, block.scores, kKeyTile);
            amx::add_weighted_values(
                {all_.shape_.kv_dtype, all_.shape_.head_dim_v, rows, width, first, kKeyTile},
                block.scores, kKeyTile, amx::bits(packed_values_.data), output, block.started);
        }
        void add_wide_values(const Block& block, float* output, int rows, std::int64_t first,
                             int width) {
            load_values();
            const int dim = all_.shape_.head_dim_v;
            if (uses_tiles_) widen_values(scratch_.wide);
            const float* const values = uses_tiles_ ? scratch_.wide : packed_values_.data;
            const Product product{.rows = rows,
                                  .columns = dim,
                                  .inner = width,
                                  .left_stride = static_cast<int>(kKeyTile),
                                  .right_stride = dim,
                                  .out_stride = dim,
                                  .accumulate = block.started};
            (packed_values_.magnitude.is_finite ? multiply : multiply_skipping_zeros)(
                product, block.scores, values + first * dim, output);
        }

        // Packs a block's queries for tiles.
        Magnitude pack_tile_queries(Block& block) const {
            block.has_tile_q = true;
            constexpr std::int64_t kBytes = 2;
            std::int64_t* offset = scratch_.offsets;
            for (int i = 0; i < block.heads; ++i) {
                const Rows rows = queries_of(block, i);
                for (std::int64_t row = rows.first; row < rows.first + rows.count; ++row)
                    *offset++ =
                        (in_.q.stride_h * rows.h + in_.q.stride_s * row + in_.q.stride_b * rows.b) *
                        kBytes;
            }
            return amx::pack_queries(
                all_.shape_.dtype,
                {static_cast<const char*>(in_.q.data), 0, scratch_.offsets, block.rows()},
                all_.shape_.head_dim, most_rows(block), block.tile_q);
        }

        // Whether products can read keys and values from memory without copying them (few rows).
        bool may_be_skinny(std::int64_t rows) const {
            return !has_keys_ && rows <= kSkinnyRows && in_.k.stride_d == 1 &&
                   in_.v.stride_d == 1 && has_skinny_products(all_.shape_.head_dim) &&
                   has_skinny_products(all_.shape_.head_dim_v);
        }
        bool may_use_amx(int rows) const {
            return all_.shape_.dtype == DType::bf16 && may_be_skinny(rows) &&
                   amx::suits(all_.shape_, in_);
        }
        void add_from_memory(const Block& block, int rows, Range columns) {
            const int dim = all_.shape_.head_dim_v;
            float* const output = block.output;
            if (!block.started) std::fill_n(output, rows * dim, 0.0f);
            std::copy_n(output, rows * dim, scratch_.output);
            if (block.is_packed)
                amx::add_weighted_values(rows, dim, block.scores, kKeyTile,
                                         list_rows(columns, in_.v), scratch_.output);
            else
                visit_memory(columns, in_.v, in_.v_scale,
                             [&](const MemoryRows& values, std::int64_t column) {
                                 add_weighted_values(all_.shape_.kv_dtype, rows, dim,
                                                     block.scores + column, kKeyTile, values,
                                                     scratch_.output);
                             });
            // Hidden elements have weight 0, which makes NaN of values that are not finite.
            if (all_finite(scratch_.output, rows * dim))
                std::copy_n(scratch_.output, rows * dim, output);
            else
                add_wide_values(
                    block, output, rows, columns.begin % kKeyTile,
                    static_cast<int>(round_up(columns.end - columns.begin, kColumnUnit)));
        }
        // Where these keys' rows of a tensor of 16 bits lie.
        amx::RowList list_rows(Range columns, const TensorArgument& tensor) const {
            constexpr std::int64_t kBytes = 2;
            amx::RowList list{static_cast<const char*>(tensor.data), tensor.stride_s * kBytes,
                              nullptr, columns.end - columns.begin};
            std::int64_t offset = 0, *next = scratch_.offsets;
            const auto add = [&](std::int64_t count) {
                for (std::int64_t i = 0; i < count; ++i, offset += list.stride)
                    *next++ = offset;
            };
            visit_runs(columns, [&](const Rows& rows, std::int64_t) {
                offset = rows.b * tensor.stride_b + rows.h * tensor.stride_h;
                offset = offset * kBytes + rows.first * list.stride;
                if (rows.count == list.count)
                    list.data += offset;
                else
                    add(rows.count);
            });
            if (next == scratch_.offsets) return list;
            add(amx::RowList::kNext);
            list.offsets = scratch_.offsets;
            return list;
        }
        // Calls visit(rows, index of the first one in `columns`) for each run of rows.
        template <typename Visit>
        void visit_memory(Range columns, const TensorArgument& tensor, const ScaleArgument& scale,
                          const Visit& visit) const {
            const FlushDenormals flush;
            const auto place = [&](const Rows& rows) {
                return rows.b * tensor.stride_b + rows.h * tensor.stride_h +
                       rows.first * tensor.stride_s;
            };
            MemoryRows memory{tensor.data, 0, tensor.stride_s, 0, 0};
            std::int64_t at = columns.begin;
            visit_runs(columns, [&](const Rows& rows, std::int64_t key) {
                memory.next = place(rows);
                if (memory.count > 0) visit(memory, at - columns.begin);
                memory.first = memory.next;
                memory.count = rows.count;
                memory.scale = scale.of(rows.b, static_cast<int>(rows.h));
                at = key;
            });
            memory.next = memory.first + memory.count * memory.stride;
            visit(memory, at - columns.begin);
        }

        bool heads_see_the_same() const {
            return all_.shape_.shares_mask_results ||
                   (functions_.mask == nullptr && !all_.shape_.has_band &&
                    in_.block_mask.words == nullptr);
        }
        VisibleColumns find_visible(const Block& block, int head) {
            Tile tile = tile_of(block, head);
            const VisibleBand band = visible_band(functions_, launch_, launch_.words, tile);
            const Range rows{block.query, block.query + block.queries};
            const Range seen = band.columns_of(rows, in_.kv_len);
            const Range inside{std::max(seen.begin / kColumnUnit * kColumnUnit, keys_.begin),
                               std::min(seen.end, keys_.end)};
            if (inside.empty()) return {{inside.end, inside.end}, false};
            // A program that hides elements by their score needs a bound on the scores.
            if (all_.shape_.hides_scores) {
                load_keys();
                tile.is_moderate = block.is_moderate && packed_keys_.magnitude.is_moderate;
            }
            return find_visible_columns(functions_, launch_, band,
                                        VisibleTiles(in_.block_mask, tile.b, tile.h), mask_results_,
                                        tile, rows, inside, [&](Tile& moved, Range part) {
                                            load_key_rows();
                                            move(moved, part);
                                        });
        }

        // Computes the probabilities of one head, and zeros for the product's other columns.
        void head_step(Block& block, int head, const VisibleColumns& visible, Range columns,
                       int width) {
            Tile tile = tile_of(block, head);
            if (visible.columns.empty()) {
                for (std::int64_t row = 0; row < tile.rows; ++row)
                    std::fill_n(tile.scores + row * kKeyTile, width, 0.0f);
                return;
            }
            const std::int64_t before = visible.columns.begin - columns.begin;
            const std::int64_t after = visible.columns.end - columns.begin;
            float* const scores = tile.scores;
            tile.scores += before;
            load_key_rows();
            move(tile, visible.columns);
            const bool full = visible.is_full && functions_.forward_full != nullptr;
            (full ? functions_.forward_full : functions_.forward)(launch_.words, &tile);
            for (std::int64_t row = 0; row < tile.rows; ++row) {
                std::fill_n(scores + row * kKeyTile, before, 0.0f);
                std::fill_n(scores + row * kKeyTile + after, width - after, 0.0f);
            }
            bool& started = block.head_started[static_cast<std::size_t>(head)];
            const std::int64_t row = std::int64_t{head} * block.queries;
            const int dim = all_.shape_.head_dim_v;
            if (started)
                rescale(block.queries, dim, block.row_correction + row, block.output + row * dim);
            started = true;
        }

        // Loads the whole tile once for all blocks, for the matrix unit or in f32.
        void load_keys() {
            if (has_keys_) return;
            has_keys_ = true;
            packed_keys_ = all_.packed_keys_.find(packed_tile(), scratch_.keys, [&](float* to) {
                return uses_tiles_ ? amx::pack_keys(all_.shape_.kv_dtype, list_rows(keys_, in_.k),
                                                    all_.shape_.head_dim, kKeyTile, amx::bits(to))
                                   : widen_keys(to);
            });
        }
        void load_values() {
            if (has_values_) return;
            has_values_ = true;
            packed_values_ =
                all_.packed_values_.find(packed_tile(), scratch_.values, [&](float* to) {
                    return uses_tiles_
                               ? amx::pack_values(all_.shape_.kv_dtype, list_rows(keys_, in_.v),
                                                  all_.shape_.head_dim_v, kKeyTile, amx::bits(to))
                               : widen_values(to);
                });
        }
        std::int64_t packed_tile() const {
            return all_.packed_tile(work_.request, kv_head_, keys_.begin);
        }
        // Transposed, so that a tile of scores is a plain product.
        Magnitude widen_keys(float* keys) const {
            return for_runs([&](const Rows& rows, std::int64_t column, std::int64_t padded) {
                return load_transposed(in_.k, all_.shape_.kv_dtype, rows, all_.shape_.head_dim,
                                       keys + column, kKeyTile, padded,
                                       in_.k_scale.of(rows.b, static_cast<int>(rows.h)));
            });
        }
        Magnitude widen_values(float* values) const {
            const int dim = all_.shape_.head_dim_v;
            return for_runs([&](const Rows& rows, std::int64_t column, std::int64_t padded) {
                return load_rows(in_.v, all_.shape_.kv_dtype, rows, dim, values + column * dim,
                                 padded, in_.v_scale.of(rows.b, static_cast<int>(rows.h)));
            });
        }
        void load_key_rows() {
            if (has_key_rows_ || !all_.shape_.reads_key_rows) return;
            has_key_rows_ = true;
            with_keys([&](const auto& keys) {
                if (keys.kAreInOrder) return; // emitted functions compute these rows
                for (std::int64_t key = keys_.begin; key < keys_.end; ++key)
                    scratch_.key_rows[key % kKeyTile] = keys.row(static_cast<int>(key));
            });
        }

        // Returns visit(the layout's access to the request's keys).
        template <typename Visit> void with_keys(const Visit& visit) const {
            const KeyTable& table = all_.all_.keys;
            with_key_layout(table.layout, [&](auto layout) {
                visit(typename decltype(layout)::Keys(table, sequence_,
                                                      static_cast<int>(work_.request)));
            });
        }

        // Calls visit(contiguous rows, the first one's key) for each run of keys.
        template <typename Visit> void visit_runs(Range keys, const Visit& visit) const {
            with_keys([&](const auto& of_request) {
                for (std::int64_t key = keys.begin; key < keys.end;) {
                    const KeyRun run =
                        of_request.run(static_cast<int>(key), static_cast<int>(keys.end - key));
                    visit(Rows{run.entry, kv_head_, run.row, run.count}, key);
                    key += run.count;
                }
            });
        }
        // Calls load(rows, column in the tile, number of rows with padding of zeros) for each run.
        // Padding lets products begin and end at multiples of units.
        template <typename Load> Magnitude for_runs(const Load& load) const {
            Magnitude all;
            visit_runs(keys_, [&](const Rows& rows, std::int64_t key) {
                const std::int64_t column = key % kKeyTile;
                const bool is_last = key + rows.count == keys_.end;
                all &= load(rows, column,
                            is_last ? round_up(column + rows.count, amx::kTileUnit) - column
                                    : rows.count);
            });
            return all;
        }

        void keep(const Block& block) {
            const int dim_v = all_.shape_.head_dim_v;
            const Part part = all_.part_of(work_.part);
            for (int head = 0; head < block.heads; ++head) {
                const std::int64_t first = std::int64_t{head} * block.queries;
                const std::int64_t to = (block.head - work_.head) * block.queries + first;
                const bool started = block.head_started[static_cast<std::size_t>(head)];
                std::copy_n(block.row_max + first, block.queries, part.row_max + to);
                std::copy_n(block.row_sum + first, block.queries, part.row_sum + to);
                if (started)
                    std::copy_n(block.output + first * dim_v, block.queries * dim_v,
                                part.output + to * dim_v);
                else
                    std::fill_n(part.output + to * dim_v, block.queries * dim_v, 0.0f);
            }
        }

        const Forward& all_;
        const TileFunctions& functions_;
        const SequenceWork& work_;
        Scratch& scratch_;
        const Sequence& sequence_;
        SharedMaskResults mask_results_;
        AttentionArguments in_;
        Launch launch_;
        int block_count_ = 0;
        Range keys_;       // of the current tile
        int kv_head_ = -1; // of the loaded keys and values
        bool has_keys_ = false, has_values_ = false, has_key_rows_ = false;
        PackedTile packed_keys_{}, packed_values_{};
        bool uses_tiles_; // of the matrix unit, for products of many rows
    };

    // Returns the rows of a block's queries in their tensors, for one of its heads.
    Rows queries_of(const Block& block, int request, int head) const {
        return {request, block.head + head, all_.of(request).q_row + block.query, block.queries};
    }

    Tile tile_of(const Scratch& scratch, const Block& block, int request, int head) const {
        const Sequence& sequence = all_.of(request);
        const std::int64_t row = std::int64_t{head} * block.queries;
        Tile tile{};
        tile.scores = block.scores + row * kKeyTile;
        tile.stride = kKeyTile;
        tile.row_max = block.row_max + row;
        tile.row_sum = block.row_sum + row;
        tile.row_correction = block.row_correction + row;
        tile.scratch = scratch.emitted;
        tile.b = request;
        tile.h = block.head + head;
        tile.h_kv = tile.h / (in_.heads / in_.kv_heads);
        tile.q_begin = block.query + sequence.q_start;
        tile.rows = block.queries;
        tile.scale = in_.scale;
        tile.q_len = sequence.q_len;
        tile.kv_len = sequence.kv_len;
        tile.q_row = sequence.q_row + block.query;
        return tile;
    }

    // Finishes rows after all keys: adds the sink, divides sums by the sum of weights, and stores.
    void finish(const TileFunctions& functions, const Scratch& scratch, const Block& block,
                int request) const {
        const int dim_v = shape_.head_dim_v;
        for (int head = 0; head < block.heads; ++head) {
            const std::int64_t first = std::int64_t{head} * block.queries;
            const bool started = block.head_started[static_cast<std::size_t>(head)];
            for (std::int64_t row = 0; row < block.queries; ++row)
                scratch.lse[row] =
                    started ? lse_of(block.row_max[first + row], block.row_sum[first + row])
                            : -kInfinity;
            const Rows queries = queries_of(block, request, head);
            // A sink raises the running maximum.
            store_max_scores(queries, block.row_max + first);
            std::fill_n(block.row_correction + first, block.queries, 1.0f);
            if (functions.sink != nullptr) {
                Tile tile = tile_of(scratch, block, request, head);
                tile.columns = 1;
                functions.sink(launch_.words, &tile);
            }
            float* const output = block.output + first * dim_v;
            divide(block.queries, dim_v, block.row_correction + first, block.row_sum + first,
                   output);
            for (std::int64_t row = 0; row < block.queries; ++row)
                if (scratch.lse[row] == -kInfinity) std::fill_n(output + row * dim_v, dim_v, 0.0f);
            store(queries, output, scratch.lse);
        }
    }

    // A loop without branches, of which the compiler makes vectors.
    static bool all_finite(const float* values, std::int64_t count) {
        std::uint32_t overflow = 0; // of exponents that are all ones
        for (std::int64_t i = 0; i < count; ++i)
            overflow |= (std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffffu) + 0x00800000u;
        return overflow >> 31 == 0;
    }

    static float lse_of(float maximum, float sum) {
        return maximum == -kInfinity ? -kInfinity
                                     : static_cast<float>(double{maximum} + std::log(double{sum}));
    }

    void store(const Rows& rows, const float* output, const float* lse) const {
        const int dim_v = shape_.head_dim_v;
        store_rows(in_.o, shape_.dtype, in_.o_flags, rows, dim_v, output, dim_v);
        if (in_.lse.data != nullptr) store_rows(in_.lse, DType::f32, 0, rows, 1, lse, 1);
    }

    void store_max_scores(const Rows& rows, const float* max_scores) const {
        if (in_.max_scores.data != nullptr)
            store_rows(in_.max_scores, DType::f32, 0, rows, 1, max_scores, 1);
    }

    static Range slice(std::int64_t count, std::int64_t index, std::int64_t slices) {
        return {count * index / slices, count * (index + 1) / slices};
    }

    // Combines the parts of some heads of one result, in the order of keys.
    void merge(const TileFunctions& functions, const SequenceWork* work, Range heads,
               Scratch& scratch) const {
        const int dim_v = shape_.head_dim_v;
        Block& block = scratch.blocks[0];
        block.head = work->head + static_cast<int>(heads.begin);
        block.heads = static_cast<int>(heads.end - heads.begin);
        block.query = work->query;
        block.queries = work->queries;
        block.head_started.fill(true);
        const std::int64_t first = heads.begin * work->queries;
        for (std::int64_t row = 0; row < block.rows(); ++row) {
            float maximum = -kInfinity;
            for (int i = 0; i < work->parts; ++i)
                maximum = std::max(maximum, part_of(work[i].part).row_max[first + row]);
            float* const output = block.output + row * dim_v;
            double sum = 0;
            for (int i = 0; i < work->parts && maximum > -kInfinity; ++i) {
                const Part part = part_of(work[i].part);
                const float factor = std::exp(part.row_max[first + row] - maximum);
                sum += double{factor} * part.row_sum[first + row];
                const float* const from = part.output + (first + row) * dim_v;
                for (int d = 0; d < dim_v; ++d)
                    output[d] = i == 0 ? from[d] * factor : output[d] + from[d] * factor;
            }
            block.row_max[row] = maximum;
            block.row_sum[row] = static_cast<float>(sum);
        }
        finish(functions, scratch, block, work->request);
    }

    // Clears the rows of queries that the request has and does not use.
    void clear_unused(int request) const {
        const Sequence& sequence = all_.of(request);
        const std::array<float, kMaxHeadDim> zeros{};
        const float nothing = -kInfinity;
        for (std::int64_t row = sequence.q_len; row < sequence.q_rows; ++row)
            for (int head = 0; head < in_.heads; ++head) {
                const Rows rows{request, head, sequence.q_row + row, 1};
                store(rows, zeros.data(), &nothing);
                store_max_scores(rows, &nothing);
            }
    }

    const Launch& launch_;
    const KernelShape& shape_;
    const AttentionArguments& in_;
    const SequenceArguments& all_;
    support::Arena arena_;
    float* parts_ = nullptr;
    static constexpr std::int64_t kNoRoom = -1;
    std::uint8_t* mask_results_ = nullptr;
    std::int64_t* first_mask_result_ = nullptr; // of each request, or kNoRoom
    std::int64_t mask_result_room_ = 0;
    PackedTiles packed_keys_, packed_values_;
    std::int64_t* first_tile_ = nullptr; // of each request, or kNoRoom
    std::int64_t lane_bytes_;
    char* lanes_;
};

} // namespace

std::size_t forward_sequences_workspace(const Launch& launch) {
    return Forward(launch).workspace();
}

void forward_sequences(const TileFunctions& functions, const Launch& launch) {
    Forward(launch).run(functions);
}

} // namespace flexc::cpu
