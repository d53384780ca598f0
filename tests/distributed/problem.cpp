#include "distributed/problem.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <random>
#include <thread>

#include "api/tensor.h"
#include "distributed/on_device.h"
#include "front/compile_text.h"
#include "support/guarded.h"
#include "support/text.h"

namespace flexc::test {

namespace {

// [B, H, S, D] with some rows of a whole one; packed, it is shown as [S, H, D].
struct RowTensor {
    RowTensor(bool packed, DType type, std::int64_t b, std::int64_t h, std::int64_t s,
              std::int64_t d)
        : is_packed(packed), dtype(type), batch(b), heads(h), rows(s), columns(d),
          bytes(static_cast<std::size_t>(b * h * s * d) * size_of(type), std::byte{0xff}) {}

    TensorView view(bool has_columns = true) {
        // Some ranks hold nothing, and say so.
        void* data = rows == 0 ? nullptr : bytes.data();
        if (is_packed) {
            TensorView view = TensorView::contiguous(data, dtype, {rows, heads, columns});
            view.strides = {columns, rows * columns, 1};
            view.rank = has_columns ? 3 : 2;
            return view;
        }
        if (!has_columns) return TensorView::contiguous(data, dtype, {batch, heads, rows});
        return TensorView::contiguous(data, dtype, {batch, heads, rows, columns});
    }

    void take(const std::vector<double>& whole, std::int64_t whole_rows,
              std::span<const RowRange> ranges) {
        each(whole_rows, ranges, [&](std::size_t there, std::size_t here) {
            store(dtype, &bytes[here * size_of(dtype)], whole[there]);
        });
    }
    void give(std::vector<double>& whole, std::int64_t whole_rows,
              std::span<const RowRange> ranges) const {
        each(whole_rows, ranges, [&](std::size_t there, std::size_t here) {
            whole[there] = load(dtype, &bytes[here * size_of(dtype)]);
        });
    }

    bool is_packed;
    DType dtype;
    std::int64_t batch, heads, rows, columns;
    std::vector<std::byte> bytes;

  private:
    template <typename Visit>
    void each(std::int64_t whole_rows, std::span<const RowRange> ranges, Visit visit) const {
        for (std::int64_t head = 0; head < batch * heads; ++head) {
            std::int64_t row = 0;
            for (const RowRange& range : ranges)
                for (std::int64_t at = range.begin; at < range.end; ++at, ++row)
                    for (std::int64_t d = 0; d < columns; ++d)
                        visit(static_cast<std::size_t>((head * whole_rows + at) * columns + d),
                              static_cast<std::size_t>((head * rows + row) * columns + d));
        }
    }
};

// A buffer of which a rank has some rows along one dim.
struct SlicedBuffer {
    SlicedBuffer(std::vector<std::int64_t> whole, std::size_t along, std::span<const RowRange> of)
        : shape(whole), whole_shape(std::move(whole)), dim(along), ranges(of) {
        shape[dim] = 0;
        for (const RowRange& range : ranges)
            shape[dim] += range.count();
    }

    TensorView take(const std::vector<std::byte>& whole, DType dtype) {
        std::size_t count = 1;
        for (const std::int64_t extent : shape)
            count *= static_cast<std::size_t>(extent);
        bytes.resize(count * size_of(dtype));
        each([&](std::size_t there, std::size_t here) {
            std::copy_n(&whole[there * size_of(dtype)], size_of(dtype),
                        &bytes[here * size_of(dtype)]);
        });
        return TensorView::read_only(count == 0 ? nullptr : bytes.data(), dtype, shape);
    }

    // Calls visit(element of the whole, element of the slice).
    template <typename Visit> void each(Visit visit) const {
        std::int64_t outer = 1, inner = 1;
        for (std::size_t at = 0; at < shape.size(); ++at)
            (at < dim ? outer : inner) *= at == dim ? 1 : shape[at];
        for (std::int64_t i = 0; i < outer; ++i) {
            std::int64_t row = 0;
            for (const RowRange& range : ranges)
                for (std::int64_t at = range.begin; at < range.end; ++at, ++row)
                    for (std::int64_t j = 0; j < inner; ++j)
                        visit(static_cast<std::size_t>((i * whole_shape[dim] + at) * inner + j),
                              static_cast<std::size_t>((i * shape[dim] + row) * inner + j));
        }
    }

    std::vector<std::int64_t> shape, whole_shape;
    std::size_t dim;
    std::span<const RowRange> ranges;
    std::vector<std::byte> bytes;
};

// terms: sums of the absolute values of what is summed, a tenth of whose rounding a sum inherits
// where it cancels.
double relative_error(const std::vector<double>& got, const std::vector<double>& want,
                      const std::vector<double>& terms = {}) {
    double error = 0, norm = 0;
    for (const double term : terms)
        norm += 0.01 * term * term;
    for (std::size_t i = 0; i < want.size(); ++i) {
        if (std::isnan(got[i])) return INFINITY;
        error += (got[i] - want[i]) * (got[i] - want[i]);
        norm += want[i] * want[i];
    }
    if (norm / static_cast<double>(want.size()) < 1e-12)
        return std::sqrt(error / static_cast<double>(want.size()));
    return std::sqrt(error / norm);
}

// [heads, rows, columns] with some rows of a whole one of that form.
std::vector<double> rows_of(const std::vector<double>& whole, std::int64_t heads,
                            std::int64_t whole_rows, const RowRange& rows) {
    const std::int64_t columns = static_cast<std::int64_t>(whole.size()) / (heads * whole_rows);
    std::vector<double> part;
    for (std::int64_t head = 0; head < heads; ++head) {
        const auto first = whole.begin() + (head * whole_rows + rows.begin) * columns;
        part.insert(part.end(), first, first + rows.count() * columns);
    }
    return part;
}
void put_rows(const std::vector<double>& part, std::vector<double>& whole, std::int64_t heads,
              std::int64_t whole_rows, const RowRange& rows) {
    const std::int64_t columns = static_cast<std::int64_t>(whole.size()) / (heads * whole_rows);
    for (std::int64_t head = 0; head < heads; ++head)
        std::copy_n(part.begin() + head * rows.count() * columns, rows.count() * columns,
                    whole.begin() + (head * whole_rows + rows.begin) * columns);
}
void add_all(std::map<std::string, std::vector<double>>& sums,
             const std::map<std::string, std::vector<double>>& more) {
    for (const auto& [name, values] : more) {
        auto& sum = sums[name];
        sum.resize(values.size());
        for (std::size_t i = 0; i < values.size(); ++i)
            sum[i] += values[i];
    }
}

// Each request by itself; rows that none uses have no answer but o = 0 and lse = -inf.
Answer ragged_oracle(const ir::Program& program, const Problem& all, const RaggedCase& ragged) {
    Answer answer;
    answer.o.resize(static_cast<std::size_t>(all.heads * all.q_len * all.head_dim_v));
    answer.lse.assign(static_cast<std::size_t>(all.heads * all.q_len), -INFINITY);
    for (auto* of_queries : {&answer.dq, &answer.dq_absolute})
        of_queries->resize(all.q.size());
    for (auto* of_keys : {&answer.dk, &answer.dk_absolute})
        of_keys->resize(all.k.size());
    answer.dv.resize(all.v.size());
    for (std::int64_t request = 0; request < ragged.requests(); ++request) {
        const auto i = static_cast<std::size_t>(request);
        const auto rows_used = [&](const std::vector<std::int32_t>& cu_seqlens,
                                   const std::vector<std::int32_t>& used) -> RowRange {
            return {cu_seqlens[i], used.empty() ? cu_seqlens[i + 1] : cu_seqlens[i] + used[i]};
        };
        const RowRange queries = rows_used(ragged.cu_seqlens_q, ragged.seqused_q),
                       keys = rows_used(ragged.cu_seqlens_k, ragged.seqused_k);
        Problem one = all;
        one.q_len = queries.count();
        one.kv_len = keys.count();
        one.request = request;
        one.q_row = queries.begin;
        one.kv_row = keys.begin;
        if (ragged.query_start == QueryStart::end) one.q_offset = one.kv_len - one.q_len;
        one.q = rows_of(all.q, all.heads, all.q_len, queries);
        one.d_out = rows_of(all.d_out, all.heads, all.q_len, queries);
        if (!all.d_lse.empty()) one.d_lse = rows_of(all.d_lse, all.heads, all.q_len, queries);
        one.k = rows_of(all.k, all.kv_heads, all.kv_len, keys);
        one.v = rows_of(all.v, all.kv_heads, all.kv_len, keys);
        const Answer own = attention_oracle(program, one);
        for (const auto& [part, whole] :
             {std::pair{&own.o, &answer.o}, std::pair{&own.lse, &answer.lse},
              std::pair{&own.dq, &answer.dq}, std::pair{&own.dq_absolute, &answer.dq_absolute}})
            put_rows(*part, *whole, all.heads, all.q_len, queries);
        for (const auto& [part, whole] :
             {std::pair{&own.dk, &answer.dk}, std::pair{&own.dk_absolute, &answer.dk_absolute},
              std::pair{&own.dv, &answer.dv}})
            put_rows(*part, *whole, all.kv_heads, all.kv_len, keys);
        add_all(answer.d_buffers, own.d_buffers);
        add_all(answer.d_buffers_absolute, own.d_buffers_absolute);
    }
    return answer;
}

} // namespace

DistributedProblem::DistributedProblem(DistributedCase one, std::uint32_t seed)
    : case_(std::move(one)), seed_(seed) {
    const Layout layout = case_.ragged ? Layout::ragged : Layout::dense;
    const front::Output front = front::compile_text(
        {.source = dsl::Source("case", case_.text), .query_layout = layout, .key_layout = layout});
    REQUIRE_MESSAGE(front.program.has_value(), front.rendered);
    const ir::Program& program = *front.program;
    CompileOptions options;
    options.dtype = case_.dtype;
    options.head_dim = case_.head_dim;
    options.head_dim_v = case_.head_dim_v;
    options.device = case_.device;
    options.backward = case_.backward;
    options.deterministic = case_.deterministic;
    options.gradient_type = case_.gradient_type;
    options.query_layout = options.key_layout = layout;
    options.cache.disk = case_.device.kind == Device::Kind::cuda;
    auto kernel = compile(case_.text, options);
    REQUIRE_MESSAGE(kernel.has_value(), kernel.error().message);
    kernel_ = std::make_shared<Kernel>(*kernel);
    options.sharded = case_.sharded;
    auto distributed = compile_distributed(case_.text, options);
    REQUIRE_MESSAGE(distributed.has_value(), distributed.error().message);
    distributed_ = *distributed;

    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    const auto draw = [&](std::int64_t count, DType dtype, double spread) {
        std::vector<double> values(static_cast<std::size_t>(count));
        for (double& value : values)
            value = rounded(dtype, normal(random) * spread);
        return values;
    };
    Problem& p = problem_;
    p = {.batch = case_.batch,
         .heads = case_.heads,
         .kv_heads = case_.kv_heads,
         .q_len = case_.q_len,
         .kv_len = case_.kv_len,
         .head_dim = case_.head_dim,
         .head_dim_v = case_.head_dim_v,
         .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(case_.head_dim)))};
    const std::int64_t q_rows = p.batch * p.heads * p.q_len;
    const std::int64_t kv_rows = p.batch * p.kv_heads * p.kv_len;
    p.q = draw(q_rows * p.head_dim, case_.dtype, 1);
    p.k = draw(kv_rows * p.head_dim, case_.dtype, 1);
    p.v = draw(kv_rows * p.head_dim_v, case_.dtype, 1);
    p.d_out = draw(q_rows * p.head_dim_v, case_.dtype, 1);
    if (case_.with_d_lse) p.d_lse = draw(q_rows, DType::f32, 1);
    const Sizes one_rank = sizes();
    p.sizes = {one_rank.batch,  p.heads,    p.kv_heads,  one_rank.q_len,
               one_rank.kv_len, p.head_dim, p.head_dim_v};
    for (std::size_t i = ir::kStandardSizes; i < program.sizes.size(); ++i)
        p.sizes.push_back(case_.dims.at(program.sizes[i]));
    for (const ir::Param& param : program.params)
        p.params.push_back({.boolean = param.default_value != 0,
                            .integer = static_cast<std::int64_t>(param.default_value),
                            .real = static_cast<float>(param.default_value)});
    for (const ir::Buffer& buffer : program.buffers) {
        Buffer& mine = buffers_.emplace_back(
            Buffer{.name = buffer.name, .dtype = buffer.dtype, .grad = buffer.grad});
        std::int64_t count = 1;
        for (const ShardedBuffer& sharded : case_.sharded)
            for (std::size_t dim = 0; sharded.buffer == buffer.name && dim < buffer.dims.size();
                 ++dim) {
                mine.is_query = sharded.dim == "Q_LEN";
                if (buffer.dims[dim].size == (mine.is_query ? ir::kQLen : ir::kKvLen))
                    mine.sharded_dim = static_cast<int>(dim);
            }
        for (const ir::Dim& dim : buffer.dims) {
            mine.shape.push_back(dim.is_constant() ? dim.constant : p.sizes[dim.size]);
            count *= mine.shape.back();
        }
        ir::BufferData data{.extents = mine.shape};
        std::vector<double> values;
        if (is_float(buffer.dtype)) {
            values = data.reals = draw(count, buffer.dtype, 0.5);
        } else {
            const auto rule = case_.integers.find(buffer.name);
            for (std::int64_t i = 0; i < count; ++i) {
                std::int64_t value = rule == case_.integers.end() ? i % 5 : rule->second(i);
                if (buffer.dtype == DType::boolean) value = value != 0;
                data.integers.push_back(value);
                values.push_back(static_cast<double>(value));
            }
        }
        p.buffers.push_back(std::move(data));
        mine.bytes.resize(static_cast<std::size_t>(count) * size_of(mine.dtype));
        for (std::size_t i = 0; i < values.size(); ++i)
            store(mine.dtype, &mine.bytes[i * size_of(mine.dtype)], values[i]);
    }
    for (const Buffer& buffer : buffers_)
        buffer_views_.push_back(
            {buffer.name, TensorView::read_only(buffer.bytes.data(), buffer.dtype, buffer.shape)});
    answer_ = case_.ragged ? ragged_oracle(program, problem_, *case_.ragged)
                           : attention_oracle(program, problem_);
}

Sizes DistributedProblem::sizes() const {
    if (!case_.ragged) return {case_.batch, case_.heads, case_.kv_heads, case_.q_len, case_.kv_len};
    const auto longest = [](const std::vector<std::int32_t>& cu_seqlens) {
        std::int32_t most = 1;
        for (std::size_t i = 1; i < cu_seqlens.size(); ++i)
            most = std::max(most, cu_seqlens[i] - cu_seqlens[i - 1]);
        return most;
    };
    return {case_.ragged->requests(), case_.heads, case_.kv_heads,
            longest(case_.ragged->cu_seqlens_q), longest(case_.ragged->cu_seqlens_k)};
}

DistributedSizes DistributedProblem::sizes(const Shards& queries, const Shards& keys) const {
    return {.batch = case_.ragged ? case_.ragged->requests() : case_.batch,
            .heads = case_.heads,
            .kv_heads = case_.kv_heads,
            .queries = queries,
            .keys = keys};
}

namespace {

struct Gradients {
    std::vector<std::vector<std::byte>> memory;
    std::vector<NamedTensor> views;
};

// Those of a case that have rows of queries or of keys, as many as one rank has.
struct RankTensors {
    RankTensors(const DistributedCase& of, DType o_type, std::int64_t q_rows, std::int64_t k_rows)
        : c(of), q(of_queries(c.dtype, q_rows, c.head_dim)),
          k(of_keys(c.dtype, k_rows, c.head_dim)), v(of_keys(c.dtype, k_rows, c.head_dim_v)),
          o(of_queries(o_type, q_rows, c.head_dim_v)), lse(of_queries(DType::f32, q_rows, 1)),
          d_out(of_queries(c.dtype, q_rows, c.head_dim_v)),
          d_lse(of_queries(DType::f32, q_rows, 1)), dq(of_queries(DType::f32, q_rows, c.head_dim)),
          dk(of_keys(DType::f32, k_rows, c.head_dim)),
          dv(of_keys(DType::f32, k_rows, c.head_dim_v)) {}

    RowTensor of_queries(DType type, std::int64_t rows, std::int64_t columns) const {
        return {c.ragged.has_value(), type, c.batch, c.heads, rows, columns};
    }
    RowTensor of_keys(DType type, std::int64_t rows, std::int64_t columns) const {
        return {c.ragged.has_value(), type, c.batch, c.kv_heads, rows, columns};
    }

    void take(const Problem& whole, std::span<const RowRange> queries,
              std::span<const RowRange> keys) {
        q.take(whole.q, c.q_len, queries);
        k.take(whole.k, c.kv_len, keys);
        v.take(whole.v, c.kv_len, keys);
        d_out.take(whole.d_out, c.q_len, queries);
        if (c.with_d_lse) d_lse.take(whole.d_lse, c.q_len, queries);
    }
    ForwardTensors forward(OnDevice& device) {
        return {device.of(q.view()), device.of(k.view()), device.of(v.view()), device.of(o.view()),
                device.of(lse.view(false))};
    }
    BackwardTensors backward(OnDevice& device, const ForwardTensors& forward) {
        return {.q = forward.q,
                .k = forward.k,
                .v = forward.v,
                .o = forward.o,
                .lse = forward.lse,
                .d_out = device.of(d_out.view()),
                .d_lse = c.with_d_lse ? device.of(d_lse.view(false)) : TensorView{},
                .dq = device.of(dq.view()),
                .dk = device.of(dk.view()),
                .dv = device.of(dv.view())};
    }
    void give(Outcome& outcome, std::span<const RowRange> queries,
              std::span<const RowRange> keys) const {
        o.give(outcome.o, c.q_len, queries);
        lse.give(outcome.lse, c.q_len, queries);
        if (!c.backward) return;
        dq.give(outcome.dq, c.q_len, queries);
        dk.give(outcome.dk, c.kv_len, keys);
        dv.give(outcome.dv, c.kv_len, keys);
    }

    const DistributedCase& c;
    RowTensor q, k, v, o, lse, d_out, d_lse, dq, dk, dv;
};

} // namespace

Outcome DistributedProblem::on_one_rank(DType o_type) const {
    const DistributedCase& c = case_;
    const RowRange all_queries[] = {{0, c.q_len}}, all_keys[] = {{0, c.kv_len}};
    RankTensors tensors(c, o_type, c.q_len, c.kv_len);
    tensors.take(problem_, all_queries, all_keys);
    Outcome outcome;
    OnDevice device(c.device);
    const auto buffers = device.of(buffer_views_);
    PlanOptions plan_options;
    if (c.ragged) plan_options.lengths = c.ragged->lengths();
    const auto plan = kernel_->plan(sizes(), buffers, device.stream(), plan_options);
    REQUIRE_MESSAGE(plan.has_value(), plan.error().message);
    auto workspace = DeviceMemory::allocate(c.device, plan->workspace_bytes());
    REQUIRE(workspace.has_value());
    const Workspace room{workspace->data(), workspace->bytes()};
    const ForwardTensors forward = tensors.forward(device);
    const auto went = kernel_->forward(*plan, forward, buffers, room, device.stream());
    REQUIRE_MESSAGE(went.has_value(), went.error().message);
    outcome.o.resize(answer_.o.size());
    outcome.lse.resize(answer_.lse.size());
    if (c.backward) {
        Gradients gradients;
        for (const Buffer& buffer : buffers_) {
            if (!buffer.grad) continue;
            const DType type = c.gradient_type == GradientType::f32 ? DType::f32 : buffer.dtype;
            auto& memory = gradients.memory.emplace_back(buffer.bytes.size() /
                                                         size_of(buffer.dtype) * size_of(type));
            gradients.views.push_back(
                {buffer.name, TensorView::contiguous(memory.data(), type, buffer.shape)});
        }
        const auto back = kernel_->backward(*plan, tensors.backward(device, forward), buffers,
                                            device.of(gradients.views), room, device.stream());
        REQUIRE_MESSAGE(back.has_value(), back.error().message);
        device.take_back();
        outcome.dq.resize(answer_.dq.size());
        outcome.dk.resize(answer_.dk.size());
        outcome.dv.resize(answer_.dv.size());
        for (std::size_t i = 0; i < gradients.views.size(); ++i) {
            auto& values = outcome.d_buffers[std::string(gradients.views[i].name)];
            const DType type = gradients.views[i].tensor.dtype;
            for (std::size_t at = 0; at < gradients.memory[i].size(); at += size_of(type))
                values.push_back(load(type, &gradients.memory[i][at]));
        }
    } else {
        device.take_back();
    }
    tensors.give(outcome, all_queries, all_keys);
    return outcome;
}

Outcome DistributedProblem::empty_outcome(int ranks) const {
    Outcome outcome;
    outcome.errors.resize(static_cast<std::size_t>(ranks));
    outcome.of_ranks.resize(static_cast<std::size_t>(ranks));
    outcome.o.resize(answer_.o.size());
    outcome.lse.resize(answer_.lse.size());
    outcome.dq.resize(answer_.dq.size());
    outcome.dk.resize(answer_.dk.size());
    outcome.dv.resize(answer_.dv.size());
    for (const Buffer& buffer : buffers_)
        if (buffer.sharded_dim >= 0 && buffer.grad)
            outcome.d_sharded[buffer.name].resize(answer_.d_buffers.at(buffer.name).size());
    return outcome;
}

Result<void> DistributedProblem::on_rank(const std::shared_ptr<Communicator>& communicator,
                                         const Shards& queries, const Shards& keys,
                                         const RunOptions& options, Outcome& outcome) const {
    const DistributedCase& c = case_;
    const int rank = communicator->rank();
    const auto of_queries = queries.ranges(rank), of_keys = keys.ranges(rank);
    RankTensors tensors(c, options.o_type, queries.rows(rank), keys.rows(rank));
    tensors.take(problem_, of_queries, of_keys);
    std::vector<SlicedBuffer> slices;
    std::vector<NamedTensor> buffers = buffer_views_;
    slices.reserve(buffers_.size());
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
        const Buffer& buffer = buffers_[i];
        if (buffer.sharded_dim < 0) continue;
        slices.emplace_back(buffer.shape, static_cast<std::size_t>(buffer.sharded_dim),
                            buffer.is_query ? of_queries : of_keys);
        buffers[i].tensor = slices.back().take(buffer.bytes, buffer.dtype);
    }
    OnDevice device(c.device);
    const auto buffers_there = device.of(buffers);
    const ForwardTensors forward = tensors.forward(device);
    const auto plan = distributed_.plan(sizes(queries, keys), communicator, buffers_there,
                                        {.exchange = options.exchange,
                                         .reduction = options.reduction,
                                         .cpu_threads = {.count = 1},
                                         .gathered_bytes = options.gathered_bytes,
                                         .ranks_per_node = options.ranks_per_node,
                                         .lengths = c.ragged ? c.ragged->lengths() : Lengths{}},
                                        device.stream());
    if (!plan) return plan.error();
    if (auto done = distributed_.forward(*plan, forward, buffers_there, device.stream()); !done)
        return done;
    if (!c.backward) {
        device.take_back();
        tensors.give(outcome, of_queries, of_keys);
        return {};
    }
    const auto slice_of = [&](const Buffer& buffer) {
        std::size_t at = 0;
        for (const Buffer& other : buffers_) {
            if (&other == &buffer) break;
            at += other.sharded_dim >= 0 ? 1 : 0;
        }
        return buffer.sharded_dim < 0 ? nullptr : &slices[at];
    };
    Gradients gradients;
    for (const Buffer& buffer : buffers_) {
        if (!buffer.grad) continue;
        const DType type = c.gradient_type == GradientType::f32 ? DType::f32 : buffer.dtype;
        const SlicedBuffer* slice = slice_of(buffer);
        const std::vector<std::int64_t>& shape = slice != nullptr ? slice->shape : buffer.shape;
        std::int64_t count = 1;
        for (const std::int64_t extent : shape)
            count *= extent;
        auto& memory = gradients.memory.emplace_back(
            static_cast<std::size_t>(count) * size_of(type), std::byte{0xff});
        gradients.views.push_back(
            {buffer.name,
             TensorView::contiguous(count == 0 ? nullptr : memory.data(), type, shape)});
    }
    if (auto done = distributed_.backward(*plan, tensors.backward(device, forward), buffers_there,
                                          device.of(gradients.views), device.stream());
        !done)
        return done;
    device.take_back();
    tensors.give(outcome, of_queries, of_keys);
    for (std::size_t i = 0; i < gradients.views.size(); ++i) {
        const std::string name(gradients.views[i].name);
        auto& values = outcome.of_ranks[static_cast<std::size_t>(rank)][name];
        const DType type = gradients.views[i].tensor.dtype;
        for (std::size_t at = 0; at < gradients.memory[i].size(); at += size_of(type))
            values.push_back(load(type, &gradients.memory[i][at]));
        const auto buffer = std::ranges::find(buffers_, name, &Buffer::name);
        if (const SlicedBuffer* slice = slice_of(*buffer))
            slice->each([&](std::size_t whole, std::size_t own) {
                outcome.d_sharded.at(name)[whole] = values[own];
            });
    }
    return {};
}

Outcome DistributedProblem::on_ranks(const Shards& queries, const Shards& keys,
                                     const RunOptions& options) const {
    const int ranks = queries.ranks();
    auto communicators =
        in_process_communicators(ranks, {.timeout_seconds = options.timeout_seconds});
    REQUIRE(communicators.has_value());
    Outcome outcome = empty_outcome(ranks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
        threads.emplace_back([&, rank] {
            auto communicator = std::move((*communicators)[static_cast<std::size_t>(rank)]);
            if (options.wrap) communicator = options.wrap(std::move(communicator));
            const auto done =
                guarded([&] { return on_rank(communicator, queries, keys, options, outcome); });
            if (!done) outcome.errors[static_cast<std::size_t>(rank)] = done.error().message;
        });
    for (std::thread& thread : threads)
        thread.join();
    for (const std::string& error : outcome.errors)
        if (outcome.error.empty()) outcome.error = error;
    outcome.d_buffers = outcome.of_ranks[0];
    for (const auto& [name, values] : outcome.d_sharded)
        outcome.d_buffers[name] = values;
    return outcome;
}

std::map<std::string, double> DistributedProblem::errors(const Outcome& outcome) const {
    std::map<std::string, double> errors{{"o", relative_error(outcome.o, answer_.o)}};
    if (!case_.backward) return errors;
    errors["dq"] = relative_error(outcome.dq, answer_.dq, answer_.dq_absolute);
    errors["dk"] = relative_error(outcome.dk, answer_.dk, answer_.dk_absolute);
    errors["dv"] = relative_error(outcome.dv, answer_.dv);
    for (const auto& [name, want] : answer_.d_buffers)
        errors["d." + name] =
            relative_error(outcome.d_buffers.at(name), want, answer_.d_buffers_absolute.at(name));
    return errors;
}

std::string DistributedProblem::compare_lse(const Outcome& outcome) const {
    for (std::size_t i = 0; i < answer_.lse.size(); ++i) {
        const double got = outcome.lse[i], want = answer_.lse[i];
        if (std::isinf(want) ? got != want
                             : !(std::abs(got - want) <= 1e-4 + 1e-6 * std::abs(want)))
            return formatted("lse: {} where {} is right, at {}\n", got, want, i);
    }
    return "";
}

double DistributedProblem::rounding_of_lse() const {
    double most = 4;
    for (const double lse : answer_.lse)
        if (std::isfinite(lse)) most = std::max(most, std::abs(lse));
    return std::ldexp(1.0, std::ilogb(most) - 24);
}

namespace {

// Of so many elements one error is twice another by chance once in some hundred thousand draws; of
// four it is once in ten.
constexpr std::size_t kEnoughElements = 48;
// Of so many, one is a tenth larger than another as rarely.
constexpr std::size_t kManyElements = 1600;

std::size_t elements_of(const DistributedProblem& problem, const std::string& name) {
    return name.starts_with("d.") ? problem.answer().d_buffers.at(name.substr(2)).size()
                                  : kManyElements;
}

// What is left to chance: weights are made of an lse, which f32 holds to half of its last digit:
// those of o, and in dq and dk those of P and, by o, of delta. Sums of buffers may be few and
// cancel, so that two errors are two draws.
double bound(const DistributedProblem& problem, const std::string& name, double wanted,
             double rounding_of_lse) {
    const bool is_buffer = name.starts_with("d."), has_delta = name == "dq" || name == "dk";
    return (elements_of(problem, name) < kManyElements ? 2 : 1.1) * wanted + (is_buffer   ? 4
                                                                              : has_delta ? 2
                                                                                          : 1) *
                                                                                 rounding_of_lse;
}

// What differs by more than chance leaves. With `suspects`, those that may be chance are named
// there instead.
std::string compare(const DistributedProblem& problem, const Outcome& many, const Outcome& one,
                    std::vector<std::string>* suspects) {
    if (!many.error.empty()) return many.error + "\n";
    std::string text = problem.compare_lse(many);
    const auto wanted = problem.errors(one);
    for (const auto& [name, error] : problem.errors(many)) {
        if (error <= bound(problem, name, wanted.at(name), problem.rounding_of_lse())) continue;
        if (suspects != nullptr && std::isfinite(error))
            suspects->push_back(name);
        else
            text += formatted("{}: relative error {:.2e}; on one rank {:.2e}\n", name, error,
                              wanted.at(name));
    }
    return text;
}

// Compares root mean squares over as many draws as the smallest gradient needs. A large weight of
// a single element may be most of an error, of whatever tensor: by several draws it is not.
std::string compare_draws(const DistributedProblem& problem, const Run& many, const Run& one,
                          const std::vector<std::string>& names) {
    constexpr std::size_t kLeastDraws = 3;
    std::size_t draws = kLeastDraws;
    for (const auto& [name, values] : problem.answer().d_buffers)
        draws = std::max(draws, (kEnoughElements + values.size() - 1) / values.size());
    std::map<std::string, double> squares, wanted;
    double rounding_of_lse = 0;
    for (std::size_t draw = 1; draw <= draws; ++draw) {
        const DistributedProblem again = problem.drawn_again(static_cast<std::uint32_t>(draw));
        const Outcome of_ranks = many(again);
        if (!of_ranks.error.empty()) return of_ranks.error + "\n";
        const auto errors = again.errors(of_ranks), alone = again.errors(one(again));
        const auto count = static_cast<double>(draws);
        for (const std::string& name : names) {
            squares[name] += errors.at(name) * errors.at(name) / count;
            wanted[name] += alone.at(name) * alone.at(name) / count;
        }
        rounding_of_lse = std::max(rounding_of_lse, again.rounding_of_lse());
    }
    std::string text;
    for (const std::string& name : names) {
        const double error = std::sqrt(squares[name]), of_one = std::sqrt(wanted[name]);
        if (!(error <= bound(problem, name, of_one, rounding_of_lse)))
            text += formatted("{}: relative error of {} draws {:.2e}; on one rank {:.2e}\n", name,
                              draws, error, of_one);
    }
    return text;
}

} // namespace

std::string compare(const DistributedProblem& problem, const Outcome& many, const Outcome& one) {
    return compare(problem, many, one, nullptr);
}

std::string compare_runs(const DistributedProblem& problem, const Run& many, const Run& one,
                         const std::function<bool(bool)>& anyone) {
    std::vector<std::string> suspects;
    const std::string text = compare(problem, many(problem), one(problem), &suspects);
    const bool any = anyone ? anyone(!suspects.empty()) : !suspects.empty();
    return any ? text + compare_draws(problem, many, one, suspects) : text;
}

} // namespace flexc::test
