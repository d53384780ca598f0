#include "plan/arch/sm90/forward_reason.h"

#include "plan/arch/sm90/forward_memory.h"
#include "support/text.h"

namespace flexc::plan::sm90 {
namespace {

std::string_view of_copies(int copies) {
    switch (copies) {
    case 1: return "one copy of their addends";
    case kLeastPairCopies: return "a copy of their addends for two lanes";
    default: return "a copy of their addends for each lane";
    }
}

// Describes how a kernel uses the program's kinds of keys.
std::string of_kinds(const KernelRequest& request, const ::sm90::ForwardSizes& sizes) {
    if (sizes.pair_kinds != 0)
        return formatted(", {} kinds of pairs of a query and a key, {}",
                         request.terms.by_kinds.count, of_copies(pair_copies(sizes)));
    if (request.terms.by_kinds.are_of_pairs) return "";
    const std::string kinds = std::to_string(request.terms.by_kinds.count) + " kinds of keys";
    if (sizes.kind_columns != 0)
        return ", products by " + kinds + " in " + std::to_string(2 * sizes.kind_columns) +
               " more columns";
    const std::string why = why_no_kinds(request);
    return (why.empty() ? "" : ", no products by " + kinds + ": " + why) +
           (sizes.kind_copies != 0 ? ", a copy of their addends for each thread" : "");
}

} // namespace

std::string reason_of(const Choice& choice, const Forward& forward) {
    const auto& [request, schedule, reads] = choice;
    const ::sm90::ForwardSizes& sizes = forward.sizes;
    std::string text =
        formatted("wgmma, {} warpgroups of 64 rows, {}", schedule.consumers,
                  schedule.overlaps ? "products under the softmax" : "products in order");
    if (request.terms.by_kinds.count != 0) text += of_kinds(request, sizes);
    if (sizes.multiplies_key_addend) text += ", addends of keys as columns of products";
    if (sizes.row_key_products != 0)
        text += formatted(", products of rows and keys as columns of products: {}",
                          sizes.row_key_products);
    if (sizes.starts_with_distances) text += ", products added to functions of distance";
    if (sizes.multiplies_slope) text += ", a slope as columns of products";
    if (stages_tables(reads)) text += ", tables in shared memory";
    if (reads == Reads::with_aligned_tables) text += ", which tiles of keys are aligned with";
    if (forward.key_step != schedule.key_tile)
        text += formatted(", {} keys apart", forward.key_step);
    if (forward.starts_at_highest) text += ", keys first to which most is added";
    const Decomposition decomposition = terms_of(request, reads).decomposition;
    if (reads == Reads::with_shifts) {
        text += formatted(", shifted reads by tiles: {}", decomposition.shifted_reads);
        if (sizes.shifted_end_bytes != 0) text += ", beyond all clamps by lines";
    }
    if (reads == Reads::plain_with_copied_keys)
        text += ", keys copied by threads: " + why_copied(request);
    if (const int elements = sum_elements(choice); elements != 0)
        text += formatted(", sums of {} elements at once", elements);
    if (reads == Reads::by_index_2d)
        text += formatted(", a 2-D key index of {} columns", decomposition.key_width);
    return text;
}

} // namespace flexc::plan::sm90
