#include "cpu/backend/request_results.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "cpu/backend/rescale.h"

namespace flexc::cpu::requests {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float lse_of(float maximum, float sum) {
    return maximum == -kInfinity ? -kInfinity
                                 : static_cast<float>(double{maximum} + std::log(double{sum}));
}

void store(const Launch& launch, const Rows& rows, const float* output, const float* lse) {
    const AttentionArguments& in = *launch.arguments;
    const int dim_v = launch.shape->head_dim_v;
    store_rows(in.o, launch.shape->dtype, in.o_flags, rows, dim_v, output, dim_v);
    if (in.lse.data != nullptr) store_rows(in.lse, DType::f32, 0, rows, 1, lse, 1);
}

void store_max_scores(const Launch& launch, const Rows& rows, const float* max_scores) {
    const TensorArgument& tensor = launch.arguments->max_scores;
    if (tensor.data != nullptr) store_rows(tensor, DType::f32, 0, rows, 1, max_scores, 1);
}

} // namespace

void finish(const TileFunctions& functions, const Launch& launch, int request, const Block& block,
            const Scratch& scratch) {
    const int dim_v = launch.shape->head_dim_v;
    const Sequence& sequence = launch.sequences->of(request);
    for (int head = 0; head < block.heads; ++head) {
        const std::int64_t first = std::int64_t{head} * block.queries;
        const bool started = block.head_started[static_cast<std::size_t>(head)];
        for (std::int64_t row = 0; row < block.queries; ++row)
            scratch.lse[row] = started
                                   ? lse_of(block.row_max[first + row], block.row_sum[first + row])
                                   : -kInfinity;
        const Rows queries = queries_of(block, sequence, request, head);
        // A sink raises the running maximum.
        store_max_scores(launch, queries, block.row_max + first);
        std::fill_n(block.row_correction + first, block.queries, 1.0f);
        if (functions.sink != nullptr) {
            Tile tile = tile_of(block, sequence, request, head, *launch.arguments, scratch.emitted);
            tile.columns = 1;
            functions.sink(launch.words, &tile);
        }
        float* const output = block.output + first * dim_v;
        divide(block.queries, dim_v, block.row_correction + first, block.row_sum + first, output);
        for (std::int64_t row = 0; row < block.queries; ++row)
            if (scratch.lse[row] == -kInfinity) std::fill_n(output + row * dim_v, dim_v, 0.0f);
        store(launch, queries, output, scratch.lse);
    }
}

void clear_unused(const Launch& launch, int request) {
    const Sequence& sequence = launch.sequences->of(request);
    const std::array<float, kMaxHeadDim> zeros{};
    const float nothing = -kInfinity;
    for (std::int64_t row = sequence.q_len; row < sequence.q_rows; ++row)
        for (int head = 0; head < launch.arguments->heads; ++head) {
            const Rows rows{request, head, sequence.q_row + row, 1};
            store(launch, rows, zeros.data(), &nothing);
            store_max_scores(launch, rows, &nothing);
        }
}

Parts::Parts(const Launch& launch, support::Arena& arena)
    : rows_(std::min<std::int64_t>(kBlockRows, std::int64_t{launch.arguments->heads} *
                                                   launch.arguments->q_len)),
      dim_(launch.shape->head_dim_v) {
    if (!may_split(launch.arguments->kv_len)) return;
    const std::int64_t count = most_parts(launch.arguments->batch, launch.shape->batch_invariant);
    memory_ = arena.take<float>(count * rows_ * (dim_ + 2));
}

Parts::Part Parts::part(int index) const {
    float* const place = memory_ + index * rows_ * (dim_ + 2);
    return {place, place + rows_ * dim_, place + rows_ * (dim_ + 1)};
}

void Parts::keep(const SequenceWork& work, const Block& block) const {
    const Part to = part(work.part);
    for (int head = 0; head < block.heads; ++head) {
        const std::int64_t first = std::int64_t{head} * block.queries;
        const std::int64_t row = (block.head - work.head) * block.queries + first;
        const bool started = block.head_started[static_cast<std::size_t>(head)];
        std::copy_n(block.row_max + first, block.queries, to.row_max + row);
        std::copy_n(block.row_sum + first, block.queries, to.row_sum + row);
        if (started)
            std::copy_n(block.output + first * dim_, block.queries * dim_, to.output + row * dim_);
        else
            std::fill_n(to.output + row * dim_, block.queries * dim_, 0.0f);
    }
}

void Parts::merge(const SequenceWork* work, Range heads, Block& block) const {
    block.head = work->head + static_cast<int>(heads.begin);
    block.heads = static_cast<int>(heads.end - heads.begin);
    block.query = work->query;
    block.queries = work->queries;
    block.head_started.fill(true);
    const std::int64_t first = heads.begin * work->queries;
    for (std::int64_t row = 0; row < block.rows(); ++row) {
        float maximum = -kInfinity;
        for (int i = 0; i < work->parts; ++i)
            maximum = std::max(maximum, part(work[i].part).row_max[first + row]);
        float* const output = block.output + row * dim_;
        double sum = 0;
        for (int i = 0; i < work->parts && maximum > -kInfinity; ++i) {
            const Part from = part(work[i].part);
            const float factor = std::exp(from.row_max[first + row] - maximum);
            sum += double{factor} * from.row_sum[first + row];
            const float* const values = from.output + (first + row) * dim_;
            for (std::int64_t d = 0; d < dim_; ++d)
                output[d] = i == 0 ? values[d] * factor : output[d] + values[d] * factor;
        }
        block.row_max[row] = maximum;
        block.row_sum[row] = static_cast<float>(sum);
    }
}

} // namespace flexc::cpu::requests
