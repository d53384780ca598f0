#include "passes/gradient_passes.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "passes/facts.h"
#include "passes/gradient_factor.h"
#include "passes/gradient_sum.h"
#include "passes/grid_gradient.h"
#include "passes/roots.h"
#include "passes/row_gradient.h"
#include "passes/shifted_read.h"
#include "passes/table_gradient.h"
#include "passes/term_gradient.h"

namespace flexc::passes {

namespace {

using Indices = std::vector<std::size_t>; // of Mod::gradients, before any is summed

void find_sums(Mod& mod, const SumOptions& options) {
    find_row_gradients(mod, options.rows_are_whole);
    find_sum_factors(mod, options.divides_by_derivative);
    find_term_gradients(mod);
    find_table_gradients(mod);
    find_shifted_reads(mod);
    find_grid_gradients(mod);
    join_distances_to_tables(mod);
    find_weighted_gradients(mod);
}

// Whether each element adds to an address of its own.
bool adds_to_own_addresses(const Mod& mod, const ReadGradient& gradient) {
    const CapturedRead* read = captured_read(mod, gradient.read);
    return read != nullptr && has_own_addresses(*read);
}

void erase(Indices& from, const Indices& which) {
    std::erase_if(from, [&](std::size_t i) { return std::ranges::count(which, i) != 0; });
}
Indices joined(Indices some, const Indices& others) {
    some.insert(some.end(), others.begin(), others.end());
    std::ranges::sort(some);
    return some;
}

// Shares the gradients of a program among kernels.
class Sharing {
  public:
    // unsummed: the mod before find_sums(); mod: after it; tables: what one further kernel sums.
    Sharing(const Mod& unsummed, const Mod& mod, const SumOptions& options, Indices tables)
        : unsummed_(unsummed), options_(options), arguments_(argument_slots(mod)),
          tables_(std::move(tables)) {
        first_.resize(mod.gradients.size());
        std::iota(first_.begin(), first_.end(), 0);
        erase(first_, tables_);
        for (const std::size_t i :
             tables_.empty() ? by_element(mod, first_) : by_element(of_score(first_)))
            (adds_to_own_addresses(mod, mod.gradients[i]) ? beside_ : left_).push_back(i);
    }

    std::vector<Mod> passes() {
        // Programs for which lowering them again and again would take long, or whose kernels would
        // be so many that the additions take no longer, are left as they are.
        constexpr std::size_t kMostReads = 8, kMostNodes = 4096;
        if (left_.size() > kMostReads || unsummed_.program.graph.size() > kMostNodes) return {};
        std::vector<Group> further;
        for (Group group = next(); !group.which.empty(); group = next()) {
            for (Indices* from : {&left_, &beside_, &first_})
                erase(*from, group.which);
            further.push_back(std::move(group));
        }
        if (further.empty() && tables_.empty()) return {};
        // Without what the others sum, the first kernel may have warps for one of them.
        const Indices others = joined(left_, beside_);
        const auto fits = [&](const Group& group) {
            Indices elements = by_element(of_score(joined(first_, group.which)));
            erase(elements, others);
            return elements.empty();
        };
        if (const auto group = std::ranges::find_if(further, fits); group != further.end()) {
            first_ = joined(first_, group->which);
            further.erase(group);
        }
        if (!tables_.empty()) further.push_back(of_score(tables_));
        if (further.empty()) return {};
        std::vector<Mod> passes = {mod_of(of_score(first_))};
        for (const Group& group : further) {
            passes.push_back(mod_of(group));
            passes.back().sink_gradients.clear();
        }
        return passes;
    }

  private:
    // The gradients of one kernel. derivative: d score_mod / d score, or what is in its place.
    struct Group {
        Indices which;
        ir::NodeId derivative = ir::kNoNode;
    };
    Group of_score(Indices which) const { return {std::move(which), unsummed_.d_score}; }

    // Returns the mod in which only these reads are learned.
    Mod mod_of(const Group& group) const {
        Mod mod = unsummed_;
        mod.d_score = group.derivative;
        mod.gradients.clear();
        for (const std::size_t i : group.which)
            mod.gradients.push_back(unsummed_.gradients[i]);
        mod.arguments = arguments_;
        mod.order = ir::reachable(mod.program.graph, root_nodes(mod));
        find_facts(mod);
        find_sums(mod, options_);
        return mod;
    }

    // Returns which of these a kernel adds element by element.
    static Indices by_element(const Mod& mod, const Indices& which) {
        const TileSums tile = usual_sums(mod);
        Indices elements;
        for (std::size_t i = 0; i < which.size(); ++i)
            if (gradient_sum(mod, mod.gradients[i], tile) == GradientSum::element)
                elements.push_back(which[i]);
        return elements;
    }
    Indices by_element(const Group& group) const { return by_element(mod_of(group), group.which); }

    // Returns those of these that one kernel sums in other ways.
    Group summed_together(Group group) const {
        while (!group.which.empty()) {
            const Indices elements = by_element(group);
            if (elements.empty()) break;
            erase(group.which, elements);
        }
        return group;
    }

    // Returns gradients for one further kernel; none if no kernel sums any of those that are left.
    Group next() const {
        Group group = summed_together(of_score(left_));
        for (std::size_t i = 0; group.which.empty() && i < left_.size(); ++i)
            group = summed_together(of_score({left_[i]}));
        // Without dq and dk, nobody needs d score_mod / d score. In its place, dS is of another
        // partial derivative, so that lines of shifted reads are sums of it too.
        for (std::size_t i = 0; group.which.empty() && i < left_.size(); ++i)
            group = summed_together(of_partial(unsummed_.gradients[left_[i]].partial));
        if (group.which.empty()) return group;
        for (const std::size_t one : beside_)
            if (const Group more{joined(group.which, {one}), group.derivative};
                summed_together(more).which == more.which)
                group = more;
        return group;
    }
    Group of_partial(ir::NodeId partial) const {
        Group group{{}, partial};
        for (const std::size_t i : left_)
            if (unsummed_.gradients[i].partial == partial) group.which.push_back(i);
        return group;
    }

    const Mod& unsummed_;
    const SumOptions& options_;
    const std::vector<ArgumentSlot> arguments_;
    // Gradients of the first kernel; those that elements add one by one, to addresses that they
    // share, or not.
    Indices first_, left_, beside_;
    Indices tables_;
};

// Returns the gradients of tables of which each element computes its entry, without those that a
// kernel without tables sums over diagonals.
Indices tables_of_elements(const Mod& mod) {
    Indices tables;
    if (!entries_of_elements(mod).exist()) return tables;
    for (std::size_t i = 0; i < mod.gradients.size(); ++i) {
        const ReadGradient& gradient = mod.gradients[i];
        if (gradient_sum(mod, gradient, {.sums_tables = true}) == GradientSum::table &&
            !gradient.is_separable && !mod.of_distance[gradient.read])
            tables.push_back(i);
    }
    return tables;
}

} // namespace

void find_gradient_sums(Mod& mod, const SumOptions& options) {
    const bool may_be_shared =
        mod.program.is_dense() && !mod.deterministic && !mod.gradients.empty();
    const std::vector<Mod> unsummed(may_be_shared ? 1 : 0, mod);
    find_sums(mod, options);
    if (!may_be_shared) return;
    const auto shared = [&](Indices tables) {
        return Sharing(unsummed.front(), mod, options, std::move(tables)).passes();
    };
    if (mod.gradients.size() > 1) mod.gradient_passes = shared({});
    if (Indices tables = tables_of_elements(mod); !tables.empty())
        mod.entry_passes = shared(std::move(tables));
}

} // namespace flexc::passes
