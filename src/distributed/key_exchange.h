// The exchange of what has a row for each key: the next step's keys are received while this step is
// computed, and gradients are sent back a step later.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "distributed/collectives.h"
#include "distributed/rows.h"
#include "distributed/state.h"
#include "support/amounts.h"

namespace flexc::distributed {

using detail::DistributedPlanState;

// k and v, and other tensors with a row for each key: buffers that are sharded along KV_LEN; or the
// gradients of all of these.
using KeyTensors = std::vector<TensorView>;
inline constexpr std::size_t kHeadDim = 1; // of k and v

// Layout of KeyTensors in messages and blocks: all tensors of a run of rows, contiguous.
class KeyRows {
  public:
    // For a step, which has some heads of k and v.
    KeyRows(const DistributedPlanState& plan, std::size_t step, bool are_gradients)
        : heads_(plan.steps[step].heads.kv_heads) {
        const CompileOptions& options = plan.kernel->kernel.options();
        const DType dtype = are_gradients ? DType::f32 : options.dtype;
        for (const std::int64_t columns : {options.head_dim, options.head_dim_v})
            parts_.push_back({dtype, 2, {plan.sizes.batch, heads_.count(), 0, columns}});
        for (const Sharded& sharded : plan.sharded)
            if (!sharded.is_query && (!are_gradients || sharded.grad))
                parts_.push_back(
                    {are_gradients ? DType::f32 : sharded.dtype, sharded.dim, sharded.shape});
    }

    std::size_t bytes_of(std::int64_t count) const {
        std::size_t bytes = 0;
        for (const Part& part : parts_)
            bytes += padded(part.view(nullptr, count));
        return bytes;
    }
    std::size_t bytes_of(const Share& share) const {
        std::size_t bytes = 0;
        for (const RowRange& run : share.runs)
            bytes += bytes_of(run.count());
        return bytes;
    }
    // Address of a run in the message that holds all of a share.
    std::byte* find(std::byte* message, const Share& share, const RowRange& wanted) const {
        for (const RowRange& run : share.runs) {
            if (run == wanted) break;
            message += bytes_of(run.count());
        }
        return message;
    }
    KeyTensors views(std::byte* data, std::int64_t count) const {
        KeyTensors views;
        for (const Part& part : parts_) {
            views.push_back(part.view(data, count));
            data += padded(views.back());
        }
        return views;
    }
    // The step's heads of tensors with all heads.
    KeyTensors own_heads(KeyTensors tensors) const {
        for (std::size_t i = 0; i < 2; ++i)
            tensors[i] = rows_of(tensors[i], heads_.begin, heads_.count(), kHeadDim);
        return tensors;
    }
    KeyTensors rows(const KeyTensors& tensors, std::int64_t begin, std::int64_t count) const {
        KeyTensors rows;
        for (std::size_t i = 0; i < tensors.size(); ++i)
            rows.push_back(rows_of(tensors[i], begin, count, parts_[i].dim));
        return rows;
    }

  private:
    struct Part {
        DType dtype;
        std::size_t dim;
        std::vector<std::int64_t> shape;

        TensorView view(std::byte* data, std::int64_t count) const {
            std::vector<std::int64_t> own = shape;
            own[dim] = count;
            return TensorView::contiguous(data, dtype, own);
        }
    };
    static std::size_t padded(const TensorView& view) {
        return support::rounded_up(flexc::distributed::bytes_of(view), kAlignment);
    }
    static constexpr std::size_t kAlignment = 16;

    RowRange heads_;
    std::vector<Part> parts_;
};

// First row of a run of this rank's own keys in its tensors.
inline std::int64_t local_row(const DistributedPlanState& plan, std::int64_t position) {
    return row_of(plan.sizes.keys.ranges(plan.communicator->rank()), position);
}

inline Result<void> copy(TensorWork& work, const KeyTensors& from, const KeyTensors& to) {
    for (std::size_t i = 0; i < from.size(); ++i)
        if (auto done = work.copy(from[i], to[i]); !done) return done;
    return {};
}
inline Result<void> add(TensorWork& work, const KeyTensors& from, const KeyTensors& to) {
    for (std::size_t i = 0; i < from.size(); ++i)
        if (auto done = work.add(from[i], to[i]); !done) return done;
    return {};
}

// Keeps the memory of messages and of their sources until they are complete.
using Memory = std::vector<Bytes>;
inline Result<std::byte*> allocate(TensorWork& work, Memory& memory, std::size_t bytes) {
    auto one = work.allocate(bytes);
    if (!one) return one.error();
    return memory.emplace_back(std::move(*one)).get();
}

// The messages of one step in flight.
struct OnTheWay {
    Memory memory;
    std::vector<std::byte*> received; // of each arrival; null for the rank's own
    std::optional<Communicator::Ticket> ticket;
};

// The keys of each step.
class KeyExchange {
  public:
    KeyExchange(const DistributedPlanState& plan, KeyTensors own)
        : plan_(plan), own_(std::move(own)) {}

    // Returns the blocks of a step, while the next step's are in flight. Called for each step in
    // order; valid until the next call.
    Result<std::vector<KeyTensors>> take(std::size_t step) {
        if (step == 0)
            if (auto started = start(0); !started) return started.error();
        auto blocks = finish(step);
        if (blocks && step + 1 < plan_.steps.size())
            if (auto started = start(step + 1); !started) return started.error();
        return blocks;
    }

  private:
    Result<void> start(std::size_t step) {
        next_ = {};
        const Step& travel = plan_.schedule.steps[step];
        const auto work = plan_.work->beside();
        if (!work) return work.error();
        const KeyRows rows(plan_, step, false);
        const KeyTensors own = rows.own_heads(own_);
        auto memory = std::make_shared<Memory>();
        std::vector<Communicator::Message> sends, receives;
        for (const Share& share : travel.departures) {
            const std::size_t size = rows.bytes_of(share);
            const auto data = allocate(**work, *memory, size);
            if (!data) return data.error();
            std::byte* at = *data;
            for (const RowRange& run : share.runs) {
                if (auto done =
                        copy(**work, rows.rows(own, local_row(plan_, run.begin), run.count()),
                             rows.views(at, run.count()));
                    !done)
                    return done;
                at += rows.bytes_of(run.count());
            }
            sends.push_back({share.peer, *data, size});
        }
        for (const Share& share : travel.arrivals) {
            if (share.peer == plan_.communicator->rank()) {
                next_.received.push_back(nullptr);
                continue;
            }
            const std::size_t size = rows.bytes_of(share);
            const auto data = allocate(**work, *memory, size);
            if (!data) return data.error();
            receives.push_back({share.peer, *data, size});
            next_.received.push_back(*data);
        }
        next_.memory = *memory;
        if (sends.empty() && receives.empty()) return {};
        const auto ticket =
            plan_.work->start(*plan_.communicator, kKeyChannel, sends, receives, std::move(memory));
        if (!ticket) return ticket.error();
        next_.ticket = *ticket;
        return {};
    }

    // Waits for a step that was started.
    Result<std::vector<KeyTensors>> finish(std::size_t step) {
        if (next_.ticket)
            if (auto done = plan_.work->wait(*plan_.communicator, *next_.ticket); !done)
                return done.error();
        here_ = std::move(next_);
        const auto messages = static_cast<std::ptrdiff_t>(here_.memory.size());
        const std::vector<Block>& blocks = plan_.steps[step].blocks;
        std::vector<KeyTensors> views;
        for (const Block& block : blocks) {
            auto view = block_view(block, step);
            if (!view) return view.error();
            views.push_back(std::move(*view));
        }
        // Release the messages that were copied into blocks before the next step's arrive.
        const bool is_read_in_place = std::ranges::any_of(blocks, [](const Block& block) {
            return block.parts.size() == 1 && block.local_row < 0;
        });
        if (!is_read_in_place)
            here_.memory.erase(here_.memory.begin(), here_.memory.begin() + messages);
        return views;
    }

    KeyTensors part_view(const KeyRows& rows, const Block::Part& part, std::size_t step) const {
        const auto& arrivals = plan_.schedule.steps[step].arrivals;
        const auto share = std::ranges::find(arrivals, part.peer, &Share::peer);
        std::byte* const message =
            here_.received[static_cast<std::size_t>(share - arrivals.begin())];
        if (message == nullptr)
            return rows.rows(rows.own_heads(own_), local_row(plan_, part.run.begin),
                             part.run.count());
        return rows.views(rows.find(message, *share, part.run), part.run.count());
    }

    Result<KeyTensors> block_view(const Block& block, std::size_t step) {
        const KeyRows rows(plan_, step, false);
        if (block.parts.size() == 1) return part_view(rows, block.parts[0], step);
        const std::int64_t count = block.keys.count();
        TensorWork& work = plan_.work->tensors();
        const auto data = allocate(work, here_.memory, rows.bytes_of(count));
        if (!data) return data.error();
        KeyTensors whole = rows.views(*data, count);
        for (const Block::Part& part : block.parts)
            if (auto done =
                    copy(work, part_view(rows, part, step),
                         rows.rows(whole, part.run.begin - block.keys.begin, part.run.count()));
                !done)
                return done.error();
        return whole;
    }

    const DistributedPlanState& plan_;
    KeyTensors own_;
    OnTheWay next_, here_;
};

// Sends the gradients of each step's blocks (f32) to the ranks that own the keys.
class GradientExchange {
  public:
    // own: this rank's sums, contiguous.
    GradientExchange(const DistributedPlanState& plan, KeyTensors own)
        : plan_(plan), work_(plan.work->tensors()), own_(std::move(own)) {}

    // Returns the tensors to which a step's launches add: zeros, or the rank's own sums.
    Result<std::vector<KeyTensors>> begin(std::size_t step) {
        blocks_.clear();
        const KeyRows rows(plan_, step, true);
        const KeyTensors own = rows.own_heads(own_);
        std::vector<KeyTensors> views;
        for (const Block& block : plan_.steps[step].blocks) {
            if (block.local_row >= 0) {
                views.push_back(rows.rows(own, block.local_row, block.keys.count()));
                continue;
            }
            const std::size_t size = rows.bytes_of(block.keys.count());
            const auto data = allocate(work_, blocks_, size);
            if (!data) return data.error();
            if (auto done = work_.clear(*data, size); !done) return done.error();
            views.push_back(rows.views(*data, block.keys.count()));
        }
        return views;
    }

    // Starts sending what launches added to the blocks, and receiving what others added.
    Result<void> start(std::size_t step, std::span<const KeyTensors> blocks) {
        if (auto done = finish(); !done) return done;
        step_ = step;
        const KeyRows rows(plan_, step, true);
        const Step& travel = plan_.schedule.steps[step];
        if (auto done = add_own(rows, blocks); !done) return done;
        const auto work = plan_.work->beside();
        if (!work) return work.error();
        auto memory = std::make_shared<Memory>(std::move(blocks_)); // until they have been read
        std::vector<Communicator::Message> sends, receives;
        for (const Share& share : travel.arrivals) {
            if (share.peer == plan_.communicator->rank()) continue;
            const std::size_t size = rows.bytes_of(share);
            const auto data = allocate(**work, *memory, size);
            if (!data) return data.error();
            auto done = each_part(
                rows, blocks, share.peer, [&](const KeyTensors& from, const RowRange& run) {
                    return copy(**work, from,
                                rows.views(rows.find(*data, share, run), run.count()));
                });
            if (!done) return done;
            sends.push_back({share.peer, *data, size});
        }
        for (const Share& share : travel.departures) {
            const std::size_t size = rows.bytes_of(share);
            const auto data = allocate(**work, *memory, size);
            if (!data) return data.error();
            next_.received.push_back(*data);
            receives.push_back({share.peer, *data, size});
        }
        next_.memory = *memory;
        if (sends.empty() && receives.empty()) return {};
        const auto ticket = plan_.work->start(*plan_.communicator, kGradientChannel, sends,
                                              receives, std::move(memory));
        if (!ticket) return ticket.error();
        next_.ticket = *ticket;
        return {};
    }

    // Adds what was received, in the order of ranks.
    Result<void> finish() {
        if (next_.ticket)
            if (auto done = plan_.work->wait(*plan_.communicator, *next_.ticket); !done)
                return done;
        const KeyRows rows(plan_, step_, true);
        for (std::size_t i = 0; i < next_.received.size(); ++i) {
            std::byte* at = next_.received[i];
            for (const RowRange& run : plan_.schedule.steps[step_].departures[i].runs) {
                if (auto done = add(work_, rows.views(at, run.count()), own_rows(rows, run)); !done)
                    return done;
                at += rows.bytes_of(run.count());
            }
        }
        next_ = {};
        return {};
    }

  private:
    KeyTensors own_rows(const KeyRows& rows, const RowRange& run) const {
        return rows.rows(rows.own_heads(own_), local_row(plan_, run.begin), run.count());
    }

    // Calls visit(sums of a run, run) for the parts of the blocks that belong to a rank, unless
    // these are its own sums already.
    template <typename Visit>
    Result<void> each_part(const KeyRows& rows, std::span<const KeyTensors> blocks, int peer,
                           Visit visit) const {
        for (std::size_t i = 0; i < blocks.size(); ++i) {
            const Block& block = plan_.steps[step_].blocks[i];
            if (block.local_row >= 0) continue;
            for (const Block::Part& part : block.parts) {
                if (part.peer != peer) continue;
                if (auto done = visit(
                        rows.rows(blocks[i], part.run.begin - block.keys.begin, part.run.count()),
                        part.run);
                    !done)
                    return done;
            }
        }
        return {};
    }

    Result<void> add_own(const KeyRows& rows, std::span<const KeyTensors> blocks) const {
        return each_part(rows, blocks, plan_.communicator->rank(),
                         [&](const KeyTensors& from, const RowRange& run) {
                             return add(work_, from, own_rows(rows, run));
                         });
    }

    const DistributedPlanState& plan_;
    TensorWork& work_;
    KeyTensors own_;
    Memory blocks_;
    OnTheWay next_;
    std::size_t step_ = 0;
};

} // namespace flexc::distributed
