#include "plan/arch/sm90/backward_reason.h"

#include "support/text.h"

namespace flexc::plan::sm90 {
namespace {

using ::sm90::RegisterForm;

// Describes how tables, or grids, are summed.
std::string of_tables(const KernelRequest& request, const FusedTile& tile) {
    const BackwardStorage& storage = tile.storage;
    if (tile.sums.sums_grids) return ", gradients of grids by distance in shared memory";
    if (storage.entries_are_bound)
        return formatted(", gradients of tables in shared memory, up to 32 copies of all entries, "
                         "at most {}, added to by the threads that have dS",
                         storage.entries);
    if (storage.entries > 0)
        return formatted(", gradients of tables in shared memory, {} of each of {} entries, added "
                         "to by the threads that have dS",
                         storage.entry_copy_shift == 0
                             ? "one copy"
                             : formatted("{} copies", 1 << storage.entry_copy_shift),
                         storage.entries);
    if (!tile.sums.sums_tables) return "";
    return request.gradients.weighs_tables
               ? ", gradients of tables in shared memory, from tiles beside dS"
               : ", gradients of tables in shared memory";
}

} // namespace

std::string reason_of(const KernelRequest& request, const FusedTile& tile,
                      const KernelConfig& config, bool follows_others) {
    std::string text = "wgmma, ";
    if (request.gradients.are_alone)
        text += "gradients of buffers alone";
    else
        text += formatted("dk and dv of a tile of keys, dq by {}",
                          shares_keys(request) || tile.sums.adds_bias_gradients
                              ? "additions from registers"
                              : "TMA reductions");
    if (tile.sums.adds_bias_gradients) text += ", tiles of a dense bias's gradient";
    if (request.deterministic) text += ", in the order of keys";
    if (request.gradients.by_shift) text += ", gradients of shifted reads by tiles";
    text += of_tables(request, tile);
    if (tile.sums.weighs_distances) text += ", gradients by distance from tiles beside dS";
    if (request.gradients.by_terms)
        text += tile.storage.term_words > 0 ? ", gradients of terms in shared memory"
                                            : ", gradients of terms once a tile";
    if (config.sum_elements != 0 && !request.gradients.by_terms)
        text += formatted(", sums of {} elements at once", config.sum_elements);
    if (config.sums.key_width != 0)
        text += formatted(", a 2-D key index of {} columns", config.sums.key_width);
    if (tile.storage.bias_stages > 0)
        text += request.bias.is_shifted ? "; a shifted read through shared memory"
                                        : "; biases through shared memory";
    if (follows_others)
        text += tile.way_to_sum > 0 ? "; faster sums of tables spilled registers"
                                    : "; larger tiles spilled registers or serialised products";
    if (tile.form == RegisterForm::subtracts_apart)
        text += "; saves registers, references of large scores are subtracted apart";
    else if (tile.form != RegisterForm::keeps_all)
        text += formatted("; saves registers in {} steps", config.form.saves_registers);
    return text;
}

} // namespace flexc::plan::sm90
