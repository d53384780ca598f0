// Chooses the tiles of Hopper's forward kernel.
#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <vector>

#include "plan/arch/sm90/element_sums.h"
#include "plan/arch/sm90/forward_choice.h"
#include "plan/arch/sm90/forward_memory.h"
#include "plan/arch/sm90/forward_reason.h"
#include "plan/arch/sm90/forward_schedule.h"
#include "plan/arch/sm90/sm90.h"
#include "plan/work.h"

namespace flexc::plan::sm90 {
namespace {

// Consumer warpgroups, keys of a tile, stages of queries, and overlap; best first. Three warpgroups
// share each load of keys if the output leaves them enough registers.
constexpr std::array kForwardShapes = {
    ForwardSchedule{3, 128, 2, true}, ForwardSchedule{3, 112, 2, true},
    ForwardSchedule{3, 96, 2, true},  ForwardSchedule{2, 128, 2, true},
    ForwardSchedule{2, 128, 1, true}, ForwardSchedule{2, 112, 1, true},
    ForwardSchedule{2, 96, 1, true},  ForwardSchedule{2, 80, 1, true},
    ForwardSchedule{2, 64, 1, true},  ForwardSchedule{2, 48, 1, true},
    ForwardSchedule{2, 64, 1, false}, ForwardSchedule{2, 48, 1, false},
};
// Shapes for a 2-D key index, best first. The values that repeat from row to row leave three
// warpgroups registers for short tiles only.
constexpr std::array kIndex2dShapes = {
    ForwardSchedule{3, 64, 2, true},  ForwardSchedule{2, 128, 2, true},
    ForwardSchedule{2, 128, 1, true}, ForwardSchedule{2, 112, 2, true},
    ForwardSchedule{2, 112, 1, true}, ForwardSchedule{2, 96, 1, true},
    ForwardSchedule{2, 80, 1, true},  ForwardSchedule{2, 64, 1, true},
    ForwardSchedule{2, 48, 1, true},
};
// Shapes for many short sequences, best first. A tile of four warpgroups has all queries of most of
// them, so that their keys are loaded once.
constexpr std::array kSequenceShapes = {
    ForwardSchedule{kMostWarpgroups, 64, 2, true},
    ForwardSchedule{kMostWarpgroups, 48, 2, true},
    ForwardSchedule{2, 64, 2, true},
};
constexpr int kLeastStep = 16; // in keys: the difference of neighbouring tile sizes

bool suits(const Choice& choice) {
    const auto& [request, shape, reads] = choice;
    // With wider outputs, masks and mods spill or MMAs are serialised.
    constexpr int kWidestOfThree = 96;
    if (shape.consumers >= 3 && padded_columns(request.head_dim_v) > kWidestOfThree) return false;
    const bool has_copiers = terms_of(request, reads).bias_bytes > 0 ||
                             reads == Reads::with_shifts || reads == Reads::plain_with_copied_keys;
    // Nor have three warpgroups registers for what many elements bring into the terms of sums.
    const bool has_sums = sums_of(request, reads).count != 0;
    // Four have, barely, for a narrow dense bias, which so many rows read at once.
    const bool copies_bias = shape.consumers == kMostWarpgroups &&
                             terms_of(request, reads).bias_bytes == 2 && reads == Reads::plain;
    if (((has_copiers && !copies_bias) || has_sums) && shape.consumers >= 3) return false;
    return accumulators(choice) <= accumulator_limit(choice) &&
           shared_bytes(choice) <= shared_memory_limit(request.arch);
}

// Whether flexc may choose the shape itself. With a block mask, three warpgroups are not chosen:
// their tiles visit more elements and leave too few registers for evaluating the mask.
bool is_chosen(const Choice& choice) {
    const auto& [request, shape, reads] = choice;
    return suits(choice) && (!request.mask.has_block_mask || shape.consumers != 3);
}

// Whether each tile is whole rows of the 2-D key index.
bool fits_index_2d(const KernelRequest& request, const ForwardSchedule& shape) {
    const int width = request.terms.by_index_2d.keys.width;
    return width > 0 && shape.key_tile % width == 0 && shape.key_tile % 16 == 0;
}
bool suits_index_2d(const KernelRequest& request, const ForwardSchedule& shape) {
    const passes::KeyIndex2d& index_2d = request.terms.by_index_2d.keys;
    if (!fits_index_2d(request, shape)) return false;
    // Elements would read from memory what tables in shared memory hold.
    if (request.terms.with_tables.element_reads < request.terms.by_index_2d.element_reads)
        return false;
    // Registers of a thread: a number for each row of the 2-D key index and each query, and the
    // values that repeat from row to row.
    const int rows = index_2d.quotients ? 2 * shape.key_tile / index_2d.width : 0;
    const int period = index_2d.remainders ? std::lcm(index_2d.width, 8) / 2 : 0;
    return suits({request, shape, Reads::by_index_2d}) &&
           accumulators({request, shape, Reads::by_index_2d}) + rows + period <=
               accumulator_limit({request, shape, Reads::by_index_2d});
}

// Returns the bytes that a kernel may spill before the next candidate is tried.
int tolerated_spills(const Choice& choice, const ::sm90::ForwardSizes& sizes) {
    const auto& [request, shape, reads] = choice;
    // Reading element by element would take far longer than these spills. With aligned tables, the
    // values spilled first are needed only before and after the loop over keys.
    constexpr int kSpillsOfShifts = 64, kSpillsOfTables = 16;
    // Spills outside the loop, or in the warp that finds the order of keys, cost less than having a
    // warpgroup less.
    constexpr int kSpillsOutside = 8;
    constexpr int kSpillsOfFour = 160; // with a dense bias, whose tiles others load more often
    if (request.work.is_long) return kSpillsOfLong;
    if (reads == Reads::with_shifts) return kSpillsOfShifts;
    if (reads == Reads::with_aligned_tables ||
        (reads == Reads::with_tables && request.terms.with_tables.computes_much()))
        return kSpillsOfTables;
    if (shape.consumers == kMostWarpgroups && sizes.bias_bytes != 0) return kSpillsOfFour;
    const bool spills_outside = visits_first_in_loop(choice) || reads == Reads::with_tables ||
                                sizes.kind_copies != 0 || sizes.pair_kinds != 0 ||
                                starts_at_highest(request, reads);
    return spills_outside ? kSpillsOutside : 0;
}

Forward family_part(const Choice& choice, const ::sm90::ForwardSizes& sizes) {
    const auto& [request, shape, reads] = choice;
    Forward forward{.has_registers_for_columns = shape.consumers == 2 && !has_wide_heads(request) &&
                                                 accumulators(choice) + shape.key_tile / 4 <= 192,
                    .sizes = sizes,
                    .tabulated = terms_of(request, reads).tabulated,
                    .starts_with_tables = starts_with_tables(request, reads),
                    .key_step = reads == Reads::with_aligned_tables ? aligned_step(request, shape)
                                                                    : shape.key_tile,
                    .starts_at_highest = starts_at_highest(request, reads),
                    .goes_by_heads = request.sequences.most_rows != 0,
                    .computes_in_parts = computes_in_parts(request, reads)};
    if (stages_tables(reads)) forward.table_words = table_words(choice)->of_tables;
    return forward;
}

KernelConfig configured(const Choice& choice) {
    const auto& [request, schedule, reads] = choice;
    const ::sm90::ForwardSizes sizes = sizes_of(choice);
    Forward forward = family_part(choice, sizes);
    KernelConfig config;
    config.kind = KernelKind::forward;
    config.family = kName;
    config.template_path = "forward_sm90.cu";
    config.entry = "flexc_forward_sm90";
    config.block = {.query_tile = sizes.query_tile,
                    .key_tile = sizes.key_tile,
                    .warps = 4 * (schedule.consumers + 1),
                    .stages = sizes.stages,
                    .shared_bytes = ::sm90::forward_layout(sizes).bytes};
    config.schedule = schedule;
    config.decomposition = terms_of(request, reads).decomposition;
    config.form.writes_scores_once = visits_first_in_loop(choice);
    config.sum_elements = sum_elements(choice);
    // The warps that copy biases can follow ranges of keys, but no block mask.
    config.has_block_mask =
        request.mask.has_block_mask && sizes.bias_bytes == 0 && sizes.shifted_bytes == 0;
    config.spills.tolerated = tolerated_spills(choice, sizes);
    config.reason = reason_of(choice, forward);
    config.of_family = std::move(forward);
    return config;
}

bool suits_kinds(const KernelRequest& request, const ForwardSchedule& shape) {
    // With three warpgroups, shorter tiles do not leave more registers for the other addends.
    if (shape.consumers == 3 && shape.key_tile != kForwardShapes.front().key_tile) return false;
    constexpr int kShortest = 64; // with shorter tiles, reads from tables are faster
    const auto fits = [&](const ForwardSchedule& of) {
        return of.key_tile >= kShortest && suits({request, of, Reads::by_kinds});
    };
    if (request.terms.by_kinds.count == 0 || !fits(shape)) return false;
    const KindTerms& kinds = request.terms.by_kinds;
    if (!kinds.are_of_pairs || kinds.count <= ::sm90::PairKindsLayout::kMostInBytes) return true;
    // Fewer queries or keys leave room for copies of many kinds of pairs.
    const auto has_copies = [&](const ForwardSchedule& of) {
        return fits(of) &&
               pair_copies(sizes_of({request, of, Reads::by_kinds})) >= kLeastPairCopies;
    };
    return has_copies(shape) || std::ranges::none_of(kForwardShapes, has_copies);
}

bool suits_tables(const KernelRequest& request, const ForwardSchedule& shape) {
    const TableTerms& terms = request.terms.with_tables;
    // Indices that are computed for each element leave three warpgroups too few registers.
    if (terms.computes_indices && shape.consumers >= 3) return false;
    // Limit for the unrolled code of a warp's keys, which exists for tables on chip and in memory:
    // more takes several times as long to compile, and spills.
    constexpr int kMostInstructions = 5600;
    if (terms.element_instructions * shape.key_tile > kMostInstructions) return false;
    return !terms.entries.empty() && table_words({request, shape, Reads::with_tables}) &&
           suits({request, shape, Reads::with_tables});
}

bool suits_aligned_tables(const KernelRequest& request, const ForwardSchedule& shape) {
    // With tabulated values, three warpgroups are slower than two.
    if (shape.consumers >= 3 && staged_values(request, Reads::with_aligned_tables).any())
        return false;
    return aligned_step(request, shape) != 0 &&
           table_words({request, shape, Reads::with_aligned_tables}) &&
           suits({request, shape, Reads::with_aligned_tables});
}

bool suits_copied_keys(const KernelRequest& request, const ForwardSchedule& shape) {
    return !why_copied(request).empty() && suits({request, shape, Reads::plain_with_copied_keys});
}

bool suits_shifts(const KernelRequest& request, const ForwardSchedule& shape) {
    return !request.terms.with_shifts.empty() && suits({request, shape, Reads::with_shifts});
}

// Returns how a kernel of this shape, if requested explicitly, handles reads.
Reads reads_of(const KernelRequest& request, const ForwardSchedule& shape) {
    if (!request.sequences.scattered_in.empty() || suits_copied_keys(request, shape))
        return Reads::plain_with_copied_keys;
    if (suits_shifts(request, shape)) return Reads::with_shifts;
    if (fits_index_2d(request, shape)) return Reads::by_index_2d;
    if (suits_kinds(request, shape)) return Reads::by_kinds;
    if (suits_aligned_tables(request, shape)) return Reads::with_aligned_tables;
    return suits_tables(request, shape) ? Reads::with_tables : Reads::plain;
}

// Returns the request with as many shifted reads as fit into shared memory. The others are read for
// each element.
KernelRequest with_room_for_shifts(KernelRequest request) {
    const auto has_room = [&](const ForwardSchedule& shape) {
        return suits_shifts(request, shape) && is_chosen({request, shape, Reads::with_shifts});
    };
    while (!request.terms.with_shifts.empty() && std::ranges::none_of(kForwardShapes, has_room))
        request.terms.with_shifts.erase(request.terms.with_shifts.begin());
    return request;
}

// Returns the request with sums that each element adds up in a loop of its own.
KernelRequest with_sums_one_by_one(KernelRequest request) {
    ScoreTerms& terms = request.terms;
    for (ElementSums* sums : {&terms.plain.sums, &terms.by_index_2d.sums, &terms.with_tables.sums,
                              &terms.with_aligned_tables.sums})
        *sums = {};
    for (auto& with_shifts : terms.with_shifts)
        with_shifts.sums = {};
    return request;
}

// The number of stages of queries does not change the registers that are needed.
bool needs_fewer_registers(const ForwardSchedule& shape, const ForwardSchedule& than) {
    return shape.consumers < than.consumers || shape.key_tile <= than.key_tile - kLeastStep ||
           shape.overlaps != than.overlaps;
}

// Returns the shapes to try, best first; each costs a compile: the best, one that is a step
// smaller, the best with fewer warpgroups (which have more registers), and the smallest. If the
// kernel can copy shifted reads or keys, multiply by kinds of keys, or keep tables on chip, the
// best two shapes that do so come first, and the best with fewer warpgroups than these. If keys are
// not in order, all shapes copy them.
std::vector<Choice> choices_for(const KernelRequest& request) {
    std::vector<Choice> choices;
    std::size_t most = 3;
    // Takes what flexc may choose, unless it needs as many registers as the choice before.
    const auto take = [&](const Choice& choice) {
        if (!is_chosen(choice)) return;
        const bool follows = !choices.empty() && choices.back().reads == choice.reads;
        if (follows && !needs_fewer_registers(choice.shape, choices.back().shape)) return;
        const bool has_fewer_warpgroups =
            follows && choice.shape.consumers < choices.back().shape.consumers;
        if (choices.size() == most) choices.pop_back();
        choices.push_back(choice);
        most += has_fewer_warpgroups;
    };
    // Takes the best two shapes for this kind of reads, and the best with fewer warpgroups, unless
    // another kind has been taken.
    const auto take_two = [&](Reads reads, auto suits_reads) {
        if (!choices.empty()) return;
        constexpr std::size_t kMost = 2;
        for (const ForwardSchedule& shape : kForwardShapes) {
            const bool has_fewer_warpgroups =
                choices.size() == kMost && shape.consumers < choices.back().shape.consumers;
            if ((choices.size() < kMost || has_fewer_warpgroups) && suits_reads(request, shape))
                take({request, shape, reads});
        }
        most += choices.size();
    };
    if (!request.sequences.scattered_in.empty()) {
        for (const ForwardSchedule& shape : kForwardShapes)
            if (suits_copied_keys(request, shape))
                take({request, shape, Reads::plain_with_copied_keys});
        return choices;
    }
    take_two(Reads::plain_with_copied_keys, suits_copied_keys);
    take_two(Reads::with_shifts, suits_shifts);
    if (choices.empty())
        for (const ForwardSchedule& shape : kIndex2dShapes)
            if (suits_index_2d(request, shape)) take({request, shape, Reads::by_index_2d});
    take_two(Reads::by_kinds, suits_kinds);
    take_two(Reads::with_aligned_tables, suits_aligned_tables);
    take_two(Reads::with_tables, suits_tables);
    for (const ForwardSchedule& shape : kForwardShapes)
        take({request, shape, Reads::plain});
    return choices;
}

// Whether a shape for many short sequences is faster than the usual one, which handles reads so.
bool suits_sequences(const Choice& choice, Reads usual) {
    const auto& [request, shape, reads] = choice;
    const bool is_alike = reads == usual || (stages_tables(reads) && stages_tables(usual));
    if (!is_alike || !suits(choice)) return false;
    if (shape.consumers == kMostWarpgroups) return true;
    // Wide outputs leave registers for two warpgroups. Short tiles of keys gain where a band hides
    // whole ones of those few that a sequence has.
    constexpr int kFewRows = 256;
    return !suits({request, kSequenceShapes.front(), reads}) && !has_wide_heads(request) &&
           request.mask.has_band && request.sequences.most_rows <= kFewRows &&
           reads == Reads::plain && terms_of(request, reads).bias_bytes == 0;
}

// Returns the shapes made for many short sequences, best first.
std::vector<Choice> choices_for_sequences(const KernelRequest& request, Reads usual) {
    std::vector<Choice> choices;
    for (const ForwardSchedule& shape : kSequenceShapes) {
        const Choice choice{request, shape, reads_of(request, shape)};
        if (suits_sequences(choice, usual)) choices.push_back(choice);
    }
    return choices;
}

// If `next` is only a step smaller, lets it be skipped when `config` spills more bytes than a step
// can save. Three warpgroups, which have the fewest registers, can save more than 128 bytes. What
// many reads of each element need hardly depends on the tile.
void pass_over_step(const KernelRequest& request, KernelConfig& config, const KernelConfig& next) {
    constexpr int kSavable = 256, kSavableOfReads = 64;
    const ForwardSchedule &shape = *config.schedule, &smaller = *next.schedule;
    if (shape.consumers != smaller.consumers || shape.overlaps != smaller.overlaps ||
        config.decomposition.stages_tables() != next.decomposition.stages_tables() ||
        config.sum_elements != next.sum_elements || smaller.key_tile > shape.key_tile ||
        shape.key_tile - smaller.key_tile > kLeastStep)
        return;
    config.spills.saving_forms = 1;
    config.spills.savable = request.work.reads_much() ? kSavableOfReads : kSavable;
    config.spills.beside = std::numeric_limits<int>::max();
}

} // namespace

std::vector<ForwardSchedule> forward_schedules(const KernelRequest& asked) {
    const KernelRequest request = with_room_for_shifts(asked);
    constexpr std::size_t kSizes = 4; // number of tile sizes: smaller tiles only save registers
    std::vector<ForwardSchedule> schedules;
    std::vector<ForwardSchedule> shapes;
    for (const ForwardSchedule& shape : kIndex2dShapes)
        if (suits_index_2d(request, shape)) shapes.push_back(shape);
    if (shapes.empty()) shapes.assign(kForwardShapes.begin(), kForwardShapes.end());
    // flexc's own choice comes first.
    const std::vector<Choice> choices = choices_for(request);
    if (!choices.empty()) {
        const auto chosen = std::ranges::find(shapes, choices.front().shape);
        if (chosen != shapes.end()) std::rotate(shapes.begin(), chosen, chosen + 1);
    }
    std::size_t sizes = 0;
    for (const ForwardSchedule& shape : shapes) {
        const Reads reads = reads_of(request, shape);
        const Choice choice{request, shape, reads};
        if (!suits(choice) || sizes == kSizes) continue;
        if (sizes++ == 0) {
            schedules.push_back(tuned_schedule(choice));
            for (int columns = 0; columns <= kMostPolynomials; ++columns) {
                ForwardSchedule schedule = schedules.front();
                schedule.polynomials = columns;
                if (may_take_polynomials(request, reads) && schedule != schedules.front())
                    schedules.push_back(schedule);
            }
        }
        for (const PingPong ping_pong : {PingPong::softmax, PingPong::mma, PingPong::none})
            for (const int columns : {0, 4, 8}) {
                ForwardSchedule schedule = shape;
                schedule.ping_pong = ping_pong;
                schedule.rescales_after = columns;
                schedule.polynomials = schedules.front().polynomials;
                if (schedule != schedules.front()) schedules.push_back(schedule);
            }
    }
    return schedules;
}

std::vector<KernelConfig> forward_candidates(const KernelRequest& asked) {
    const KernelRequest request = with_room_for_shifts(asked);
    if (request.schedule) {
        KernelConfig config =
            configured({request, *request.schedule, reads_of(request, *request.schedule)});
        config.spills.tolerated = std::numeric_limits<int>::max();
        config.reason += "; asked for";
        return {config};
    }
    std::vector<KernelConfig> candidates;
    const auto add_all = [&](const std::vector<Choice>& choices) {
        for (const Choice& choice : choices) {
            KernelConfig config =
                configured({choice.request, tuned_schedule(choice), choice.reads});
            if (!candidates.empty())
                config.reason += "; larger tiles spilled registers or serialised products";
            candidates.push_back(std::move(config));
        }
    };
    const auto add_choices = [&](const KernelRequest& of) { add_all(choices_for(of)); };
    KernelRequest usual = request;
    usual.sequences.most_rows = 0;
    if (request.sequences.most_rows != 0) {
        const std::vector<Choice> others = choices_for(usual);
        if (!others.empty()) add_all(choices_for_sequences(request, others.front().reads));
        if (candidates.empty()) return candidates;
    }
    add_choices(usual);
    if (!candidates.empty() && candidates.front().sum_elements != 0) {
        candidates.resize(1);
        candidates.front().spills.tolerated = kSpillsOfSums;
        add_choices(with_sums_one_by_one(usual));
    }
    // Spilling these bytes costs less than what follows: the generic kernel, which has half the
    // speed, or reading tables from memory, which takes several times as long.
    constexpr int kSpillsOfLast = 64, kSpillsOfTables = 128;
    const auto may_spill = [](KernelConfig& last, int bytes) {
        last.spills.tolerated = std::max(last.spills.tolerated, bytes);
    };
    for (std::size_t at = 0; at + 1 < candidates.size(); ++at) {
        pass_over_step(request, candidates[at], candidates[at + 1]);
        if (candidates[at].decomposition.stages_tables() &&
            !candidates[at + 1].decomposition.stages_tables())
            may_spill(candidates[at], kSpillsOfTables);
    }
    if (!candidates.empty()) may_spill(candidates.back(), kSpillsOfLast);
    return candidates;
}

} // namespace flexc::plan::sm90
