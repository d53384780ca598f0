#include "runtime/block_masks.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "runtime/alignment.h"
#include "support/text.h"

namespace flexc::runtime {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32; // of plan.cu
constexpr std::int64_t kTilesInWord = 32;

std::int64_t parts(std::int64_t whole, std::int64_t part) { return (whole + part - 1) / part; }

// Hands out pieces of memory, or where there is none only counts.
class Carver {
  public:
    explicit Carver(std::byte* memory) : memory_(memory) {}
    template <typename T> T* take(std::int64_t count) {
        std::byte* const piece = memory_ == nullptr ? nullptr : memory_ + used_;
        used_ = support::plus(used_,
                              aligned(support::times(static_cast<std::size_t>(count), sizeof(T))));
        return reinterpret_cast<T*>(piece);
    }
    std::size_t used() const { return used_; }

  private:
    std::byte* memory_;
    std::size_t used_ = 0;
};

} // namespace

Result<BlockMasks> BlockMasks::load(cuda::Module module, const plan::KernelConfig& planner) {
    auto facts = module.function("flexc_plan_facts", 0);
    if (!facts) return facts.error();
    auto tiles = module.function("flexc_plan_tiles", 0);
    if (!tiles) return tiles.error();
    auto order = module.function("flexc_plan_order", 0);
    if (!order) return order.error();
    return BlockMasks(std::move(module), *planner.block_mask, *facts, *tiles, *order);
}

BlockMasks::Tiling BlockMasks::tiling_of(const plan::KernelConfig& kernel) {
    return {kernel.query_tile, kernel.key_tile, kernel.owns_keys};
}

void BlockMasks::add(const plan::KernelConfig& kernel) {
    const Tiling tiling = tiling_of(kernel);
    if (std::ranges::find(tilings_, tiling) == tilings_.end()) tilings_.push_back(tiling);
}

BlockMasks::Placed BlockMasks::place(const AttentionArguments& attention, std::byte* memory) const {
    Placed result;
    PlanArguments& plan = result.plan;
    plan.masks_of_batches = shape_.by_batch ? attention.batch : 1;
    plan.masks_of_heads = shape_.by_head ? attention.heads : 1;
    const std::int64_t masks = std::int64_t{plan.masks_of_batches} * plan.masks_of_heads;
    Carver carver(memory);
    for (std::size_t i = 0; i < tilings_.size(); ++i) {
        const Tiling& tiling = tilings_[i];
        const std::int64_t query_tiles = parts(attention.q_len, tiling.query_tile);
        const std::int64_t key_tiles = parts(attention.kv_len, tiling.key_tile);
        const std::int64_t rows = tiling.by_keys ? key_tiles : query_tiles;
        const std::int64_t words = parts(tiling.by_keys ? query_tiles : key_tiles, kTilesInWord);
        plan.masks[i] = {
            .mask = {.rows = carver.take<TileRow>(masks * rows),
                     .words = carver.take<TileWord>(support::product(masks, rows, words)),
                     .order = carver.take<int>(masks * rows),
                     .row_count = static_cast<int>(rows),
                     .word_count = static_cast<int>(words),
                     .batch_stride = shape_.by_batch ? plan.masks_of_heads : 0,
                     .head_stride = shape_.by_head ? 1 : 0},
            .query_facts =
                carver.take<double>(support::product(masks, query_tiles, 2 * shape_.query_facts)),
            .key_facts =
                carver.take<double>(support::product(masks, key_tiles, 2 * shape_.key_facts)),
            .query_tile = tiling.query_tile,
            .key_tile = tiling.key_tile,
            .query_tiles = static_cast<int>(query_tiles),
            .key_tiles = static_cast<int>(key_tiles),
            .by_keys = tiling.by_keys};
    }
    result.bytes = carver.used();
    return result;
}

std::size_t BlockMasks::bytes(const AttentionArguments& attention) const {
    return place(attention, nullptr).bytes;
}

BlockMask BlockMasks::of(const plan::KernelConfig& kernel, const AttentionArguments& attention,
                         void* memory) const {
    const auto index = std::ranges::find(tilings_, tiling_of(kernel)) - tilings_.begin();
    return place(attention, static_cast<std::byte*>(memory)).plan.masks[index].mask;
}

Result<void> BlockMasks::build(const AttentionArguments& attention, const void* words, void* memory,
                               void* stream) const {
    const Placed placed = place(attention, static_cast<std::byte*>(memory));
    const PlanArguments& plan = placed.plan;
    const std::int64_t masks = std::int64_t{plan.masks_of_batches} * plan.masks_of_heads;
    std::int64_t facts = 0, tiles = 0, order = 0; // blocks
    for (std::size_t i = 0; i < tilings_.size(); ++i) {
        const PlannedBlockMask& one = plan.masks[i];
        const std::int64_t rows = one.mask.row_count;
        facts =
            std::max(facts, parts(masks * (std::int64_t{one.query_tiles} + one.key_tiles), kWarps));
        tiles = std::max(tiles, support::product(masks, rows, parts(one.mask.word_count, kWarps)));
        order = std::max(order, masks * parts(rows, kThreads));
    }
    if (std::max({facts, tiles, order}) > INT32_MAX)
        return Error{
            ErrorCode::limit,
            formatted("the block masks of {} heads are too large for one launch: split the "
                      "batch",
                      masks)};
    const std::array<void*, 3> arguments = {const_cast<AttentionArguments*>(&attention),
                                            const_cast<void*>(words),
                                            const_cast<PlanArguments*>(&plan)};
    struct Launch {
        const cuda::Function* function;
        std::int64_t blocks;
    };
    for (const Launch& one : {Launch{&facts_, facts}, {&tiles_, tiles}, {&order_, order}})
        if (auto done = one.function->launch({.x = static_cast<unsigned>(one.blocks),
                                              .y = static_cast<unsigned>(tilings_.size())},
                                             {.x = kThreads}, 0, stream, arguments);
            !done)
            return done;
    return {};
}

} // namespace flexc::runtime
