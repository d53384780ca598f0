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
            parts_.push_back({dtype, 2, {plan.sizes.batch, heads_.count(), 0, columns}, true});
        for (const Sharded& sharded : plan.sharded)
            if (!sharded.is_query && (!are_gradients || sharded.grad))
                parts_.push_back({are_gradients ? DType::f32 : sharded.dtype, sharded.dim,
                                  sharded.shape, false});
    }

    // One of the tensors, of so many rows, as messages have it.
    TensorView view(std::size_t tensor, std::byte* data, std::int64_t count) const {
        return parts_[tensor].view(data, count);
    }
    std::size_t bytes_of(std::int64_t count) const {
        std::size_t bytes = 0;
        for (const Part& part : parts_)
            bytes += padded(part.view(nullptr, count));
        return bytes;
    }
    // One after another.
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
        bool is_by_rows; // [rows, B, H_KV, columns] in memory, so that any run has no gaps

        TensorView view(std::byte* data, std::int64_t count) const {
            std::vector<std::int64_t> own = shape;
            own[dim] = count;
            TensorView view = TensorView::contiguous(data, dtype, own);
            if (is_by_rows) {
                view.strides[1] = own[3];
                view.strides[0] = own[1] * view.strides[1];
                view.strides[2] = own[0] * view.strides[0];
            }
            return view;
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

using Moves = std::vector<Moved>;
inline void add_moves(Moves& moves, const KeyTensors& from, const KeyTensors& to) {
    for (std::size_t i = 0; i < from.size(); ++i)
        moves.push_back({from[i], to[i]});
}

// Keeps the memory of messages and of their sources until they are complete.
using Memory = std::vector<Bytes>;
inline Result<std::byte*> allocate(TensorWork& work, Memory& memory, std::size_t bytes) {
    auto one = work.allocate(bytes);
    if (!one) return one.error();
    return memory.emplace_back(std::move(*one)).get();
}

// Returns whether two tensors of one shape have the same layout.
inline bool lie_alike(const TensorView& a, const TensorView& b) {
    for (std::size_t dim = 0; dim < static_cast<std::size_t>(a.rank); ++dim)
        if (a.shape[dim] > 1 && a.strides[dim] != b.strides[dim]) return false;
    return true;
}
// Returns rows of one of the tensors in the layout of messages: in place if they have it, otherwise
// in new memory for a copy.
inline Result<TensorView> message_of(TensorWork& work, Memory& memory, const KeyRows& rows,
                                     std::size_t tensor, const TensorView& there,
                                     std::int64_t count) {
    TensorView message = rows.view(tensor, nullptr, count);
    if (lie_alike(message, there)) return there;
    const auto data = allocate(work, memory, bytes_of(message));
    if (!data) return data.error();
    message.data = *data;
    return message;
}

// The position of a run of keys in a block.
struct Place {
    std::size_t block = 0;
    std::int64_t row = 0;
};
inline Place place_of(const StepPlan& step, const RowRange& run) {
    const auto block = std::ranges::find_if(step.blocks, [&](const Block& one) {
        return one.keys.begin <= run.begin && run.end <= one.keys.end;
    });
    return {static_cast<std::size_t>(block - step.blocks.begin()), run.begin - block->keys.begin};
}

using Messages = std::vector<Communicator::Message>;
inline void add_message(Messages& messages, int peer, const TensorView& view) {
    const std::size_t bytes = bytes_of(view);
    if (bytes > 0) messages.push_back({peer, view.data, bytes});
}

// The keys of each step.
class KeyExchange {
  public:
    KeyExchange(const DistributedPlanState& plan, KeyTensors own)
        : plan_(plan), own_(std::move(own)), steps_(plan.steps.size()) {}

    // Starts the first messages.
    Result<void> begin() { return start_next(); }

    // Returns the blocks of a step, while the next step's are in flight. Called for each step in
    // order; valid until the next call.
    Result<std::vector<KeyTensors>> take(std::size_t step) {
        // Where steps overlap, launches may still read it.
        if (step > 0 && !plan_.steps_overlap) steps_[step - 1] = {};
        if (started_ <= step + 1)
            if (auto done = start_next(); !done) return done.error();
        if (auto done = plan_.work->let_messages_begin(); !done) return done.error();
        return arrived(step);
    }

  private:
    // Up to one in which anything travels between any ranks, so that all start in the same order.
    Result<void> start_next() {
        while (started_ < steps_.size()) {
            const std::size_t step = started_++;
            if (auto done = start(step); !done) return done;
            if (plan_.schedule.steps[step].travels) break;
        }
        return {};
    }

    struct OnTheWay {
        Memory memory;
        std::vector<KeyTensors> blocks;
        Messages sends, receives;
        Moves copies; // to blocks, of messages of another layout
        std::optional<Communicator::Ticket> ticket;
    };

    // Packs and sends what others need of a step, and meanwhile copies own keys to its blocks.
    Result<void> start(std::size_t step) {
        const auto work = plan_.work->beside();
        if (!work) return work.error();
        Moves packed, own;
        if (auto done = prepare(**work, step, packed, own); !done) return done;
        if (auto done = (*work)->copy(packed); !done) return done;
        if (auto done = send(step); !done) return done;
        return plan_.work->tensors().copy(own);
    }

    Result<void> prepare(TensorWork& work, std::size_t step, Moves& packed, Moves& own) {
        OnTheWay& way = steps_[step];
        const KeyRows rows(plan_, step, false);
        const KeyTensors own_of_heads = rows.own_heads(own_);
        const auto own_rows = [&](const RowRange& run) {
            return rows.rows(own_of_heads, local_row(plan_, run.begin), run.count());
        };
        const Step& travel = plan_.schedule.steps[step];
        // Packed wherever they lie: a message that has not gone after an error may outlive tensors
        // of the caller.
        for (const Share& share : travel.departures)
            for (const RowRange& run : share.runs) {
                const auto data = allocate(work, way.memory, rows.bytes_of(run.count()));
                if (!data) return data.error();
                const KeyTensors message = rows.views(*data, run.count());
                add_moves(packed, own_rows(run), message);
                for (const TensorView& one : message)
                    add_message(way.sends, share.peer, one);
            }
        const StepPlan& planned = plan_.steps[step];
        for (const Block& block : planned.blocks) {
            const std::int64_t count = block.keys.count();
            if (block.local_row >= 0) {
                way.blocks.push_back(rows.rows(own_of_heads, block.local_row, count));
                continue;
            }
            const auto data = allocate(work, way.memory, rows.bytes_of(count));
            if (!data) return data.error();
            way.blocks.push_back(rows.views(*data, count));
        }
        for (const Share& share : travel.arrivals)
            for (const RowRange& run : share.runs) {
                const Place place = place_of(planned, run);
                if (planned.blocks[place.block].local_row >= 0) continue;
                const KeyTensors to = rows.rows(way.blocks[place.block], place.row, run.count());
                if (share.peer == plan_.communicator->rank())
                    add_moves(own, own_rows(run), to);
                else if (auto done = receive(work, rows, share.peer, run, to, way); !done)
                    return done;
            }
        return {};
    }

    static Result<void> receive(TensorWork& work, const KeyRows& rows, int peer,
                                const RowRange& run, const KeyTensors& to, OnTheWay& way) {
        for (std::size_t i = 0; i < to.size(); ++i) {
            const auto message = message_of(work, way.memory, rows, i, to[i], run.count());
            if (!message) return message.error();
            add_message(way.receives, peer, *message);
            if (message->data != to[i].data) way.copies.push_back({*message, to[i]});
        }
        return {};
    }

    Result<void> send(std::size_t step) {
        OnTheWay& way = steps_[step];
        if (way.sends.empty() && way.receives.empty()) return {};
        const auto ticket = plan_.work->start(*plan_.communicator, kKeyChannel, way.sends,
                                              way.receives, std::make_shared<Memory>(way.memory));
        if (!ticket) return ticket.error();
        way.ticket = *ticket;
        return {};
    }

    Result<std::vector<KeyTensors>> arrived(std::size_t step) {
        OnTheWay& way = steps_[step];
        if (way.ticket)
            if (auto done = plan_.work->wait(*plan_.communicator, *way.ticket); !done)
                return done.error();
        if (auto done = plan_.work->tensors().copy(way.copies); !done) return done.error();
        return way.blocks;
    }

    const DistributedPlanState& plan_;
    KeyTensors own_;
    std::vector<OnTheWay> steps_;
    std::size_t started_ = 0;
};

// Sends the gradients of each step's blocks (f32) to the ranks that own the keys.
class GradientExchange {
  public:
    // own: this rank's sums, contiguous. forks: launches of the last step run in the forked stream.
    GradientExchange(const DistributedPlanState& plan, KeyTensors own, bool forks)
        : plan_(plan), work_(plan.work->tensors()), own_(std::move(own)), forks_(forks),
          steps_(plan.steps.size()) {}

    // Makes the tensors to which a step's launches add: zeros, or the rank's own sums.
    Result<void> begin(std::size_t step) {
        OfStep& of_step = steps_[step];
        const KeyRows rows(plan_, step, true);
        for (const Block& block : plan_.steps[step].blocks) {
            const std::int64_t count = block.keys.count();
            if (block.local_row >= 0) {
                of_step.blocks.push_back(rows.rows(rows.own_heads(own_), block.local_row, count));
                continue;
            }
            const std::size_t size = rows.bytes_of(count);
            const auto data = allocate(work_, of_step.memory, size);
            if (!data) return data.error();
            if (auto done = work_.clear(*data, size); !done) return done.error();
            of_step.blocks.push_back(rows.views(*data, count));
        }
        return {};
    }
    const KeyTensors& sums(std::size_t step, std::size_t block) const {
        return steps_[step].blocks[block];
    }

    // Starts sending what a step's launches added to the blocks, and receiving what others added;
    // then adds what was received for the step before.
    Result<void> start(std::size_t step) {
        if (auto done = send(step); !done) return done;
        return step == 0 ? Result<void>{} : finish(step - 1);
    }

    // After the last start(): adds the rank's own part while the messages are in flight.
    Result<void> finish() {
        if (auto done = plan_.work->join(); !done || steps_.empty()) return done;
        const std::size_t last = steps_.size() - 1;
        if (auto done = add_own(last); !done) return done;
        if (auto done = wait(last); !done) return done;
        return add_received(last);
    }

  private:
    struct OfStep {
        Memory memory;
        std::vector<KeyTensors> blocks;
        struct Arrival {
            RowRange run;
            KeyTensors message;
        };
        std::vector<Arrival> received; // in the order of ranks
        std::optional<Communicator::Ticket> ticket;
    };

    Result<void> send(std::size_t step) {
        OfStep& of_step = steps_[step];
        const Step& travel = plan_.schedule.steps[step];
        const auto comes = [&](const Share& share) {
            return share.peer != plan_.communicator->rank();
        };
        if (travel.departures.empty() && std::ranges::none_of(travel.arrivals, comes)) return {};
        const auto work = forks_ ? plan_.work->beside_forked() : plan_.work->beside();
        if (!work) return work.error();
        const KeyRows rows(plan_, step, true);
        Moves packed;
        Messages sends, receives;
        for (const Share& share : travel.arrivals) {
            if (!comes(share)) continue;
            for (const RowRange& run : share.runs) {
                const Place place = place_of(plan_.steps[step], run);
                const KeyTensors from =
                    rows.rows(of_step.blocks[place.block], place.row, run.count());
                for (std::size_t i = 0; i < from.size(); ++i) {
                    const auto message =
                        message_of(**work, of_step.memory, rows, i, from[i], run.count());
                    if (!message) return message.error();
                    if (message->data != from[i].data) packed.push_back({from[i], *message});
                    add_message(sends, share.peer, *message);
                }
            }
        }
        if (auto done = (*work)->copy(packed); !done) return done;
        for (const Share& share : travel.departures)
            for (const RowRange& run : share.runs) {
                const auto data = allocate(**work, of_step.memory, rows.bytes_of(run.count()));
                if (!data) return data.error();
                of_step.received.push_back({run, rows.views(*data, run.count())});
                for (const TensorView& one : of_step.received.back().message)
                    add_message(receives, share.peer, one);
            }
        if (sends.empty() && receives.empty()) return {};
        const auto ticket = plan_.work->start(*plan_.communicator, kGradientChannel, sends,
                                              receives, std::make_shared<Memory>(of_step.memory));
        if (!ticket) return ticket.error();
        of_step.ticket = *ticket;
        return plan_.work->let_messages_begin();
    }

    // After the next step's launches.
    Result<void> finish(std::size_t step) {
        if (auto done = wait(step); !done) return done;
        if (auto done = add_own(step); !done) return done;
        return add_received(step);
    }

    Result<void> wait(std::size_t step) {
        auto& ticket = steps_[step].ticket;
        if (!ticket) return {};
        auto done = plan_.work->wait(*plan_.communicator, *ticket);
        ticket.reset();
        return done;
    }

    KeyTensors own_rows(const KeyRows& rows, const RowRange& run) const {
        return rows.rows(rows.own_heads(own_), local_row(plan_, run.begin), run.count());
    }

    // Adds what a step's blocks have of this rank's keys.
    Result<void> add_own(std::size_t step) {
        const KeyRows rows(plan_, step, true);
        const StepPlan& planned = plan_.steps[step];
        Moves added;
        for (std::size_t i = 0; i < planned.blocks.size(); ++i) {
            const Block& block = planned.blocks[i];
            if (block.local_row >= 0) continue;
            for (const Block::Part& part : block.parts)
                if (part.peer == plan_.communicator->rank())
                    add_moves(added,
                              rows.rows(steps_[step].blocks[i], part.run.begin - block.keys.begin,
                                        part.run.count()),
                              own_rows(rows, part.run));
        }
        return work_.add(added);
    }

    Result<void> add_received(std::size_t step) {
        const KeyRows rows(plan_, step, true);
        for (const auto& [run, message] : steps_[step].received) {
            Moves added;
            add_moves(added, message, own_rows(rows, run));
            if (auto done = work_.add(added); !done) return done;
        }
        steps_[step] = {};
        return {};
    }

    const DistributedPlanState& plan_;
    TensorWork& work_;
    KeyTensors own_;
    bool forks_;
    std::vector<OfStep> steps_;
};

} // namespace flexc::distributed
