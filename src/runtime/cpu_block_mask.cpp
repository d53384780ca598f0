#include "runtime/cpu_block_mask.h"

#include <algorithm>
#include <bit>

#include "analysis/tile_class.h"
#include "cpu/backend_table.h"
#include "runtime/mask_values.h"
#include "support/amounts.h"

namespace flexc::runtime {

namespace {

using analysis::TileClass;
using analysis::TiledAxis;

TiledAxis queries_of(const AttentionArguments& attention) {
    return {attention.q_len, attention.q_offset, cpu::kMaskQueryTile};
}
TiledAxis keys_of(const AttentionArguments& attention) {
    return {attention.kv_len, attention.kv_offset, cpu::kMaskKeyTile};
}
std::int64_t words_of(const TiledAxis& keys) { return (keys.tiles() + 31) / 32; }

using Kind = passes::ArgumentSlot::Kind;

// Returns the sizes, params and buffers that the argument words contain.
MaskValues values_of(const ir::Program& program, std::span<const passes::ArgumentSlot> slots,
                     std::span<const std::uint64_t> words, const AttentionArguments& attention) {
    std::vector<std::int64_t> sizes(program.sizes.size());
    std::vector<std::uint64_t> params(program.params.size());
    std::vector<TensorView> views(program.buffers.size());
    for (std::size_t i = 0; i < slots.size(); ++i) {
        const passes::ArgumentSlot& slot = slots[i];
        const auto number = static_cast<std::int64_t>(words[i]);
        switch (slot.kind) {
        case Kind::buffer_data: {
            TensorView& view = views[slot.index];
            view.data = std::bit_cast<void*>(words[i]);
            view.dtype = program.buffers[slot.index].dtype;
            view.rank = static_cast<int>(program.buffers[slot.index].dims.size());
            break;
        }
        case Kind::buffer_extent: views[slot.index].shape[slot.dim] = number; break;
        case Kind::buffer_stride: views[slot.index].strides[slot.dim] = number; break;
        case Kind::param: params[slot.index] = words[i]; break;
        case Kind::size: sizes[slot.index] = number; break;
        case Kind::gradient_data:
        case Kind::gradient_stride:
        case Kind::out_of_range:
        case Kind::first_kv_head:
        case Kind::sequences: // only dense tensors have block masks here
        case Kind::key_numbers:
        case Kind::key_table_size:
        case Kind::reciprocal: // the values that they are of are computed from sizes and params
        case Kind::divisor_sign: break;
        }
    }
    sizes[ir::kH] = attention.heads;
    sizes[ir::kHKv] = attention.kv_heads;
    return {program, std::move(sizes), params, views};
}

} // namespace

CpuBlockMask::CpuBlockMask(const passes::Mod& mod)
    : program_(mod.program), mask_(mod.mask), slots_(passes::argument_slots(mod)),
      by_batch_(mod.dependence[mod.mask].has(analysis::Dependence::b)),
      by_head_(mod.dependence[mod.mask].has(analysis::Dependence::h)) {}

std::int64_t CpuBlockMask::batches(const AttentionArguments& attention) const {
    return by_batch_ ? attention.batch : 1;
}
std::int64_t CpuBlockMask::heads(const AttentionArguments& attention) const {
    return by_head_ ? attention.heads : 1;
}

std::size_t CpuBlockMask::bytes(const AttentionArguments& attention) const {
    return support::product(sizeof(TileWord), batches(attention), heads(attention),
                            queries_of(attention).tiles(), words_of(keys_of(attention)));
}

BlockMask CpuBlockMask::in(const AttentionArguments& attention, void* memory) const {
    return {.rows = nullptr,
            .words = static_cast<TileWord*>(memory),
            .order = nullptr,
            .row_count = static_cast<int>(queries_of(attention).tiles()),
            .word_count = static_cast<int>(words_of(keys_of(attention))),
            .batch_stride = by_batch_ ? static_cast<int>(heads(attention)) : 0,
            .head_stride = by_head_ ? 1 : 0};
}

Result<void> CpuBlockMask::build(const AttentionArguments& attention,
                                 std::span<const std::uint64_t> words, void* memory) const {
    const TiledAxis queries = queries_of(attention), keys = keys_of(attention);
    auto* word = static_cast<TileWord*>(memory);
    const MaskValues values = values_of(program_, slots_, words, attention);
    for (std::int64_t b = 0; b < batches(attention); ++b)
        for (std::int64_t h = 0; h < heads(attention); ++h) {
            const analysis::TileClassifier tiles(program_, mask_, values.of_head(b, h), queries,
                                                 keys);
            for (std::int64_t row = 0; row < queries.tiles(); ++row)
                for (std::int64_t first = 0; first < keys.tiles(); first += 32, ++word) {
                    *word = {0, 0};
                    for (std::int64_t i = first; i < std::min(first + 32, keys.tiles()); ++i) {
                        const auto tile = tiles.test(row, i);
                        const unsigned bit = 1u << (i - first);
                        if (tile != TileClass::empty) word->visible |= bit;
                        if (tile == TileClass::full) word->full |= bit;
                    }
                }
        }
    return {};
}

} // namespace flexc::runtime
