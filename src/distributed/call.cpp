// Forward and backward of one rank: keys of the next step travel while those of this one are
// computed with, and their gradients go home a step later.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "distributed/agreement.h"
#include "distributed/collectives.h"
#include "distributed/partial_sums.h"
#include "distributed/rows.h"
#include "distributed/sinks.h"
#include "distributed/state.h"
#include "runtime/buffers.h"
#include "support/guarded.h"
#include "support/text.h"

namespace flexc {

namespace {

using detail::DistributedPlanState;
using distributed::Block;
using distributed::Launch;
using distributed::rows_of;
using distributed::Share;
using distributed::StepPlan;

using Bytes = std::shared_ptr<std::byte[]>;
// Aligned for any element type.
Bytes bytes(std::size_t count) { return Bytes(new std::byte[count]); }

struct Columns {
    int k = 0, v = 0;
};

struct KeyViews {
    TensorView k, v;
};

// Keys and values, or their gradients, of runs of rows: k of the first run, v of it, and so on.
class Message {
  public:
    Message(const DistributedPlanState& plan, DType dtype)
        : batch_(plan.sizes.batch), heads_(plan.sizes.kv_heads), dtype_(dtype),
          columns_{plan.kernel->kernel.options().head_dim,
                   plan.kernel->kernel.options().head_dim_v} {}

    std::size_t bytes_of(std::int64_t rows) const {
        return static_cast<std::size_t>(batch_ * heads_ * rows * (columns_.k + columns_.v)) *
               size_of(dtype_);
    }
    // Of a run of `count` rows that begins after `rows` others.
    KeyViews views(std::byte* data, std::int64_t rows, std::int64_t count) const {
        std::byte* const k = data + bytes_of(rows);
        std::byte* const v =
            k + static_cast<std::size_t>(batch_ * heads_ * count * columns_.k) * size_of(dtype_);
        return {TensorView::contiguous(k, dtype_, {batch_, heads_, count, columns_.k}),
                TensorView::contiguous(v, dtype_, {batch_, heads_, count, columns_.v})};
    }

  private:
    std::int64_t batch_, heads_;
    DType dtype_;
    Columns columns_;
};

std::int64_t count_rows(const Share& share) {
    std::int64_t rows = 0;
    for (const RowRange& run : share.runs)
        rows += run.count();
    return rows;
}

// Where a run of this rank's own keys begins in its tensors.
std::int64_t local_row(const DistributedPlanState& plan, std::int64_t position) {
    std::int64_t row = 0;
    for (const RowRange& range : plan.sizes.keys.ranges(plan.communicator->rank())) {
        if (position >= range.begin && position < range.end) return row + position - range.begin;
        row += range.count();
    }
    return row;
}

KeyViews rows_of(const KeyViews& keys, std::int64_t begin, std::int64_t count) {
    return {rows_of(keys.k, begin, count), rows_of(keys.v, begin, count)};
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
    KeyExchange(const DistributedPlanState& plan, KeyViews own)
        : plan_(plan), own_(own), message_(plan, plan.kernel->kernel.options().dtype) {}

    Result<void> start(std::size_t step) {
        next_ = {};
        auto memory = std::make_shared<std::vector<Bytes>>();
        std::vector<Communicator::Message> sends, receives;
        for (const Share& share : plan_.schedule.steps[step].departures) {
            const std::size_t size = message_.bytes_of(count_rows(share));
            std::byte* const data = memory->emplace_back(bytes(size)).get();
            std::int64_t row = 0;
            for (const RowRange& run : share.runs) {
                const KeyViews to = message_.views(data, row, run.count());
                const KeyViews from = rows_of(own_, local_row(plan_, run.begin), run.count());
                distributed::pack(from.k, static_cast<std::byte*>(to.k.data));
                distributed::pack(from.v, static_cast<std::byte*>(to.v.data));
                row += run.count();
            }
            sends.push_back({share.peer, data, size});
        }
        for (const Share& share : plan_.schedule.steps[step].arrivals) {
            std::byte* data = nullptr;
            if (share.peer != plan_.communicator->rank()) {
                const std::size_t size = message_.bytes_of(count_rows(share));
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
    Result<std::vector<KeyViews>> finish(std::size_t step) {
        if (next_.ticket)
            if (auto done = plan_.communicator->wait(*next_.ticket); !done) return done.error();
        here_ = std::move(next_);
        std::vector<KeyViews> views;
        for (const Block& block : plan_.steps[step].blocks)
            views.push_back(block_view(block, step));
        return views;
    }

  private:
    KeyViews part_view(const Block::Part& part, std::size_t step) const {
        const auto& arrivals = plan_.schedule.steps[step].arrivals;
        const auto from = static_cast<std::size_t>(
            std::ranges::find(arrivals, part.peer, &Share::peer) - arrivals.begin());
        if (here_.received[from] == nullptr)
            return rows_of(own_, local_row(plan_, part.run.begin), part.run.count());
        return message_.views(here_.received[from], part.offset, part.run.count());
    }

    KeyViews block_view(const Block& block, std::size_t step) {
        if (block.parts.size() == 1) return part_view(block.parts[0], step);
        const std::int64_t rows = block.keys.count();
        std::byte* const data = here_.memory.emplace_back(bytes(message_.bytes_of(rows))).get();
        const KeyViews whole = message_.views(data, 0, rows);
        for (const Block::Part& part : block.parts) {
            const KeyViews from = part_view(part, step);
            const KeyViews to = rows_of(whole, part.run.begin - block.keys.begin, part.run.count());
            copy(from.k, to.k);
            copy(from.v, to.v);
        }
        return whole;
    }

    // Between tensors of one shape.
    void copy(const TensorView& from, const TensorView& to) {
        packed_.resize(distributed::bytes_of(from));
        distributed::pack(from, packed_.data());
        distributed::unpack(packed_.data(), to);
    }

    const DistributedPlanState& plan_;
    KeyViews own_;
    Message message_;
    OnTheWay next_, here_;
    std::vector<std::byte> packed_;
};

// Gradients of keys and values, f32: of each step's blocks, on their way to whose keys they are.
class GradientExchange {
  public:
    // own: this rank's sums, without gaps.
    GradientExchange(const DistributedPlanState& plan, KeyViews own)
        : plan_(plan), own_(own), message_(plan, DType::f32) {}

    // Where a step's launches add: zeros, or the rank's own sums.
    std::vector<KeyViews> begin(std::size_t step) {
        blocks_.clear();
        std::vector<KeyViews> views;
        for (const Block& block : plan_.steps[step].blocks) {
            if (block.local_row >= 0) {
                views.push_back(rows_of(own_, block.local_row, block.keys.count()));
                continue;
            }
            const std::size_t size = message_.bytes_of(block.keys.count());
            std::byte* const data = blocks_.emplace_back(bytes(size)).get();
            std::fill_n(data, size, std::byte{0});
            views.push_back(message_.views(data, 0, block.keys.count()));
        }
        return views;
    }

    // What launches added to the blocks goes home, and what others added comes.
    Result<void> start(std::size_t step, std::span<const KeyViews> blocks) {
        if (auto done = finish(); !done) return done;
        auto memory = std::make_shared<std::vector<Bytes>>();
        std::vector<Communicator::Message> sends, receives;
        const distributed::Step& travel = plan_.schedule.steps[step];
        for (const Share& share : travel.arrivals) {
            const bool is_own = share.peer == plan_.communicator->rank();
            const std::size_t size = message_.bytes_of(count_rows(share));
            std::byte* const data = is_own ? nullptr : memory->emplace_back(bytes(size)).get();
            for (std::size_t i = 0; i < blocks.size(); ++i)
                for (const Block::Part& part : plan_.steps[step].blocks[i].parts)
                    if (part.peer == share.peer)
                        take(plan_.steps[step].blocks[i], blocks[i], part, data);
            if (!is_own) sends.push_back({share.peer, data, size});
        }
        for (const Share& share : travel.departures) {
            const std::size_t size = message_.bytes_of(count_rows(share));
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
            std::int64_t row = 0;
            for (const RowRange& run : plan_.schedule.steps[step_].departures[i].runs) {
                const KeyViews from = message_.views(next_.received[i], row, run.count());
                const KeyViews to = rows_of(own_, local_row(plan_, run.begin), run.count());
                distributed::add(static_cast<const float*>(from.k.data), to.k);
                distributed::add(static_cast<const float*>(from.v.data), to.v);
                row += run.count();
            }
        }
        next_ = {};
        return {};
    }

  private:
    void take(const Block& block, const KeyViews& sums, const Block::Part& part, std::byte* data) {
        if (block.local_row >= 0) return; // they are there already
        const KeyViews from = rows_of(sums, part.run.begin - block.keys.begin, part.run.count());
        if (data != nullptr) {
            const KeyViews to = message_.views(data, part.offset, part.run.count());
            distributed::pack(from.k, static_cast<std::byte*>(to.k.data));
            distributed::pack(from.v, static_cast<std::byte*>(to.v.data));
            return;
        }
        const KeyViews to = rows_of(own_, local_row(plan_, part.run.begin), part.run.count());
        for (const auto& [more, sum] : {std::pair{&from.k, &to.k}, std::pair{&from.v, &to.v}}) {
            packed_.resize(static_cast<std::size_t>(more->elements()));
            distributed::pack(*more, reinterpret_cast<std::byte*>(packed_.data()));
            distributed::add(packed_.data(), *sum);
        }
    }

    const DistributedPlanState& plan_;
    KeyViews own_;
    Message message_;
    std::vector<Bytes> blocks_;
    OnTheWay next_;
    std::size_t step_ = 0;
    std::vector<float> packed_;
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

Result<void> run_forward(const DistributedPlanState& plan, const ForwardTensors& tensors,
                         std::span<const NamedTensor> buffers) {
    const Kernel& kernel = plan.kernel->kernel;
    const std::int64_t heads = plan.sizes.batch * plan.sizes.heads;
    const std::int64_t columns = kernel.options().head_dim_v;
    auto workspace = workspace_of(plan);
    if (!workspace) return workspace.error();
    const bool has_merged = !plan.merged_rows.empty();
    distributed::PartialSums sums(heads, has_merged ? plan.q_rows : 0, columns);
    const auto room = static_cast<std::size_t>(has_merged ? heads * plan.most_queries : 0);
    std::vector<float> partial_o(room * static_cast<std::size_t>(columns)), partial_lse(room);

    KeyExchange keys(plan, {tensors.k, tensors.v});
    if (auto started = keys.start(0); !started) return started;
    for (std::size_t step = 0; step < plan.steps.size(); ++step) {
        const auto blocks = keys.finish(step);
        if (!blocks) return blocks.error();
        if (step + 1 < plan.steps.size())
            if (auto started = keys.start(step + 1); !started) return started;
        for (const Launch& launch : plan.steps[step].launches) {
            const KeyViews seen = rows_of((*blocks)[launch.block], launch.k_row, launch.k_count);
            ForwardTensors piece{
                .q = rows_of(tensors.q, launch.q_row, launch.q_count), .k = seen.k, .v = seen.v};
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
            if (auto done = kernel.forward(launch.plan, piece, buffers,
                                           {workspace->data(), workspace->bytes()});
                !done)
                return done;
            if (!launch.is_alone)
                sums.add(launch.q_row, launch.q_count, partial_o.data(), partial_lse.data());
        }
    }
    const auto sinks =
        distributed::Sinks::find(plan, tensors.q, buffers, {workspace->data(), workspace->bytes()});
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

Result<void> run_backward(const DistributedPlanState& plan, const BackwardTensors& tensors,
                          std::span<const NamedTensor> buffers, const GradientViews& gradients) {
    const Kernel& kernel = plan.kernel->kernel;
    const ir::Program& program = kernel.state().mod.program;
    const std::int64_t b = plan.sizes.batch;
    const std::int64_t d = kernel.options().head_dim, dv = kernel.options().head_dim_v;
    auto workspace = workspace_of(plan);
    if (!workspace) return workspace.error();
    Sums dq({b, plan.sizes.heads, plan.q_rows, d}), dk({b, plan.sizes.kv_heads, plan.k_rows, d}),
        d_v({b, plan.sizes.kv_heads, plan.k_rows, dv});
    std::vector<Sums> buffer_sums;
    buffer_sums.reserve(program.buffers.size());
    std::vector<NamedTensor> sum_views;
    for (std::size_t i = 0; i < program.buffers.size(); ++i) {
        if (!program.buffers[i].grad) continue;
        const auto shape = runtime::shape_of(gradients[i]);
        buffer_sums.emplace_back(std::vector<std::int64_t>(shape.begin(), shape.end()));
        sum_views.push_back({program.buffers[i].name, buffer_sums.back().view()});
    }

    const Workspace room{workspace->data(), workspace->bytes()};
    auto sinks = distributed::Sinks::find(plan, tensors.q, buffers, room);
    if (!sinks) return sinks.error();
    if (auto learnt = sinks->learn(plan, tensors, buffers, sum_views, room); !learnt) return learnt;
    const auto rows = sinks->with_sinks(tensors.lse, tensors.d_lse);

    KeyExchange keys(plan, {tensors.k, tensors.v});
    GradientExchange homeward(plan, {dk.view(), d_v.view()});
    if (auto started = keys.start(0); !started) return started;
    for (std::size_t step = 0; step < plan.steps.size(); ++step) {
        const auto blocks = keys.finish(step);
        if (!blocks) return blocks.error();
        if (step + 1 < plan.steps.size())
            if (auto started = keys.start(step + 1); !started) return started;
        const std::vector<KeyViews> block_sums = homeward.begin(step);
        for (const Launch& launch : plan.steps[step].launches) {
            const KeyViews seen = rows_of((*blocks)[launch.block], launch.k_row, launch.k_count);
            const KeyViews to = rows_of(block_sums[launch.block], launch.k_row, launch.k_count);
            const auto of_queries = [&](const TensorView& tensor) {
                return rows_of(tensor, launch.q_row, launch.q_count);
            };
            const BackwardTensors piece{.q = of_queries(tensors.q),
                                        .k = seen.k,
                                        .v = seen.v,
                                        .o = of_queries(tensors.o),
                                        .lse = of_queries(rows.lse),
                                        .d_out = of_queries(tensors.d_out),
                                        .d_lse = of_queries(rows.d_lse),
                                        .dq = of_queries(dq.view()),
                                        .dk = to.k,
                                        .dv = to.v};
            if (auto done = kernel.backward(launch.plan, piece, buffers, sum_views, room); !done)
                return done;
        }
        if (auto started = homeward.start(step, block_sums); !started) return started;
    }
    if (auto done = homeward.finish(); !done) return done;
    if (tensors.dq) distributed::round_to(dq.values().data(), tensors.dq);
    if (tensors.dk) distributed::round_to(dk.values().data(), tensors.dk);
    if (tensors.dv) distributed::round_to(d_v.values().data(), tensors.dv);

    const bool is_average = plan.reduction == GradientReduction::average;
    const float factor = is_average ? 1.0f / static_cast<float>(plan.communicator->ranks()) : 1.0f;
    std::size_t next = 0;
    for (std::size_t i = 0; i < program.buffers.size(); ++i) {
        if (!program.buffers[i].grad) continue;
        Sums& sums = buffer_sums[next++];
        if (plan.reduction != GradientReduction::none)
            if (auto done = distributed::all_reduce(*plan.communicator, sums.values(), factor);
                !done)
                return done;
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
        if (auto agreed = distributed::agree(*state.communicator,
                                             check_forward(state, tensors, buffers), parts);
            !agreed)
            return agreed;
        return run_forward(state, tensors, buffers);
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
        const auto own = check_backward(state, tensors, buffers, buffer_gradients, gradients);
        if (auto agreed = distributed::agree(*state.communicator, own, parts); !agreed)
            return agreed;
        return run_backward(state, tensors, buffers, gradients);
    });
}

} // namespace flexc
