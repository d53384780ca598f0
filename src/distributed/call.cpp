// Forward and backward of one rank: keys of the next step travel while those of this one are
// computed with, and their gradients go home a step later.
#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <utility>

#include "distributed/agreement.h"
#include "distributed/collectives.h"
#include "distributed/partial_sums.h"
#include "distributed/rows.h"
#include "distributed/sinks.h"
#include "distributed/state.h"
#include "runtime/buffers.h"
#include "support/amounts.h"
#include "support/guarded.h"
#include "support/text.h"

namespace flexc {

namespace {

using detail::DistributedPlanState;
using distributed::Block;
using distributed::Launch;
using distributed::rows_of;
using distributed::Sharded;
using distributed::Share;
using distributed::StepPlan;

using Bytes = std::shared_ptr<std::byte[]>;
// Aligned for any element type.
Bytes bytes(std::size_t count) { return Bytes(new std::byte[count]); }

// k and v, and what else has a row for each key: buffers that are sharded along KV_LEN, or the
// gradients of all of these.
using KeyTensors = std::vector<TensorView>;

// How they lie in messages and blocks: of a run of rows all of them, without gaps.
class KeyRows {
  public:
    KeyRows(const DistributedPlanState& plan, bool are_gradients) {
        const CompileOptions& options = plan.kernel->kernel.options();
        const DType dtype = are_gradients ? DType::f32 : options.dtype;
        for (const std::int64_t columns : {options.head_dim, options.head_dim_v})
            parts_.push_back({dtype, 2, {plan.sizes.batch, plan.sizes.kv_heads, 0, columns}});
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
    // Where a run is in the message that has all of a share.
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
        return support::rounded_up(distributed::bytes_of(view), kAlignment);
    }
    static constexpr std::size_t kAlignment = 16;

    std::vector<Part> parts_;
};

// Where a run of this rank's own keys begins in its tensors.
std::int64_t local_row(const DistributedPlanState& plan, std::int64_t position) {
    std::int64_t row = 0;
    for (const RowRange& range : plan.sizes.keys.ranges(plan.communicator->rank())) {
        if (position >= range.begin && position < range.end) return row + position - range.begin;
        row += range.count();
    }
    return row;
}

// To tensors without gaps.
void pack(const KeyTensors& from, const KeyTensors& to) {
    for (std::size_t i = 0; i < from.size(); ++i)
        distributed::pack(from[i], static_cast<std::byte*>(to[i].data));
}

// Messages of one step on their way, with the memory that they are in.
struct OnTheWay {
    std::vector<Bytes> memory;
    std::vector<std::byte*> received; // of each arrival; null for the rank's own
    std::optional<Communicator::Ticket> ticket;
};

// The keys of each step.
class KeyExchange {
  public:
    KeyExchange(const DistributedPlanState& plan, KeyTensors own)
        : plan_(plan), own_(std::move(own)), rows_(plan, false) {}

    Result<void> start(std::size_t step) {
        next_ = {};
        auto memory = std::make_shared<std::vector<Bytes>>();
        std::vector<Communicator::Message> sends, receives;
        for (const Share& share : plan_.schedule.steps[step].departures) {
            const std::size_t size = rows_.bytes_of(share);
            std::byte* const data = memory->emplace_back(bytes(size)).get();
            std::byte* at = data;
            for (const RowRange& run : share.runs) {
                pack(rows_.rows(own_, local_row(plan_, run.begin), run.count()),
                     rows_.views(at, run.count()));
                at += rows_.bytes_of(run.count());
            }
            sends.push_back({share.peer, data, size});
        }
        for (const Share& share : plan_.schedule.steps[step].arrivals) {
            std::byte* data = nullptr;
            if (share.peer != plan_.communicator->rank()) {
                const std::size_t size = rows_.bytes_of(share);
                data = memory->emplace_back(bytes(size)).get();
                receives.push_back({share.peer, data, size});
            }
            next_.received.push_back(data);
        }
        next_.memory = *memory;
        if (sends.empty() && receives.empty()) return {};
        const auto ticket =
            plan_.communicator->start(distributed::kKeyChannel, sends, receives, std::move(memory));
        if (!ticket) return ticket.error();
        next_.ticket = *ticket;
        return {};
    }

    // The blocks of a step that was started; valid until finish() of the next one.
    Result<std::vector<KeyTensors>> finish(std::size_t step) {
        if (next_.ticket)
            if (auto done = plan_.communicator->wait(*next_.ticket); !done) return done.error();
        here_ = std::move(next_);
        std::vector<KeyTensors> views;
        for (const Block& block : plan_.steps[step].blocks)
            views.push_back(block_view(block, step));
        return views;
    }

    KeyTensors rows(const KeyTensors& block, const Launch& launch) const {
        return rows_.rows(block, launch.k_row, launch.k_count);
    }

  private:
    KeyTensors part_view(const Block::Part& part, std::size_t step) const {
        const auto& arrivals = plan_.schedule.steps[step].arrivals;
        const auto share = std::ranges::find(arrivals, part.peer, &Share::peer);
        std::byte* const message =
            here_.received[static_cast<std::size_t>(share - arrivals.begin())];
        if (message == nullptr)
            return rows_.rows(own_, local_row(plan_, part.run.begin), part.run.count());
        return rows_.views(rows_.find(message, *share, part.run), part.run.count());
    }

    KeyTensors block_view(const Block& block, std::size_t step) {
        if (block.parts.size() == 1) return part_view(block.parts[0], step);
        const std::int64_t count = block.keys.count();
        KeyTensors whole =
            rows_.views(here_.memory.emplace_back(bytes(rows_.bytes_of(count))).get(), count);
        for (const Block::Part& part : block.parts) {
            const KeyTensors from = part_view(part, step);
            const KeyTensors to =
                rows_.rows(whole, part.run.begin - block.keys.begin, part.run.count());
            for (std::size_t i = 0; i < from.size(); ++i)
                distributed::copy(from[i], to[i]);
        }
        return whole;
    }

    const DistributedPlanState& plan_;
    KeyTensors own_;
    KeyRows rows_;
    OnTheWay next_, here_;
};

// Gradients of what has a row for each key, f32: of each step's blocks, on their way to whose keys
// they are.
class GradientExchange {
  public:
    // own: this rank's sums, without gaps.
    GradientExchange(const DistributedPlanState& plan, KeyTensors own)
        : plan_(plan), own_(std::move(own)), rows_(plan, true) {}

    // Where a step's launches add: zeros, or the rank's own sums.
    std::vector<KeyTensors> begin(std::size_t step) {
        blocks_.clear();
        std::vector<KeyTensors> views;
        for (const Block& block : plan_.steps[step].blocks) {
            if (block.local_row >= 0) {
                views.push_back(rows_.rows(own_, block.local_row, block.keys.count()));
                continue;
            }
            const std::size_t size = rows_.bytes_of(block.keys.count());
            std::byte* const data = blocks_.emplace_back(bytes(size)).get();
            std::fill_n(data, size, std::byte{0});
            views.push_back(rows_.views(data, block.keys.count()));
        }
        return views;
    }

    KeyTensors rows(const KeyTensors& block, const Launch& launch) const {
        return rows_.rows(block, launch.k_row, launch.k_count);
    }

    // What launches added to the blocks goes home, and what others added comes.
    Result<void> start(std::size_t step, std::span<const KeyTensors> blocks) {
        if (auto done = finish(); !done) return done;
        auto memory = std::make_shared<std::vector<Bytes>>();
        std::vector<Communicator::Message> sends, receives;
        const distributed::Step& travel = plan_.schedule.steps[step];
        for (const Share& share : travel.arrivals) {
            const bool is_own = share.peer == plan_.communicator->rank();
            const std::size_t size = rows_.bytes_of(share);
            std::byte* const data = is_own ? nullptr : memory->emplace_back(bytes(size)).get();
            for (std::size_t i = 0; i < blocks.size(); ++i)
                for (const Block::Part& part : plan_.steps[step].blocks[i].parts)
                    if (part.peer == share.peer)
                        take(plan_.steps[step].blocks[i], blocks[i], part.run,
                             is_own ? nullptr : rows_.find(data, share, part.run));
            if (!is_own) sends.push_back({share.peer, data, size});
        }
        for (const Share& share : travel.departures) {
            const std::size_t size = rows_.bytes_of(share);
            std::byte* const data = memory->emplace_back(bytes(size)).get();
            next_.received.push_back(data);
            receives.push_back({share.peer, data, size});
        }
        next_.memory = *memory;
        step_ = step;
        if (sends.empty() && receives.empty()) return {};
        const auto ticket = plan_.communicator->start(distributed::kGradientChannel, sends,
                                                      receives, std::move(memory));
        if (!ticket) return ticket.error();
        next_.ticket = *ticket;
        return {};
    }

    // Adds what came, in the order of ranks.
    Result<void> finish() {
        if (next_.ticket)
            if (auto done = plan_.communicator->wait(*next_.ticket); !done) return done;
        for (std::size_t i = 0; i < next_.received.size(); ++i) {
            std::byte* at = next_.received[i];
            for (const RowRange& run : plan_.schedule.steps[step_].departures[i].runs) {
                add(rows_.views(at, run.count()), run);
                at += rows_.bytes_of(run.count());
            }
        }
        next_ = {};
        return {};
    }

  private:
    // To the sums of own keys; `more` has no gaps.
    void add(const KeyTensors& more, const RowRange& run) {
        const KeyTensors to = rows_.rows(own_, local_row(plan_, run.begin), run.count());
        for (std::size_t i = 0; i < more.size(); ++i)
            distributed::add(static_cast<const float*>(more[i].data), to[i]);
    }

    // Into a message, or to the sums of own keys.
    void take(const Block& block, const KeyTensors& sums, const RowRange& run, std::byte* data) {
        if (block.local_row >= 0) return; // they are there already
        const KeyTensors from = rows_.rows(sums, run.begin - block.keys.begin, run.count());
        if (data != nullptr) return pack(from, rows_.views(data, run.count()));
        const Bytes packed = bytes(rows_.bytes_of(run.count()));
        const KeyTensors more = rows_.views(packed.get(), run.count());
        pack(from, more);
        add(more, run);
    }

    const DistributedPlanState& plan_;
    KeyTensors own_;
    KeyRows rows_;
    std::vector<Bytes> blocks_;
    OnTheWay next_;
    std::size_t step_ = 0;
};

// A tensor of this rank's rows against what the plan says.
struct Rule {
    const char* name;
    const TensorView* tensor;
    std::int64_t heads, rows;
    int columns; // 0: one number for each row
    bool is_f32 = false, may_be_f32 = false, is_written = false, is_optional = false;
};

Result<void> check(const DistributedPlanState& plan, const Rule& rule) {
    const TensorView& tensor = *rule.tensor;
    if (!tensor) {
        if (rule.is_optional || rule.rows == 0) return {};
        return runtime::invalid(formatted("{}: missing", rule.name));
    }
    const DType expected = rule.is_f32 ? DType::f32 : plan.kernel->kernel.options().dtype;
    if (tensor.dtype != expected && !(rule.may_be_f32 && tensor.dtype == DType::f32))
        return runtime::invalid(
            formatted("{}: expected type {}{}, got {}", rule.name, name(expected),
                      rule.may_be_f32 && !rule.is_f32 ? " or f32" : "", name(tensor.dtype)));
    if (auto checked = runtime::check_view(tensor, rule.name); !checked) return checked;
    const std::array<std::int64_t, 4> shape = {plan.sizes.batch, rule.heads, rule.rows,
                                               rule.columns};
    const auto wanted = std::span(shape).first(rule.columns == 0 ? 3 : 4);
    if (!std::ranges::equal(wanted, runtime::shape_of(tensor)))
        return runtime::invalid(formatted("{}: expected shape {}, got {}", rule.name,
                                          runtime::shape_text(wanted),
                                          runtime::shape_text(runtime::shape_of(tensor))));
    if (reinterpret_cast<std::uintptr_t>(tensor.data) % size_of(tensor.dtype) != 0)
        return runtime::invalid(formatted("{}: the pointer is not aligned to its {} elements",
                                          rule.name, name(tensor.dtype)));
    if (rule.is_written) return runtime::check_writable(tensor, rule.name);
    return {};
}

Result<void> check_all(const DistributedPlanState& plan, std::span<const Rule> rules) {
    for (const Rule& rule : rules)
        if (auto checked = check(plan, rule); !checked) return checked;
    return {};
}

// Memory of tensors without elements, which may be absent.
alignas(16) std::byte nothing[16];

// What the caller gave; of sharded buffers without rows a tensor of none.
std::vector<NamedTensor> completed(const DistributedPlanState& plan,
                                   std::span<const NamedTensor> given, bool are_gradients) {
    std::vector<NamedTensor> tensors(given.begin(), given.end());
    for (const Sharded& sharded : plan.sharded) {
        const std::int64_t rows = sharded.shape[sharded.dim];
        if (rows > 0 || (are_gradients && !sharded.grad)) continue;
        std::erase_if(tensors,
                      [&](const NamedTensor& tensor) { return tensor.name == sharded.name; });
        const bool is_f32 = are_gradients && plan.kernel->gradient_type == GradientType::f32;
        tensors.push_back(
            {sharded.name, sharded.view(nothing, is_f32 ? DType::f32 : sharded.dtype, 0)});
    }
    return tensors;
}

Result<void> check_forward(const DistributedPlanState& plan, const ForwardTensors& tensors,
                           std::span<const NamedTensor> buffers) {
    const CompileOptions& options = plan.kernel->kernel.options();
    const std::int64_t heads = plan.sizes.heads, kv_heads = plan.sizes.kv_heads;
    const int d = options.head_dim, dv = options.head_dim_v;
    const Rule rules[] = {{"q", &tensors.q, heads, plan.q_rows, d},
                          {"k", &tensors.k, kv_heads, plan.k_rows, d},
                          {"v", &tensors.v, kv_heads, plan.k_rows, dv},
                          {.name = "o",
                           .tensor = &tensors.o,
                           .heads = heads,
                           .rows = plan.q_rows,
                           .columns = dv,
                           .may_be_f32 = true,
                           .is_written = true},
                          {.name = "lse",
                           .tensor = &tensors.lse,
                           .heads = heads,
                           .rows = plan.q_rows,
                           .columns = 0,
                           .is_f32 = true,
                           .is_written = true,
                           .is_optional = true}};
    if (auto checked = check_all(plan, rules); !checked) return checked;
    std::array<TensorView, ir::kMaxBuffers> views;
    return runtime::find_buffers(plan.kernel->kernel.state().mod.program, plan.whole.size_values,
                                 buffers, views);
}

using GradientViews = std::array<TensorView, ir::kMaxBuffers>;

Result<void> check_backward(const DistributedPlanState& plan, const BackwardTensors& tensors,
                            std::span<const NamedTensor> buffers,
                            std::span<const NamedTensor> gradients, GradientViews& views) {
    const detail::KernelState& kernel = plan.kernel->kernel.state();
    if (!kernel.options.backward)
        return runtime::invalid(
            "this kernel was compiled without backward: set CompileOptions::backward");
    const std::int64_t heads = plan.sizes.heads, kv_heads = plan.sizes.kv_heads;
    const int d = kernel.options.head_dim, dv = kernel.options.head_dim_v;
    const auto written = [&](const char* label, const TensorView& tensor, std::int64_t of_heads,
                             std::int64_t rows, int columns) {
        return Rule{.name = label,
                    .tensor = &tensor,
                    .heads = of_heads,
                    .rows = rows,
                    .columns = columns,
                    .may_be_f32 = true,
                    .is_written = true};
    };
    const auto of_rows = [&](const char* label, const TensorView& tensor, bool is_optional) {
        return Rule{.name = label,
                    .tensor = &tensor,
                    .heads = heads,
                    .rows = plan.q_rows,
                    .columns = 0,
                    .is_f32 = true,
                    .is_optional = is_optional};
    };
    Rule o = written("o", tensors.o, heads, plan.q_rows, dv);
    o.is_written = false;
    const Rule rules[] = {{"q", &tensors.q, heads, plan.q_rows, d},
                          {"k", &tensors.k, kv_heads, plan.k_rows, d},
                          {"v", &tensors.v, kv_heads, plan.k_rows, dv},
                          o,
                          {"d_out", &tensors.d_out, heads, plan.q_rows, dv},
                          of_rows("lse", tensors.lse, false),
                          of_rows("d_lse", tensors.d_lse, true),
                          written("dq", tensors.dq, heads, plan.q_rows, d),
                          written("dk", tensors.dk, kv_heads, plan.k_rows, d),
                          written("dv", tensors.dv, kv_heads, plan.k_rows, dv)};
    if (auto checked = check_all(plan, rules); !checked) return checked;
    GradientViews read;
    if (auto found =
            runtime::find_buffers(kernel.mod.program, plan.whole.size_values, buffers, read);
        !found)
        return found;
    return runtime::find_gradients(kernel.mod.program, plan.whole.size_values, gradients,
                                   plan.kernel->gradient_type, views);
}

Result<void> check_plan(const detail::DistributedKernelState* kernel,
                        const DistributedPlanState* plan) {
    if (kernel == nullptr)
        return runtime::invalid(
            "this kernel handle is empty: it did not come from compile_distributed()");
    if (plan == nullptr || plan->kernel.get() != kernel)
        return runtime::invalid("this plan was not made by this kernel: call plan() on it");
    return {};
}

Result<DeviceMemory> workspace_of(const DistributedPlanState& plan) {
    return DeviceMemory::allocate(Device::cpu(), plan.workspace_bytes);
}

// What launches read as buffers, or add to as their gradients.
class LaunchBuffers {
  public:
    // Gradients are this rank's f32 sums.
    LaunchBuffers(const DistributedPlanState& plan, std::span<const NamedTensor> own,
                  bool are_gradients)
        : own_(own.begin(), own.end()) {
        for (const Sharded& sharded : plan.sharded) {
            if (sharded.is_query || (are_gradients && !sharded.grad)) continue;
            const auto at = std::ranges::find(own_, sharded.name, &NamedTensor::name);
            of_keys_.push_back(static_cast<std::size_t>(at - own_.begin()));
            // A sink reads nothing of keys: zeros, or what nobody adds to.
            const TensorView row =
                sharded.view(nullptr, are_gradients ? DType::f32 : sharded.dtype, 1);
            zeros_.emplace_back(distributed::bytes_of(row));
            zero_rows_.push_back(row);
            zero_rows_.back().data = zeros_.back().data();
        }
    }

    // Of the rank's own rows, in the order of KeyRows.
    KeyTensors of_keys() const {
        KeyTensors tensors;
        for (const std::size_t at : of_keys_)
            tensors.push_back(own_[at].tensor);
        return tensors;
    }
    // `tensors` begins with k and v. Launches on own keys have all of the rank's rows.
    std::vector<NamedTensor> of(const Block& block, const KeyTensors& tensors) const {
        std::vector<NamedTensor> result = own_;
        if (block.local_row < 0)
            for (std::size_t i = 0; i < of_keys_.size(); ++i)
                result[of_keys_[i]].tensor = tensors[2 + i];
        return result;
    }
    std::vector<NamedTensor> of_sinks() const {
        std::vector<NamedTensor> result = own_;
        for (std::size_t i = 0; i < of_keys_.size(); ++i)
            result[of_keys_[i]].tensor = zero_rows_[i];
        return result;
    }

  private:
    std::vector<NamedTensor> own_;
    std::vector<std::size_t> of_keys_;
    std::vector<std::vector<std::byte>> zeros_;
    KeyTensors zero_rows_;
};

KeyTensors key_tensors(const TensorView& k, const TensorView& v, const LaunchBuffers& buffers) {
    KeyTensors tensors = {k, v};
    std::ranges::copy(buffers.of_keys(), std::back_inserter(tensors));
    return tensors;
}

Result<void> run_forward(const DistributedPlanState& plan, const ForwardTensors& tensors,
                         std::span<const NamedTensor> buffers) {
    if (plan.ulysses) return distributed::forward_ulysses(plan, tensors, buffers);
    const Kernel& kernel = plan.kernel->kernel;
    const std::int64_t heads = plan.sizes.batch * plan.sizes.heads;
    const std::int64_t columns = kernel.options().head_dim_v;
    auto workspace = workspace_of(plan);
    if (!workspace) return workspace.error();
    const bool has_merged = !plan.merged_rows.empty();
    distributed::PartialSums sums(heads, has_merged ? plan.q_rows : 0, columns);
    const auto room = static_cast<std::size_t>(has_merged ? heads * plan.most_queries : 0);
    std::vector<float> partial_o(room * static_cast<std::size_t>(columns)), partial_lse(room);

    const LaunchBuffers read(plan, buffers, false);
    KeyExchange keys(plan, key_tensors(tensors.k, tensors.v, read));
    if (auto started = keys.start(0); !started) return started;
    for (std::size_t step = 0; step < plan.steps.size(); ++step) {
        const auto blocks = keys.finish(step);
        if (!blocks) return blocks.error();
        if (step + 1 < plan.steps.size())
            if (auto started = keys.start(step + 1); !started) return started;
        for (const Launch& launch : plan.steps[step].launches) {
            const KeyTensors& block = (*blocks)[launch.block];
            const KeyTensors seen = keys.rows(block, launch);
            ForwardTensors piece{
                .q = rows_of(tensors.q, launch.q_row, launch.q_count), .k = seen[0], .v = seen[1]};
            if (launch.is_alone) {
                piece.o = rows_of(tensors.o, launch.q_row, launch.q_count);
                piece.lse = rows_of(tensors.lse, launch.q_row, launch.q_count);
            } else {
                const std::int64_t b = plan.sizes.batch, h = plan.sizes.heads;
                piece.o = TensorView::contiguous(partial_o.data(), DType::f32,
                                                 {b, h, launch.q_count, columns});
                piece.lse =
                    TensorView::contiguous(partial_lse.data(), DType::f32, {b, h, launch.q_count});
            }
            if (auto done = kernel.forward(launch.plan, piece,
                                           read.of(plan.steps[step].blocks[launch.block], block),
                                           {workspace->data(), workspace->bytes()});
                !done)
                return done;
            if (!launch.is_alone)
                sums.add(launch.q_row, launch.q_count, partial_o.data(), partial_lse.data());
        }
    }
    const auto sinks = distributed::Sinks::find(plan, tensors.q, read.of_sinks(),
                                                {workspace->data(), workspace->bytes()});
    if (!sinks) return sinks.error();
    for (const RowRange& rows : plan.merged_rows)
        sums.finish(rows, sinks->values(), rows_of(tensors.o, rows.begin, rows.count()),
                    rows_of(tensors.lse, rows.begin, rows.count()));
    return {};
}

// f32 sums of a gradient, zero at first.
class Sums {
  public:
    explicit Sums(std::vector<std::int64_t> shape)
        : view_(TensorView::contiguous(nullptr, DType::f32, shape)),
          values_(static_cast<std::size_t>(view_.elements())) {
        view_.data = values_.data();
    }
    const TensorView& view() const { return view_; }
    std::span<float> values() { return values_; }

  private:
    TensorView view_;
    std::vector<float> values_;
};

Result<void> backward_by_keys(const DistributedPlanState& plan, const BackwardTensors& tensors,
                              std::span<const NamedTensor> buffers,
                              std::span<const NamedTensor> sum_views) {
    const Kernel& kernel = plan.kernel->kernel;
    const std::int64_t b = plan.sizes.batch;
    const std::int64_t d = kernel.options().head_dim, dv = kernel.options().head_dim_v;
    auto workspace = workspace_of(plan);
    if (!workspace) return workspace.error();
    Sums dq({b, plan.sizes.heads, plan.q_rows, d}), dk({b, plan.sizes.kv_heads, plan.k_rows, d}),
        d_v({b, plan.sizes.kv_heads, plan.k_rows, dv});
    const Workspace room{workspace->data(), workspace->bytes()};
    const LaunchBuffers read(plan, buffers, false), learnt(plan, sum_views, true);
    auto sinks = distributed::Sinks::find(plan, tensors.q, read.of_sinks(), room);
    if (!sinks) return sinks.error();
    if (auto done = sinks->learn(plan, tensors, read.of_sinks(), learnt.of_sinks(), room); !done)
        return done;
    const auto rows = sinks->with_sinks(tensors.lse, tensors.d_lse);

    KeyExchange keys(plan, key_tensors(tensors.k, tensors.v, read));
    GradientExchange homeward(plan, key_tensors(dk.view(), d_v.view(), learnt));
    if (auto started = keys.start(0); !started) return started;
    for (std::size_t step = 0; step < plan.steps.size(); ++step) {
        const auto blocks = keys.finish(step);
        if (!blocks) return blocks.error();
        if (step + 1 < plan.steps.size())
            if (auto started = keys.start(step + 1); !started) return started;
        const std::vector<KeyTensors> block_sums = homeward.begin(step);
        for (const Launch& launch : plan.steps[step].launches) {
            const Block& block = plan.steps[step].blocks[launch.block];
            const KeyTensors seen = keys.rows((*blocks)[launch.block], launch);
            const KeyTensors to = homeward.rows(block_sums[launch.block], launch);
            const auto of_queries = [&](const TensorView& tensor) {
                return rows_of(tensor, launch.q_row, launch.q_count);
            };
            const BackwardTensors piece{.q = of_queries(tensors.q),
                                        .k = seen[0],
                                        .v = seen[1],
                                        .o = of_queries(tensors.o),
                                        .lse = of_queries(rows.lse),
                                        .d_out = of_queries(tensors.d_out),
                                        .d_lse = of_queries(rows.d_lse),
                                        .dq = of_queries(dq.view()),
                                        .dk = to[0],
                                        .dv = to[1]};
            if (auto done =
                    kernel.backward(launch.plan, piece, read.of(block, (*blocks)[launch.block]),
                                    learnt.of(block, block_sums[launch.block]), room);
                !done)
                return done;
        }
        if (auto started = homeward.start(step, block_sums); !started) return started;
    }
    if (auto done = homeward.finish(); !done) return done;
    if (tensors.dq) distributed::round_to(dq.values().data(), tensors.dq);
    if (tensors.dk) distributed::round_to(dk.values().data(), tensors.dk);
    if (tensors.dv) distributed::round_to(d_v.values().data(), tensors.dv);
    return {};
}

Result<void> run_backward(const DistributedPlanState& plan, const BackwardTensors& tensors,
                          std::span<const NamedTensor> buffers, const GradientViews& gradients) {
    const ir::Program& program = plan.kernel->kernel.state().mod.program;
    std::vector<Sums> buffer_sums;
    buffer_sums.reserve(program.buffers.size());
    std::vector<NamedTensor> sum_views;
    for (std::size_t i = 0; i < program.buffers.size(); ++i) {
        if (!program.buffers[i].grad) continue;
        const auto shape = runtime::shape_of(gradients[i]);
        buffer_sums.emplace_back(std::vector<std::int64_t>(shape.begin(), shape.end()));
        sum_views.push_back({program.buffers[i].name, buffer_sums.back().view()});
    }
    const auto done = plan.ulysses
                          ? distributed::backward_ulysses(plan, tensors, buffers, sum_views)
                          : backward_by_keys(plan, tensors, buffers, sum_views);
    if (!done) return done;

    const bool is_average = plan.reduction == GradientReduction::average;
    const float factor = is_average ? 1.0f / static_cast<float>(plan.communicator->ranks()) : 1.0f;
    std::size_t next = 0;
    for (std::size_t i = 0; i < program.buffers.size(); ++i) {
        if (!program.buffers[i].grad) continue;
        Sums& sums = buffer_sums[next++];
        // Sharded ones are whole already: each row is one rank's.
        const bool is_sharded =
            std::ranges::find(plan.sharded, i, &Sharded::buffer) != plan.sharded.end();
        if (is_sharded && is_average)
            for (float& value : sums.values())
                value *= factor;
        if (!is_sharded && plan.reduction != GradientReduction::none)
            if (auto reduced = distributed::all_reduce(*plan.communicator, sums.values(), factor);
                !reduced)
                return reduced;
        distributed::round_to(sums.values().data(), gradients[i]);
    }
    return {};
}

} // namespace

Result<void> DistributedKernel::forward(const DistributedPlan& plan, const ForwardTensors& tensors,
                                        std::span<const NamedTensor> buffers) const {
    return guarded([&]() -> Result<void> {
        if (auto checked = check_plan(state_.get(), plan.state_.get()); !checked) return checked;
        const DistributedPlanState& state = *plan.state_;
        const distributed::AgreedPart parts[] = {{"a call", "forward"}};
        const auto all = completed(state, buffers, false);
        if (auto agreed =
                distributed::agree(*state.communicator, check_forward(state, tensors, all), parts);
            !agreed)
            return agreed;
        return run_forward(state, tensors, all);
    });
}

Result<void> DistributedKernel::backward(const DistributedPlan& plan,
                                         const BackwardTensors& tensors,
                                         std::span<const NamedTensor> buffers,
                                         std::span<const NamedTensor> buffer_gradients) const {
    return guarded([&]() -> Result<void> {
        if (auto checked = check_plan(state_.get(), plan.state_.get()); !checked) return checked;
        const DistributedPlanState& state = *plan.state_;
        GradientViews gradients{};
        const distributed::AgreedPart parts[] = {{"a call", "backward"}};
        const auto all = completed(state, buffers, false);
        const auto own = check_backward(state, tensors, all,
                                        completed(state, buffer_gradients, true), gradients);
        if (auto agreed = distributed::agree(*state.communicator, own, parts); !agreed)
            return agreed;
        return run_backward(state, tensors, all, gradients);
    });
}

} // namespace flexc
