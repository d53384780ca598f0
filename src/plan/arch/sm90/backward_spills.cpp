#include "plan/arch/sm90/backward_spills.h"

#include <algorithm>
#include <limits>

#include "plan/arch/sm90/element_sums.h"

namespace flexc::plan::sm90 {
namespace {

using ::sm90::RegisterForm;

constexpr int kAny = std::numeric_limits<int>::max();

// Limits of tile all[at], in bytes.
class Limits {
  public:
    Limits(const KernelRequest& request, const std::vector<FusedTile>& all, std::size_t at,
           const KernelConfig& config)
        : request_(request), all_(all), at_(at), tile_(all[at]), config_(config) {}

    // A kernel that spills little is as fast in a form that saves registers. One that spills more
    // is faster with smaller tiles or, with kSavableOfElements, as the generic kernel.
    int savable() const {
        constexpr int kSavable = 128, kSavableOfElements = 64;
        if (adds_elements()) return kSavableOfElements;
        const std::size_t next = at_ + static_cast<std::size_t>(tile_.saving_forms) + 1;
        const bool has_smaller = next < all_.size() && all_[next].way_to_sum == tile_.way_to_sum;
        return has_smaller && !tile_.has_dense_bias() ? kSavable : kAny;
    }

    int beside() const {
        // In all programs that were tried, the warps beside the MMAs spilled at most 24.
        constexpr int kMostBeside = 32;
        const bool precedes_beside = tile_.form == RegisterForm::keeps_all && !is_last() &&
                                     all_[at_ + 1].form == RegisterForm::saves_beside;
        return precedes_beside && tile_.saving_forms > 1 && request_.has_score_mod ? kMostBeside
                                                                                   : kAny;
    }

    // The bytes that a kernel may spill and is kept: those of the first row that holds.
    int tolerated() const {
        struct Tolerance {
            bool holds;
            int bytes;
        };
        // The generic kernel, which follows, takes three times as long.
        constexpr int kSpillsOfLast = 640;
        const bool is_first_form = at_ == 0 || all_[at_ - 1].saving_forms == 0;
        const bool comes_again = tile_.saving_forms > 0;
        const Tolerance tolerances[] = {
            // What waits in registers for the loops over terms spills in every form, and most in
            // those that save registers. The generic kernel adds each element's part of each term
            // to memory.
            {request_.gradients.by_terms, kAny},
            // Loops over terms take far longer. A large program has no other form after one that
            // spills much.
            {config_.sum_elements != 0,
             is_last() || request_.work.is_large ? kSpillsOfLast : kSpillsOfSums},
            // The computation of an element takes far longer.
            {request_.work.is_long && !is_last(), kSpillsOfLong},
            // Warps that sum entry by entry, which follow, take twice as long.
            {tile_.has_slower_way && tile_.storage.entries > 0, 256},
            // It takes longer, and forms seldom help.
            {request_.work.is_large && config_.form.has_long_scores, 64},
            // Warps that sum tables or shifted reads spill, which no form avoids.
            {is_first_form && (tile_.sums_tables() || tile_.sums.weighs_distances), 128},
            {is_first_form && request_.gradients.by_shift, 160},
            // What forms that save registers compute again costs more than a few words that are
            // stored once and read in each tile, but for those of warps that copy dense biases.
            {is_first_form && comes_again && !tile_.has_dense_bias() && !adds_elements(), 16},
            // Another form, or the generic kernel, is as fast.
            {comes_again || adds_elements(), 0},
            {is_last(), kSpillsOfLast},
            // So do additions and reads element by element.
            {tile_.has_dense_bias() || config_.sums.key_width != 0 || tile_.sums_tables() ||
                 tile_.sums.weighs_distances,
             256},
            // Smaller tiles follow.
            {true, 128}};
        return std::ranges::find_if(tolerances, &Tolerance::holds)->bytes;
    }

  private:
    bool is_last() const { return at_ + 1 == all_.size(); }
    // Whether elements are added in memory one by one and nothing is summed on chip. Else a few
    // spilled words cost some percent, and the generic kernel has half the speed.
    bool adds_elements() const {
        const BufferGradients& gradients = request_.gradients;
        return (gradients.by_element || gradients.by_table || gradients.grid_places > 0) &&
               !tile_.sums_tables() && config_.sums.key_width == 0;
    }

    const KernelRequest& request_;
    const std::vector<FusedTile>& all_;
    const std::size_t at_;
    const FusedTile& tile_;
    const KernelConfig& config_;
};

} // namespace

SpillLimits spill_limits(const KernelRequest& request, const std::vector<FusedTile>& all,
                         std::size_t at, const KernelConfig& config) {
    const Limits limits(request, all, at, config);
    return {.tolerated = limits.tolerated(),
            .saving_forms = all[at].saving_forms,
            .savable = limits.savable(),
            .beside = limits.beside()};
}

} // namespace flexc::plan::sm90
