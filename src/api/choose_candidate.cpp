#include "api/choose_candidate.h"

#include <algorithm>
#include <future>
#include <optional>
#include <utility>

namespace flexc::api {

using plan::KernelConfig;

namespace {

// What the candidate itself needs. The kernels that its module has for other launches, before or
// after it, are the same for all candidates or short beside it.
cuda::KernelUsage usage_by(const cuda::NvrtcOutput& output, const KernelConfig& config) {
    return cuda::usage_of(output.kernels, config.entry);
}

// How many candidates follow that are of the same family and have the same tile.
std::size_t alike_after(std::span<const KernelConfig> candidates, std::size_t at) {
    const auto rest = candidates.subspan(at + 1);
    const auto other = std::ranges::find_if(rest, [&](const KernelConfig& one) {
        return one.family != candidates[at].family ||
               one.block.query_tile != candidates[at].block.query_tile;
    });
    return static_cast<std::size_t>(other - rest.begin());
}

// How many candidates this result rules out, starting with its own: a kernel can lose more than
// half of its speed when registers spill or wgmma is serialised.
std::size_t refusals(const cuda::KernelUsage& usage, std::span<const KernelConfig> candidates,
                     std::size_t at) {
    const KernelConfig& config = candidates[at];
    const int spilled = usage.spill_store_bytes;
    const plan::SpillLimits& limits = config.spills;
    if (spilled <= limits.tolerated && !usage.serialised) return 0;
    if (usage.serialised && limits.serialise_alike) return 1 + alike_after(candidates, at);
    const bool is_hopeless = spilled > limits.savable;
    const bool is_beside = spilled <= limits.beside;
    return 1 + static_cast<std::size_t>(is_hopeless ? limits.saving_forms : is_beside ? 0 : 1);
}

// Compiles candidates on demand.
class Attempts {
  public:
    Attempts(std::span<const KernelConfig> candidates, const Compiler& compiler)
        : candidates_(candidates), compiler_(compiler) {}

    // If one candidate is refused, the next one often is too, so the one after it is compiled in
    // parallel. Candidates of a family take about equally long.
    Result<Attempt> get(std::size_t at) {
        if (beside_.valid() && at == at_beside_) return beside_.get();
        beside_ = {}; // ends before others begin
        at_beside_ = at + 1;
        const bool has_next = at_beside_ < candidates_.size() &&
                              candidates_[at_beside_].family == candidates_[at].family;
        if (at > 0 && has_next && compiler_.has_room())
            beside_ = std::async(std::launch::async,
                                 [this, next = at_beside_] { return compiler_.attempt(next); });
        return compiler_.attempt(at);
    }

  private:
    std::span<const KernelConfig> candidates_;
    const Compiler& compiler_;
    std::size_t at_beside_ = 0;
    std::future<Result<Attempt>> beside_;
};

// Keeps the refused candidate that spills least. The candidates after it may turn out to be slower.
class BestRefused {
  public:
    explicit BestRefused(std::span<const KernelConfig> candidates) : candidates_(candidates) {}

    void offer(std::size_t at, Attempt attempt) {
        const cuda::KernelUsage usage = usage_by(attempt.output, candidates_[at]);
        if (usage.serialised) return;
        const int spilled = usage.spill_store_bytes;
        if (!best_ || spilled < best_->tolerated_spills) best_ = {at, spilled, std::move(attempt)};
    }

    // Returns it where no other is tried; nothing if all serialise products.
    std::optional<Choice> take() { return std::exchange(best_, {}); }

    // Returns it before `next` is tried after `at`, if these are of two families: it is better than
    // the other family's kernels if it spills no more than the last one of its own family may.
    std::optional<Choice> instead_of(std::size_t next, std::size_t at) {
        const bool is_better = candidates_[next].family != candidates_[at].family && best_ &&
                               best_->tolerated_spills <= candidates_[next - 1].spills.tolerated;
        return is_better ? take() : std::nullopt;
    }

    // Returns it if it is better than the accepted one.
    std::optional<Choice> instead_of(const cuda::KernelUsage& accepted) {
        const bool is_better =
            best_ && (accepted.serialised || best_->tolerated_spills <= accepted.spill_store_bytes);
        return is_better ? take() : std::nullopt;
    }

  private:
    std::span<const KernelConfig> candidates_;
    std::optional<Choice> best_;
};

} // namespace

Result<Choice> choose_candidate(std::span<const KernelConfig> candidates, const Compiler& compiler,
                                const support::Log& log) {
    Attempts attempts(candidates, compiler);
    BestRefused best(candidates);
    for (std::size_t at = 0;;) {
        auto attempt = attempts.get(at);
        const KernelConfig& config = candidates[at];
        const bool is_last = at + 1 == candidates.size();
        if (!attempt && cuda::lacks_registers(attempt.error())) {
            log.info("{} with tiles of {} x {} needs more registers than there are", config.entry,
                     config.block.query_tile, config.block.key_tile);
            if (!is_last) {
                ++at;
                continue;
            }
            if (auto kept = best.take()) return *std::move(kept);
        }
        if (!attempt) return attempt.error();
        const cuda::KernelUsage usage = usage_by(attempt->output, config);
        const std::size_t refused = is_last ? 0 : refusals(usage, candidates, at);
        if (refused == 0) {
            if (auto better = best.instead_of(usage)) return *std::move(better);
            return Choice{at, config.spills.tolerated, *std::move(attempt)};
        }
        log.info("{} with tiles of {} x {} spills {} bytes{} after {:.0f} ms: another "
                 "configuration is tried if it may be better",
                 config.entry, config.block.query_tile, config.block.key_tile,
                 usage.spill_store_bytes, usage.serialised ? " and serialises products" : "",
                 attempt->output.milliseconds);
        const std::size_t next = std::min(at + refused, candidates.size() - 1);
        const bool refuses_all = at + refused >= candidates.size();
        best.offer(at, *std::move(attempt));
        if (auto kept = refuses_all ? best.take() : best.instead_of(next, at))
            return *std::move(kept);
        at = next;
    }
}

} // namespace flexc::api
