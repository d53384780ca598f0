#include "cpu/backend/request_piece.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <span>

#include "cpu/backend/request_key_tile.h"
#include "cpu/backend/rescale.h"
#include "cpu/backend/tile_range.h"

namespace flexc::cpu::requests {

namespace {

using VisibleByHead = std::array<VisibleColumns, kBlockRows>;

int width_of(Range columns, std::int64_t unit) {
    return static_cast<int>(round_up(columns.end - columns.begin, unit));
}

class Piece {
  public:
    Piece(const Common& common, const SequenceWork& work, Scratch& scratch)
        : common_(common), functions_(common.functions), shape_(*common.launch.shape), work_(work),
          scratch_(scratch), sequence_(common.launch.sequences->of(work.request)),
          mask_results_(common.mask_results.of(work.request)), in_(*common.launch.arguments),
          launch_(common.launch), unit_(parts::unit_for(shape_, in_)),
          queries_(common.launch, work.request, has_parts()),
          key_tile_(common.launch, work.request, common.tiles, unit_, scratch) {
        // The lengths of this request, for code that is written for a single length.
        in_.q_len = sequence_.q_len;
        in_.kv_len = sequence_.kv_len;
        in_.q_offset = sequence_.q_start;
        launch_.arguments = &in_;
    }
    Piece(const Piece&) = delete; // launch_ refers to in_
    Piece& operator=(const Piece&) = delete;

    void compute() {
        fill_blocks();
        const bool joins_blocks = may_join_blocks();
        if (joins_blocks) separate_blocks();
        visit_key_tiles([&] {
            if (joins_blocks) return joint_step();
            for (int i = 0; i < block_count_; ++i)
                block_step(scratch_.blocks[i]);
        });
        for (int i = 0; i < block_count_; ++i)
            work_.part < 0
                ? finish(functions_, common_.launch, work_.request, scratch_.blocks[i], scratch_)
                : common_.parts.keep(work_, scratch_.blocks[i]);
    }

    void evaluate_mask() {
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
    // Whether products of many rows are those of bf16 parts.
    bool has_parts() const { return unit_ != parts::Unit::none; }

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
        const Magnitude magnitude = has_parts() && rows > kSkinnyRows
                                        ? queries_.pack(block, scratch_.offsets)
                                        : queries_.widen(block);
        block.is_moderate = is_moderate(in_.scale) && magnitude.is_moderate;
        block.is_finite = magnitude.is_finite;
        std::fill_n(block.row_max, block.rows(), -std::numeric_limits<float>::infinity());
        std::fill_n(block.row_sum, block.rows(), 0.0f);
        block.few_rows_by = key_tile_.few_rows_by(rows);
        if (block.few_rows_by == FewRowsBy::matrix_unit)
            amx::pack_queries(rows, shape_.head_dim, block.q, block.packed_q);
        if (block.few_rows_by == FewRowsBy::bf16)
            std::transform(block.q, block.q + std::int64_t{rows} * shape_.head_dim, block.packed_q,
                           [](float q) {
                               return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(q) >>
                                                                 16);
                           });
    }

    // Whether all blocks multiply a few keys, one block after the other, before the next keys.
    bool may_join_blocks() const {
        std::int64_t rows = 0;
        for (int i = 0; i < block_count_; ++i) {
            const Block& block = scratch_.blocks[static_cast<std::size_t>(i)];
            const std::int64_t padded = power_of_two(block.rows());
            if (block.few_rows_by == FewRowsBy::matrix_unit || !key_tile_.may_be_skinny(padded))
                return false;
            rows += padded;
        }
        // A look at the scores needs copies of one head's keys.
        return block_count_ > 1 && rows <= kBlockRows && !shape_.hides_scores &&
               key_tile_.joins_heads();
    }
    // Gives blocks, which share memory otherwise, a part of it each.
    void separate_blocks() {
        std::int64_t row = 0;
        for (int i = 0; i < block_count_; ++i) {
            Block& block = scratch_.blocks[static_cast<std::size_t>(i)];
            block.scores += row * kKeyTile;
            block.new_output += row * shape_.head_dim_v;
            block.rounded_weights += row * kKeyTile;
            row += power_of_two(block.rows());
        }
    }

    // Calls visit() for each tile of the piece's keys, with key_tile_ at it.
    template <typename Visit> void visit_key_tiles(const Visit& visit) {
        const std::int64_t end = std::int64_t{work_.key} + work_.keys;
        for (std::int64_t key = work_.key; key < end; key = key_tile_.keys().end) {
            key_tile_.move_to({key, std::min((key / kKeyTile + 1) * kKeyTile, end)});
            visit();
        }
    }

    // What a block's heads see of the key tile, and all of it together.
    struct Seen {
        VisibleByHead by_head;
        Range columns;
    };
    Seen look(const Block& block) {
        key_tile_.move_to_head(block.head / (in_.heads / in_.kv_heads));
        Seen seen{{}, {key_tile_.keys().end, key_tile_.keys().begin}};
        for (int i = 0; i < block.heads; ++i) {
            VisibleColumns& visible = seen.by_head[static_cast<std::size_t>(i)];
            visible = i > 0 && heads_see_the_same() ? seen.by_head[0] : find_visible(block, i);
            if (visible.columns.empty()) continue;
            seen.columns.begin = std::min(seen.columns.begin, visible.columns.begin);
            seen.columns.end = std::max(seen.columns.end, visible.columns.end);
        }
        return seen;
    }

    void block_step(Block& block) {
        const Seen seen = look(block);
        Range columns = seen.columns;
        if (columns.empty()) return;
        if (key_tile_.may_be_skinny(power_of_two(block.rows())))
            return skinny_step(std::array{few_rows(block, columns)}, &seen);
        if (has_parts()) columns.begin = columns.begin / parts::kTileUnit * parts::kTileUnit;
        if (block.heads > 1) return tile_step(block, seen.by_head, columns);
        if (has_parts() && !block.has_tile_q) queries_.pack(block, scratch_.offsets);
        for (int query = 0; query < block.queries; query += kStripRows) {
            Block strip = rows_from(block, query);
            tile_step(strip, seen.by_head, columns);
        }
        block.started = block.head_started[0] = true;
    }

    // Some rows of a block with one head.
    Block rows_from(Block block, int query) const {
        block.query += query;
        block.queries = std::min(block.queries - query, kStripRows);
        block.q += std::int64_t{query} * shape_.head_dim;
        block.tile_q += query * parts::query_stride(shape_.head_dim);
        block.output += std::int64_t{query} * shape_.head_dim_v;
        block.row_max += query;
        block.row_sum += query;
        block.row_correction += query;
        return block;
    }

    void joint_step() {
        std::array<FewRows, kMostBlocks> few;
        std::array<Seen, kMostBlocks> seen;
        std::size_t count = 0;
        for (int i = 0; i < block_count_; ++i) {
            Block& block = scratch_.blocks[static_cast<std::size_t>(i)];
            seen[count] = look(block);
            if (seen[count].columns.empty()) continue;
            few[count] = few_rows(block, seen[count].columns);
            ++count;
        }
        if (count > 0) skinny_step({few.data(), count}, seen.data());
    }

    static FewRows few_rows(Block& block, Range columns) {
        return {&block, static_cast<int>(power_of_two(block.rows())), columns};
    }
    // Blocks of a few rows, whose products read keys and values from memory. seen: of each.
    void skinny_step(std::span<const FewRows> all, const Seen* seen) {
        key_tile_.multiply_in_memory(all);
        for (const FewRows& few : all)
            weigh(*few.block, seen++->by_head, few.columns, few.rows,
                  width_of(few.columns, kColumnUnit));
        key_tile_.add_values_in_memory(all);
        for (const FewRows& few : all)
            few.block->started = true;
    }
    void tile_step(Block& block, const VisibleByHead& visible, Range columns) {
        const auto rows = static_cast<int>(queries_.padded_rows(block));
        const int width = width_of(columns, has_parts() ? parts::kTileUnit : kColumnUnit);
        key_tile_.multiply(block, rows, columns.begin % kKeyTile, width);
        weigh(block, visible, columns, rows, width);
        key_tile_.add_values(block, rows, columns.begin % kKeyTile, width);
        block.started = true;
    }

    // Makes weights of the scores of all rows.
    void weigh(Block& block, const VisibleByHead& visible, Range columns, int rows, int width) {
        for (int i = 0; i < block.heads; ++i)
            head_step(block, i, visible[static_cast<std::size_t>(i)], columns, width);
        // Rows of padding have no scores.
        for (std::int64_t row = block.rows(); row < rows; ++row)
            std::fill_n(block.scores + row * kKeyTile, width, 0.0f);
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
        move(tile, visible.columns);
        const bool full = visible.is_full && functions_.forward_full != nullptr;
        (full ? functions_.forward_full : functions_.forward)(launch_.words, &tile);
        for (std::int64_t row = 0; (before > 0 || after < width) && row < tile.rows; ++row) {
            std::fill_n(scores + row * kKeyTile, before, 0.0f);
            std::fill_n(scores + row * kKeyTile + after, width - after, 0.0f);
        }
        bool& started = block.head_started[static_cast<std::size_t>(head)];
        const std::int64_t row = std::int64_t{head} * block.queries;
        const int dim = shape_.head_dim_v;
        if (started)
            rescale(block.queries, dim, block.row_correction + row, block.output + row * dim);
        started = true;
    }

    bool heads_see_the_same() const {
        return shape_.shares_mask_results ||
               (functions_.mask == nullptr && !shape_.has_band && in_.block_mask.words == nullptr);
    }
    VisibleColumns find_visible(const Block& block, int head) {
        Tile tile = tile_of(block, head);
        const VisibleBand band = visible_band(functions_, launch_, launch_.words, tile);
        const Range rows{block.query, block.query + block.queries};
        const Range seen = band.columns_of(rows, in_.kv_len);
        const Range inside{std::max(seen.begin / kColumnUnit * kColumnUnit, key_tile_.keys().begin),
                           std::min(seen.end, key_tile_.keys().end)};
        if (inside.empty()) return {{inside.end, inside.end}, false};
        // A program that hides elements by their score needs a bound on the scores.
        if (shape_.hides_scores)
            tile.is_moderate = key_tile_.keys_are_moderate() && block.is_moderate;
        return find_visible_columns(
            functions_, launch_, band, VisibleTiles(in_.block_mask, tile.b, tile.h), mask_results_,
            tile, rows, inside, [&](Tile& moved, Range part) { move(moved, part); });
    }

    Tile tile_of(const Block& block, int head) const {
        return requests::tile_of(block, sequence_, work_.request, head, in_, scratch_.emitted);
    }
    // Places `tile` at these columns.
    void move(Tile& tile, Range columns) {
        tile.kv_begin = columns.begin + in_.kv_offset;
        tile.columns = columns.end - columns.begin;
        tile.kv_row = sequence_.kv_row + columns.begin;
        tile.kv_rows = key_tile_.key_rows() + columns.begin % kKeyTile;
    }

    const Common& common_;
    const TileFunctions& functions_;
    const KernelShape& shape_;
    const SequenceWork& work_;
    Scratch& scratch_;
    const Sequence& sequence_;
    SharedMaskResults mask_results_;
    AttentionArguments in_;
    Launch launch_;
    parts::Unit unit_; // for products of many rows
    Queries queries_;
    KeyTile key_tile_;
    int block_count_ = 0;
};

} // namespace

void compute(const Common& common, const SequenceWork& work, Scratch& scratch) {
    Piece(common, work, scratch).compute();
}

void evaluate_mask(const Common& common, const SequenceWork& work, Scratch& scratch) {
    Piece(common, work, scratch).evaluate_mask();
}

} // namespace flexc::cpu::requests
