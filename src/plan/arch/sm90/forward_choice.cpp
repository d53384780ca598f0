#include "plan/arch/sm90/forward_choice.h"

#include <algorithm>

#include "plan/arch/sm90/sm90.h"
#include "support/text.h"

namespace flexc::plan::sm90 {
namespace {

// Whether TMA loads rows of so many columns slowly, because they are not whole sectors of memory.
// For narrow heads, threads that copy them would cost a third warpgroup, which is worse; for the
// widest, the products take longer than either kind of load.
bool has_slow_rows(int columns) {
    constexpr int kSectorColumns = 16, kFirst = 104, kLast = 200;
    return columns >= kFirst && columns <= kLast && columns % kSectorColumns != 0;
}

} // namespace

ReadTerms terms_of(const KernelRequest& request, Reads reads) {
    using enum Decomposition::Of;
    const ScoreTerms& terms = request.terms;
    switch (reads) {
    case Reads::plain:
        return {.decomposition = {.of = plain},
                .bias_bytes = terms.plain.bias_bytes,
                .tabulated = terms.plain.tabulated,
                .beside = terms.plain.beside_bias,
                .sums = terms.plain.sums,
                .score_instructions = terms.plain.score_instructions};
    case Reads::plain_with_copied_keys:
        return {.decomposition = {.of = plain},
                .bias_bytes = terms.plain.bias_bytes,
                .tabulated = terms.plain.tabulated,
                .sums = terms.plain.sums,
                .score_instructions = terms.plain.score_instructions};
    case Reads::by_index_2d:
        return {.decomposition = {.of = by_index_2d, .key_width = terms.by_index_2d.keys.width},
                .bias_bytes = terms.plain.bias_bytes,
                .tabulated = terms.by_index_2d.tabulated,
                .sums = terms.by_index_2d.sums,
                .score_instructions = terms.by_index_2d.score_instructions};
    case Reads::by_kinds:
        return {.decomposition = {.of = by_kinds}, .tabulated = terms.by_kinds.tabulated};
    case Reads::with_aligned_tables: // which have no dense bias in addition
        return {.decomposition = {.of = with_aligned_tables},
                .tabulated = terms.with_aligned_tables.tabulated,
                .beside = terms.with_aligned_tables.beside,
                .sums = terms.with_aligned_tables.sums,
                .score_instructions = terms.with_aligned_tables.score_instructions};
    case Reads::with_tables:
        return {.decomposition = {.of = with_tables},
                .bias_bytes = terms.with_tables.bias_bytes,
                .tabulated = terms.with_tables.tabulated,
                .sums = terms.with_tables.sums,
                .score_instructions = terms.with_tables.score_instructions};
    case Reads::with_shifts: { // a dense bias is one of the shifted reads
        const ShiftedTerms& shifts = terms.with_shifts.front();
        return {.decomposition = {.of = with_shifts,
                                  .shifted_reads = static_cast<int>(shifts.tiles.size())},
                .tabulated = shifts.tabulated,
                .beside = shifts.beside,
                .sums = shifts.sums,
                .score_instructions = shifts.score_instructions};
    }
    }
    return {};
}

std::string why_copied(const KernelRequest& request) {
    if (!request.sequences.scattered_in.empty())
        return formatted("they lie in {}", request.sequences.scattered_in);
    const bool stages_nothing =
        request.terms.plain.bias_bytes == 0 && request.terms.with_shifts.empty() &&
        request.terms.with_tables.entries.empty() && request.terms.by_index_2d.keys.width == 0 &&
        !request.terms.plain.tabulated.any();
    if (stages_nothing && (has_slow_rows(request.head_dim) || has_slow_rows(request.head_dim_v)))
        return "rows are no whole sectors of memory";
    return "";
}

bool has_wide_heads(const KernelRequest& request) {
    return std::max(request.head_dim, request.head_dim_v) > 128;
}

bool multiplies_index_2d_rows(const Choice& choice) {
    const auto& [request, shape, reads] = choice;
    const passes::KeyIndex2d& index_2d = request.terms.by_index_2d.keys;
    return reads == Reads::by_index_2d && index_2d.quotients && index_2d.adds_to_products &&
           shape.key_tile == index_2d.width && request.dtype == DType::bf16;
}

bool multiplies_key_addend(const KernelRequest& request, Reads reads) {
    if (reads != Reads::plain) return terms_of(request, reads).beside.keys;
    return request.terms.plain.multiplies_key_addend && !has_wide_heads(request);
}

bool adds_keys_alone(const KernelRequest& request, Reads reads) {
    if (request.terms.plain.multiplies_key_addend && !multiplies_key_addend(request, reads))
        return false;
    return request.terms.plain.adds_keys_alone &&
           (reads == Reads::plain || reads == Reads::plain_with_copied_keys);
}

bool starts_at_highest(const KernelRequest& request, Reads reads) {
    return request.terms.plain.adds_by_position && reads == Reads::plain &&
           !request.mask.has_block_mask && !request.sequences.is_ragged &&
           request.sequences.scattered_in.empty();
}

bool multiplies_slope(const KernelRequest& request, Reads reads) {
    if (const auto beside = terms_of(request, reads).beside; beside.starts) return beside.slope;
    return request.terms.plain.can_multiply_slope && starts_at_highest(request, reads) &&
           !has_wide_heads(request);
}

bool starts_with_distances(const KernelRequest& request, Reads reads) {
    constexpr int kWidest = 64;
    return request.terms.plain.can_start_with_distances && starts_at_highest(request, reads) &&
           std::max(request.head_dim, request.head_dim_v) <= kWidest;
}

bool starts_with_tables(const KernelRequest& request, Reads reads) {
    return reads == Reads::with_tables && request.terms.with_tables.can_start;
}

passes::TabulatedValues staged_values(const KernelRequest& request, Reads reads) {
    passes::TabulatedValues staged = terms_of(request, reads).tabulated;
    staged.keys -= multiplies_key_addend(request, reads) ? 1 : 0;
    if (reads == Reads::plain) staged.keys -= request.terms.plain.row_key_products;
    return staged;
}

ElementSums sums_of(const KernelRequest& request, Reads reads) {
    return terms_of(request, reads).sums;
}

int kind_columns(int kinds) { return kinds <= 8 ? 8 : padded_columns(kinds); }

std::string why_no_kinds(const KernelRequest& request) {
    if (request.terms.by_kinds.are_of_pairs) return "each query has others";
    const int columns = 2 * kind_columns(request.terms.by_kinds.count);
    if (4 * columns > request.head_dim)
        return std::to_string(columns) + " columns for them are more than a quarter of queries'";
    if (request.terms.by_kinds.count > ::sm90::ForwardLayout::kMostKinds)
        return "there is room for " + std::to_string(::sm90::ForwardLayout::kMostKinds);
    return "";
}

bool computes_in_parts(const KernelRequest& request, Reads reads) {
    constexpr int kNarrow = 64;
    const bool has_room = request.head_dim_v <= kNarrow || terms_of(request, reads).bias_bytes > 0;
    return has_room && request.work.reads_much() && sums_of(request, reads).count == 0 &&
           (reads == Reads::plain || reads == Reads::with_tables) &&
           !staged_values(request, reads).any();
}

bool visits_first_in_loop(const Choice& choice) {
    constexpr int kMost = 32; // instructions
    const auto& [request, shape, reads] = choice;
    const ReadTerms terms = terms_of(request, reads);
    // Elements have code for each place where tables may be: shared memory, with a check of indices
    // or without, and memory.
    const int copies = reads == Reads::with_tables ? 3 : 1;
    return shape.overlaps && request.has_score_mod &&
           (terms.sums.count != 0 || copies * terms.score_instructions > kMost);
}

int aligned_step(const KernelRequest& request, const ForwardSchedule& shape) {
    const auto tile = std::ranges::find(request.terms.with_aligned_tables.tiles, shape.key_tile,
                                        &AlignedTile::keys);
    return tile == request.terms.with_aligned_tables.tiles.end() ? 0 : tile->step;
}

} // namespace flexc::plan::sm90
