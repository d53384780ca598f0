#include "attention_oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tape.h"

namespace flexc::test {

namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

struct Element {
    bool visible = false;
    double score = kMinusInfinity;
    double probability = 0, without_sink = 0;
    double d_score = 0, d_score_size = 0;
    // One per gradient read inside its buffer, and per value of the counter in the term of a sum.
    struct Partial {
        ir::NodeId read;
        double slope, size;
        std::int64_t target;
    };
    std::vector<Partial> partials;
};

// Of a slope, or of what it was before terms cancelled, where f32 loses that.
double magnitude(double slope, double rounded) {
    const double lost = std::abs(slope - rounded) / kF32Rounding;
    return std::isfinite(lost) ? std::max(std::abs(slope), lost) : std::abs(slope);
}

// Row-major position of what a read names.
std::int64_t position(const ir::Program& program, const Problem& problem, const ReadSlope& read) {
    const auto& extents = problem.buffers[program.graph[read.read].symbol].extents;
    std::int64_t at = 0;
    for (std::size_t i = 0; i < extents.size(); ++i)
        at = at * extents[i] + read.indices[i];
    return at;
}

} // namespace

Answer attention_oracle(const ir::Program& program, const Problem& p) {
    Answer answer;
    answer.o.assign(static_cast<std::size_t>(p.batch * p.heads * p.q_len * p.head_dim_v), 0);
    answer.lse.assign(static_cast<std::size_t>(p.batch * p.heads * p.q_len), kMinusInfinity);
    answer.max_scores = answer.lse;
    answer.dq.assign(p.q.size(), 0);
    answer.dk.assign(p.k.size(), 0);
    answer.dq_absolute = answer.dq;
    answer.dk_absolute = answer.dk;
    answer.dv.assign(p.v.size(), 0);
    for (std::size_t i = 0; i < program.buffers.size(); ++i)
        if (program.buffers[i].grad) {
            std::int64_t count = 1;
            for (const std::int64_t extent : p.buffers[i].extents)
                count *= extent;
            answer.d_buffers[program.buffers[i].name].assign(static_cast<std::size_t>(count), 0);
            answer.d_buffers_absolute = answer.d_buffers;
        }
    ir::Environment environment;
    environment.sizes = p.sizes;
    environment.params = p.params;
    environment.q_len = p.q_len;
    environment.kv_len = p.kv_len;
    for (const ir::BufferData& buffer : p.buffers)
        environment.buffers.push_back(&buffer);

    // The sink as a score of its own.
    ir::Program of_sink = program;
    of_sink.score = program.sink;

    const std::int64_t group = p.heads / p.kv_heads;
    std::vector<Element> row(static_cast<std::size_t>(p.kv_len));
    for (std::int64_t b = 0; b < p.batch; ++b)
        for (std::int64_t h = 0; h < p.heads; ++h)
            for (std::int64_t i = 0; i < p.q_len; ++i) {
                const std::int64_t q_row = (b * p.heads + h) * p.q_len + i;
                const std::int64_t kv_head = b * p.kv_heads + h / group;
                const double* q = &p.q[static_cast<std::size_t>(q_row * p.head_dim)];
                double highest = kMinusInfinity;
                for (std::int64_t j = 0; j < p.kv_len; ++j) {
                    Element& element = row[static_cast<std::size_t>(j)];
                    element = {};
                    const double* k =
                        &p.k[static_cast<std::size_t>((kv_head * p.kv_len + j) * p.head_dim)];
                    double dot = 0;
                    for (std::int64_t d = 0; d < p.head_dim; ++d)
                        dot += q[d] * k[d];
                    environment.score = p.scale * dot;
                    environment.b = p.request + b;
                    environment.h = h + p.head_offset;
                    environment.h_kv = h / group + p.kv_head_offset;
                    environment.q_idx = i + p.q_offset;
                    environment.kv_idx = j + p.kv_offset;
                    environment.q_row = p.q_row + i;
                    environment.kv_row = p.kv_row + j;
                    if (!ir::evaluate_boolean(program, program.mask, environment)) continue;
                    const TapeResult tape = differentiate(program, environment);
                    element.score = tape.score;
                    if (p.rounds_scores) element.score = static_cast<float>(element.score);
                    element.visible = element.score != kMinusInfinity;
                    if (!element.visible) continue;
                    highest = std::max(highest, element.score);
                    answer.margin = std::min(answer.margin, tape.margin);
                    element.d_score = tape.d_score;
                    const TapeResult rounded =
                        differentiate(program, environment, Rounding::values);
                    element.d_score_size = magnitude(tape.d_score, rounded.d_score);
                    for (std::size_t n = 0; n < tape.reads.size(); ++n) {
                        const ReadSlope& read = tape.reads[n];
                        // Another index may be outside.
                        const bool same = rounded.reads.size() == tape.reads.size();
                        const double size =
                            magnitude(read.slope, same ? rounded.reads[n].slope : read.slope);
                        element.partials.push_back(
                            {read.read, read.slope, size, position(program, p, read)});
                    }
                }
                if (highest == kMinusInfinity) continue;
                double sum = 0;
                for (const Element& element : row)
                    if (element.visible) sum += std::exp(element.score - highest);
                const double lse = highest + std::log(sum);
                answer.lse[static_cast<std::size_t>(q_row)] = lse;
                answer.max_scores[static_cast<std::size_t>(q_row)] = highest;
                TapeResult sink;
                sink.score = kMinusInfinity;
                if (program.sink != ir::kNoNode) sink = differentiate(of_sink, environment);
                const double sink_weight = sink.score == kMinusInfinity
                                               ? 0
                                               : 1 / (1 + sum * std::exp(highest - sink.score));
                double* o = &answer.o[static_cast<std::size_t>(q_row * p.head_dim_v)];
                const double* d_out = &p.d_out[static_cast<std::size_t>(q_row * p.head_dim_v)];
                for (std::int64_t j = 0; j < p.kv_len; ++j) {
                    Element& element = row[static_cast<std::size_t>(j)];
                    if (!element.visible) continue;
                    element.without_sink = std::exp(element.score - highest) / sum;
                    element.probability = element.without_sink * (1 - sink_weight);
                    const auto v =
                        static_cast<std::size_t>((kv_head * p.kv_len + j) * p.head_dim_v);
                    for (std::int64_t d = 0; d < p.head_dim_v; ++d) {
                        o[d] += element.probability * p.v[v + static_cast<std::size_t>(d)];
                        answer.dv[v + static_cast<std::size_t>(d)] +=
                            element.probability * d_out[d];
                    }
                }
                const double d_lse = p.d_lse.empty() ? 0 : p.d_lse[static_cast<std::size_t>(q_row)];
                double delta = 0;
                for (std::int64_t d = 0; d < p.head_dim_v; ++d)
                    delta += o[d] * d_out[d];
                for (std::int64_t j = 0; j < p.kv_len; ++j) {
                    const Element& element = row[static_cast<std::size_t>(j)];
                    if (!element.visible) continue;
                    const auto kv_row = static_cast<std::size_t>(kv_head * p.kv_len + j);
                    double d_probability = 0;
                    for (std::int64_t d = 0; d < p.head_dim_v; ++d)
                        d_probability +=
                            d_out[d] * p.v[kv_row * static_cast<std::size_t>(p.head_dim_v) +
                                           static_cast<std::size_t>(d)];
                    const double d_modified = element.probability * (d_probability - delta) +
                                              element.without_sink * d_lse;
                    const double d_modified_size =
                        element.probability * (std::abs(d_probability) + std::abs(delta)) +
                        element.without_sink * std::abs(d_lse);
                    for (std::int64_t d = 0; d < p.head_dim; ++d) {
                        const auto at = static_cast<std::size_t>(d);
                        const auto kv_at = kv_row * static_cast<std::size_t>(p.head_dim) + at;
                        const auto q_at = static_cast<std::size_t>(q_row * p.head_dim) + at;
                        const double d_dot = d_modified * element.d_score * p.scale;
                        answer.dq[q_at] += d_dot * p.k[kv_at];
                        answer.dk[kv_at] += d_dot * q[d];
                        const double size = d_modified_size * element.d_score_size * p.scale;
                        answer.dq_absolute[q_at] += size * std::abs(p.k[kv_at]);
                        answer.dk_absolute[kv_at] += size * std::abs(q[d]);
                    }
                    for (const Element::Partial& partial : element.partials) {
                        const auto at = static_cast<std::size_t>(partial.target);
                        const std::string& name =
                            program.buffers[program.graph[partial.read].symbol].name;
                        const double term = d_modified * partial.slope;
                        answer.d_buffers[name][at] += term;
                        answer.d_buffers_absolute[name][at] += d_modified_size * partial.size;
                    }
                }
                if (sink_weight == 0) continue;
                for (const ReadSlope& read : sink.reads) {
                    const auto at = static_cast<std::size_t>(position(program, p, read));
                    const std::string& name = program.buffers[program.graph[read.read].symbol].name;
                    const double term = -sink_weight * delta * read.slope;
                    answer.d_buffers[name][at] += term;
                    answer.d_buffers_absolute[name][at] += std::abs(term);
                }
            }
    return answer;
}

} // namespace flexc::test
