// Forward of requests with lengths of their own: divides its memory, and has threads compute the
// pieces of the plan's work.
#include <algorithm>
#include <cstdint>

#include "cpu/backend/attention.h"
#include "cpu/backend/request_piece.h"
#include "cpu/backend/skinny_amx.h"
#include "cpu/backend/threads.h"
#include "support/arena.h"

namespace flexc::cpu {

namespace {

using requests::Block, requests::kKeyTile, requests::Scratch;

Scratch take_scratch(support::Arena& arena, const KernelShape& shape) {
    const std::int64_t most_parts = parts::most_parts(shape);
    Scratch scratch{.keys = arena.take<float>(kKeyTile * shape.head_dim),
                    .values = arena.take<float>(kKeyTile * shape.head_dim_v),
                    .lse = arena.take<float>(kBlockRows),
                    .key_rows = arena.take<std::int64_t>(kKeyTile),
                    .offsets = arena.take<std::int64_t>(kKeyTile + RowList::kNext),
                    .emitted = arena.take<std::uint64_t>(shape.scratch_arrays * kMaxColumns + 1),
                    .wide = arena.take<float>(
                        most_parts > 0 ? kKeyTile * std::max(shape.head_dim, shape.head_dim_v) : 0),
                    .blocks = {}};
    float* const scores = arena.take<float>(kBlockRows * kKeyTile);
    float* const new_output = arena.take<float>(kBlockRows * shape.head_dim_v);
    std::uint16_t* const rounded_weights = arena.take<std::uint16_t>(kBlockRows * kKeyTile);
    for (Block& block : scratch.blocks) {
        block.q = arena.take<float>(kBlockRows * shape.head_dim);
        block.scores = scores;
        block.new_output = new_output;
        block.rounded_weights = rounded_weights;
        block.output = arena.take<float>(kBlockRows * shape.head_dim_v);
        block.row_max = arena.take<float>(kBlockRows);
        block.row_sum = arena.take<float>(kBlockRows);
        block.row_correction = arena.take<float>(kBlockRows);
        block.packed_q = arena.take<std::uint16_t>(amx::query_room(kSkinnyRows, shape.head_dim));
        block.tile_q = arena.take<std::uint16_t>(most_parts * kBlockRows * shape.head_dim);
    }
    return scratch;
}

Range slice(std::int64_t count, std::int64_t index, std::int64_t slices) {
    return {count * index / slices, count * (index + 1) / slices};
}

class Forward {
  public:
    explicit Forward(const Launch& launch)
        : launch_(launch), all_(*launch.sequences), arena_(launch.workspace),
          parts_(launch, arena_), mask_results_(launch, arena_), tiles_(launch, arena_) {
        support::Arena lane(nullptr);
        take_scratch(lane, *launch.shape);
        lane_bytes_ = static_cast<std::int64_t>(lane.used());
        lanes_ = arena_.take<char>(lane_bytes_ * launch.threads);
    }

    std::size_t workspace() const { return arena_.used(); }

    void run(const TileFunctions& functions) {
        const KernelShape& shape = *launch_.shape;
        std::int64_t multiplications = 0;
        for (std::int64_t i = 0; i < all_.work_count; ++i) {
            const SequenceWork& work = all_.work[i];
            multiplications += std::int64_t{work.heads} * work.queries * work.keys *
                               (shape.head_dim + shape.head_dim_v);
        }
        const int threads = useful_threads(launch_.threads, multiplications);
        mask_results_.place();
        tiles_.place();
        const requests::Common common{functions, launch_, mask_results_, tiles_, parts_};
        // Evaluates the mask of all tiles first, by all threads. Otherwise threads with different
        // heads would evaluate the same tile at once.
        if (mask_results_.any() && threads > 1)
            for_units(*launch_.pool, threads, all_.work_count, [&](std::int64_t unit, int lane) {
                if (all_.work[unit].head != 0) return;
                Scratch scratch = scratch_of(lane);
                requests::evaluate_mask(common, all_.work[unit], scratch);
            });
        const auto compute = [&](std::int64_t unit, int lane) {
            Scratch scratch = scratch_of(lane);
            requests::compute(common, all_.work[unit], scratch);
        };
        if (tiles_.any())
            for_units(*launch_.pool, threads, all_.work_count, compute);
        else
            for_runs_of_units(*launch_.pool, threads, all_.work_count, compute);
        // Many parts of few results: threads share the heads of each.
        const std::int64_t slices = all_.work_count <= 2 * kEnoughWork ? kFewRowGroups : 1;
        for_units(
            *launch_.pool, threads, all_.work_count * slices, [&](std::int64_t unit, int lane) {
                const SequenceWork* const work = all_.work + unit / slices;
                const Range heads = slice(work->heads, unit % slices, slices);
                if (work->parts == 0 || heads.empty()) return;
                Scratch scratch = scratch_of(lane);
                parts_.merge(work, heads, scratch.blocks[0]);
                requests::finish(functions, launch_, work->request, scratch.blocks[0], scratch);
            });
        for (int request = 0; request < all_.count; ++request)
            requests::clear_unused(launch_, request);
    }

  private:
    Scratch scratch_of(int lane) const {
        support::Arena arena(lanes_ + lane * lane_bytes_);
        return take_scratch(arena, *launch_.shape);
    }

    const Launch& launch_;
    const SequenceArguments& all_;
    support::Arena arena_;
    requests::Parts parts_;
    MaskResultsOfRequests mask_results_;
    requests::SharedTiles tiles_;
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
