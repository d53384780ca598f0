// Computes balanced shards from what the mask of a sequence shows, without a communicator.
#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "distributed/make_work.h"
#include "distributed/mask_map.h"
#include "distributed/requests.h"
#include "distributed/schedule.h"
#include "distributed/state.h"
#include "runtime/buffers.h"
#include "support/guarded.h"
#include "support/text.h"

namespace flexc {

Result<Shards> DistributedKernel::balanced_shards(const Sizes& sizes, int ranks,
                                                  std::span<const NamedTensor> buffers,
                                                  const DistributedOptions& options,
                                                  Stream stream) const {
    return guarded([&]() -> Result<Shards> {
        if (!state_)
            return runtime::invalid(
                "this kernel handle is empty: it did not come from compile_distributed()");
        if (sizes.q_len != sizes.kv_len)
            return runtime::invalid(formatted("{} queries and {} keys: balanced shards are of "
                                              "sequences that attend to themselves",
                                              sizes.q_len, sizes.kv_len));
        if (ranks < 1 || ranks > kMaxRanks)
            return runtime::invalid(formatted("{} ranks: between 1 and {}", ranks, kMaxRanks));
        auto work = distributed::make_work(*state_, nullptr);
        if (!work) return work.error();
        if (auto done = (*work)->begin(stream); !done) return done.error();
        Sizes whole_sizes = sizes;
        std::vector<NamedTensor> all(buffers.begin(), buffers.end());
        std::optional<distributed::Requests> requests;
        if (state_->options.one_sequence != OneSequence::no) {
            auto read = distributed::Requests::read(sizes, options.lengths);
            if (!read) return read.error();
            requests = std::move(*read);
            if (auto placed = requests->place(**work); !placed) return placed.error();
            std::ranges::copy(requests->buffers(), std::back_inserter(all));
            whole_sizes.batch = 1;
        }
        auto whole = distributed::bind_whole(state_->kernel, whole_sizes, all, options);
        if (!whole) return whole.error();
        const auto map = distributed::mask_map(state_->kernel.state().mod, *whole, **work, all);
        if (!map) return map.error();
        return distributed::balanced(*map, ranks);
    });
}

} // namespace flexc
