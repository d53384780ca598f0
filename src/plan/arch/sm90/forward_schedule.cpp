#include "plan/arch/sm90/forward_schedule.h"

namespace flexc::plan::sm90 {
namespace {

// Returns for how many of eight columns the powers of two are polynomials: as many as relieve the
// special function unit while it remains the bottleneck. Cycles are for 32 scores on a quarter of a
// multiprocessor.
int polynomials(const KernelRequest& request, Reads reads) {
    constexpr int kSpecialCycles = 8, kSoftmaxCycles = 8;
    constexpr int kColumns = 8, kPolynomialCycles = 10;
    if (!may_take_polynomials(request, reads)) return 0;
    const int special = kSpecialCycles * (1 + request.work.of_score.special_functions);
    const int products = (request.head_dim + request.head_dim_v) / 16;
    const int issued = kSoftmaxCycles + request.work.of_score.instructions;
    int columns = 0;
    const auto gains = [&](int more) {
        const int rest = special - more * kSpecialCycles / kColumns;
        return rest >= products && rest >= issued + more * kPolynomialCycles / kColumns;
    };
    while (columns < kMostPolynomials && gains(columns + 1))
        ++columns;
    return columns;
}

} // namespace

bool may_take_polynomials(const KernelRequest& request, Reads reads) {
    return request.work.of_score.special_functions != 0 && reads != Reads::by_index_2d &&
           reads != Reads::by_kinds && !starts_at_highest(request, reads) &&
           !starts_with_tables(request, reads) && !adds_keys_alone(request, reads);
}

ForwardSchedule tuned_schedule(const Choice& choice) {
    const KernelRequest& request = choice.request;
    const Reads reads = choice.reads;
    ForwardSchedule schedule = choice.shape;
    const bool is_wide = has_wide_heads(request), has_three = schedule.consumers >= 3;
    // In these cases the softmax is the one of no score mod.
    const bool adds_to_products =
        starts_at_highest(request, reads) ||
        (reads == Reads::by_kinds && request.terms.by_kinds.are_added_alone) ||
        (reads == Reads::with_aligned_tables && request.terms.with_aligned_tables.beside.starts) ||
        starts_with_tables(request, reads) || adds_keys_alone(request, reads);
    const bool has_own_terms =
        reads == Reads::by_kinds || reads == Reads::with_aligned_tables || reads == Reads::plain;
    const bool adds_terms =
        (has_own_terms ? staged_values(request, reads) : request.terms.plain.tabulated).any() &&
        !has_three && !adds_to_products;
    const bool has_score_mod = request.has_score_mod && !adds_to_products;
    const bool multiplies_little = !has_three && !has_score_mod && request.head_dim_v <= 64;
    schedule.ping_pong =
        !is_wide && (adds_terms || multiplies_little) ? PingPong::softmax : PingPong::mma;
    schedule.polynomials = polynomials(request, reads);
    const bool rescales_first =
        is_wide || (has_three && (reads == Reads::by_index_2d || !has_score_mod));
    schedule.rescales_after = rescales_first                              ? 0
                              : reads == Reads::by_index_2d || adds_terms ? 4
                                                                          : 8;
    if (schedule.consumers == kMostWarpgroups) {
        // So many need no turns: some compute while others wait. Nor have they registers to spare.
        schedule.ping_pong = PingPong::none;
        schedule.rescales_after = 0;
    }
    return schedule;
}

} // namespace flexc::plan::sm90
