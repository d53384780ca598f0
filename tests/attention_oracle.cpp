#include "attention_oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "tape.h"
#include "threads.h"

namespace flexc::test {

namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// What a sum gets, and its size.
struct Addend {
    std::uint32_t buffer;
    std::size_t position;
    double term, size;
};

// What a head adds to what other heads may add to.
struct HeadSums {
    std::vector<double> dk, dk_absolute, dv; // of the head's keys
    std::vector<Addend> buffers;
    double margin = std::numeric_limits<double>::infinity();
};

struct Element {
    std::int64_t key;
    double score;
    double d_score = 0, d_score_size = 0;
    double probability = 0, without_sink = 0;
    std::size_t first_partial = 0, end_partial = 0;
};

// Of a slope, or of what it was before terms cancelled, where f32 loses that.
double magnitude(double slope, double rounded) {
    const double lost = std::abs(slope - rounded) / kF32Rounding;
    return std::isfinite(lost) ? std::max(std::abs(slope), lost) : std::abs(slope);
}

// The tapes of a program. A thread has its own copy.
struct Tapes {
    Tapes(const ir::Program& program, const ir::Environment& environment)
        : mask(program, program.mask, environment, Rounding::nothing),
          score(program, program.score, environment),
          rounded(program, program.score, environment, Rounding::values) {
        if (program.sink != ir::kNoNode) sink.emplace(program, program.sink, environment);
    }

    Tape mask, score, rounded;
    std::optional<Tape> sink;
};

class Head {
  public:
    Head(const Problem& problem, const ir::Environment& environment, const Tapes& tapes,
         std::int64_t b, std::int64_t h)
        : p_(problem), environment_(environment), tapes_(tapes) {
        const std::int64_t kv_head = h / (p_.heads / p_.kv_heads);
        environment_.b = p_.request + b;
        environment_.h = h + p_.head_offset;
        environment_.h_kv = kv_head + p_.kv_head_offset;
        q_row_ = (b * p_.heads + h) * p_.q_len;
        kv_row_ = (b * p_.kv_heads + kv_head) * p_.kv_len;
        k_by_column_ = by_column(p_.k, p_.head_dim);
        v_by_column_ = by_column(p_.v, p_.head_dim_v);
    }

    // Writes the head's rows of the answer.
    HeadSums run(Answer& answer) {
        if (p_.backward) {
            sums_.dk.assign(static_cast<std::size_t>(p_.kv_len * p_.head_dim), 0);
            sums_.dk_absolute = sums_.dk;
            sums_.dv.assign(static_cast<std::size_t>(p_.kv_len * p_.head_dim_v), 0);
        }
        for (std::int64_t i = 0; i < p_.q_len; ++i) {
            score_row(i);
            if (elements_.empty()) continue;
            const double delta = weigh_row(q_row_ + i, answer);
            if (p_.backward) differentiate_row(q_row_ + i, delta, answer);
        }
        return std::move(sums_);
    }

  private:
    // The head's keys or values, so that sums over a row's columns are of all keys at once.
    std::vector<double> by_column(const std::vector<double>& rows, std::int64_t columns) const {
        std::vector<double> result(static_cast<std::size_t>(p_.kv_len * columns));
        for (std::int64_t j = 0; j < p_.kv_len; ++j)
            for (std::int64_t d = 0; d < columns; ++d)
                result[static_cast<std::size_t>(d * p_.kv_len + j)] =
                    rows[static_cast<std::size_t>((kv_row_ + j) * columns + d)];
        return result;
    }

    // row times each key, or value, in the order of columns.
    std::vector<double> products(const double* row, const std::vector<double>& columns) const {
        const auto keys = static_cast<std::size_t>(p_.kv_len);
        std::vector<double> result(keys, 0);
        for (std::size_t d = 0; d * keys < columns.size(); ++d)
            for (std::size_t j = 0; j < keys; ++j)
                result[j] += row[d] * columns[d * keys + j];
        return result;
    }

    // Finds the elements that row i sees, with their scores and slopes.
    void score_row(std::int64_t i) {
        elements_.clear();
        partials_.clear();
        const std::vector<double> dots =
            products(&p_.q[static_cast<std::size_t>((q_row_ + i) * p_.head_dim)], k_by_column_);
        environment_.q_idx = i + p_.q_offset;
        environment_.q_row = p_.q_row + i;
        for (std::int64_t j = 0; j < p_.kv_len; ++j) {
            environment_.score = p_.scale * dots[static_cast<std::size_t>(j)];
            environment_.kv_idx = j + p_.kv_offset;
            environment_.kv_row = p_.kv_row + j;
            tapes_.mask.evaluate(environment_);
            if (!tapes_.mask.boolean()) continue;
            tapes_.score.evaluate(environment_);
            if (p_.backward) tapes_.rounded.evaluate(environment_);
            double score = tapes_.score.real();
            if (p_.rounds_scores) score = static_cast<float>(score);
            if (score == kMinusInfinity) continue;
            sums_.margin = std::min(sums_.margin, tapes_.score.margin());
            elements_.push_back({.key = j, .score = score});
            if (p_.backward) find_slopes(elements_.back());
        }
        if (tapes_.sink) tapes_.sink->evaluate(environment_);
    }

    void find_slopes(Element& element) {
        tapes_.score.walk_back();
        tapes_.rounded.walk_back();
        element.d_score = tapes_.score.d_score();
        element.d_score_size = magnitude(element.d_score, tapes_.rounded.d_score());
        element.first_partial = partials_.size();
        for (std::size_t n = 0; n < tapes_.score.read_count(); ++n) {
            const Tape::Read read = tapes_.score.read(n), rounded = tapes_.rounded.read(n);
            if (read.is_outside) continue;
            const double size =
                magnitude(read.slope, rounded.is_outside ? read.slope : rounded.slope);
            partials_.push_back({read.buffer, read.position, read.slope, size});
        }
        element.end_partial = partials_.size();
    }

    // Returns d_out times the row's output.
    double weigh_row(std::int64_t q_row, Answer& answer) {
        double highest = kMinusInfinity, sum = 0;
        for (const Element& element : elements_)
            highest = std::max(highest, element.score);
        for (const Element& element : elements_)
            sum += std::exp(element.score - highest);
        answer.lse[static_cast<std::size_t>(q_row)] = highest + std::log(sum);
        answer.max_scores[static_cast<std::size_t>(q_row)] = highest;
        const double sink = tapes_.sink ? tapes_.sink->real() : kMinusInfinity;
        sink_weight_ = sink == kMinusInfinity ? 0 : 1 / (1 + sum * std::exp(highest - sink));
        double* o = &answer.o[static_cast<std::size_t>(q_row * p_.head_dim_v)];
        for (Element& element : elements_) {
            element.without_sink = std::exp(element.score - highest) / sum;
            element.probability = element.without_sink * (1 - sink_weight_);
            const double* v =
                &p_.v[static_cast<std::size_t>((kv_row_ + element.key) * p_.head_dim_v)];
            for (std::int64_t d = 0; d < p_.head_dim_v; ++d)
                o[d] += element.probability * v[d];
        }
        const double* d_out = &p_.d_out[static_cast<std::size_t>(q_row * p_.head_dim_v)];
        double delta = 0;
        for (std::int64_t d = 0; d < p_.head_dim_v; ++d)
            delta += o[d] * d_out[d];
        return delta;
    }

    void differentiate_row(std::int64_t q_row, double delta, Answer& answer) {
        const double* q = &p_.q[static_cast<std::size_t>(q_row * p_.head_dim)];
        const double* d_out = &p_.d_out[static_cast<std::size_t>(q_row * p_.head_dim_v)];
        double* dq = &answer.dq[static_cast<std::size_t>(q_row * p_.head_dim)];
        double* dq_absolute = &answer.dq_absolute[static_cast<std::size_t>(q_row * p_.head_dim)];
        const double d_lse = p_.d_lse.empty() ? 0 : p_.d_lse[static_cast<std::size_t>(q_row)];
        const std::vector<double> d_probabilities = products(d_out, v_by_column_);
        for (const Element& element : elements_) {
            const double* k =
                &p_.k[static_cast<std::size_t>((kv_row_ + element.key) * p_.head_dim)];
            const auto dk_at = static_cast<std::size_t>(element.key * p_.head_dim);
            double *dk = &sums_.dk[dk_at], *dk_absolute = &sums_.dk_absolute[dk_at];
            double* dv = &sums_.dv[static_cast<std::size_t>(element.key * p_.head_dim_v)];
            for (std::int64_t d = 0; d < p_.head_dim_v; ++d)
                dv[d] += element.probability * d_out[d];
            const double d_probability = d_probabilities[static_cast<std::size_t>(element.key)];
            const double d_modified =
                element.probability * (d_probability - delta) + element.without_sink * d_lse;
            const double d_modified_size =
                element.probability * (std::abs(d_probability) + std::abs(delta)) +
                element.without_sink * std::abs(d_lse);
            const double d_dot = d_modified * element.d_score * p_.scale;
            const double size = d_modified_size * element.d_score_size * p_.scale;
            for (std::int64_t d = 0; d < p_.head_dim; ++d) {
                dq[d] += d_dot * k[d];
                dk[d] += d_dot * q[d];
                dq_absolute[d] += size * std::abs(k[d]);
                dk_absolute[d] += size * std::abs(q[d]);
            }
            for (std::size_t n = element.first_partial; n < element.end_partial; ++n) {
                const Addend& partial = partials_[n];
                sums_.buffers.push_back({partial.buffer, partial.position,
                                         d_modified * partial.term,
                                         d_modified_size * partial.size});
            }
        }
        if (sink_weight_ == 0) return;
        tapes_.sink->walk_back();
        for (std::size_t n = 0; n < tapes_.sink->read_count(); ++n) {
            const Tape::Read read = tapes_.sink->read(n);
            if (read.is_outside) continue;
            const double term = -sink_weight_ * delta * read.slope;
            sums_.buffers.push_back({read.buffer, read.position, term, std::abs(term)});
        }
    }

    const Problem& p_;
    ir::Environment environment_;
    Tapes tapes_;
    std::int64_t q_row_ = 0, kv_row_ = 0; // the first of the head
    std::vector<double> k_by_column_, v_by_column_;
    HeadSums sums_;
    // Of a row.
    std::vector<Element> elements_;
    std::vector<Addend> partials_; // slopes
    double sink_weight_ = 0;
};

void add(const std::vector<double>& from, std::vector<double>& to, std::int64_t at) {
    for (std::size_t i = 0; i < from.size(); ++i)
        to[static_cast<std::size_t>(at) + i] += from[i];
}

} // namespace

Answer attention_oracle(const ir::Program& program, const Problem& p, int threads) {
    Answer answer;
    answer.o.assign(static_cast<std::size_t>(p.batch * p.heads * p.q_len * p.head_dim_v), 0);
    answer.lse.assign(static_cast<std::size_t>(p.batch * p.heads * p.q_len), kMinusInfinity);
    answer.max_scores = answer.lse;
    answer.dq.assign(p.q.size(), 0);
    answer.dk.assign(p.k.size(), 0);
    answer.dq_absolute = answer.dq;
    answer.dk_absolute = answer.dk;
    answer.dv.assign(p.v.size(), 0);
    struct Gradient {
        std::vector<double> sum, absolute;
    };
    std::vector<Gradient> gradients(program.buffers.size());
    for (std::size_t i = 0; i < program.buffers.size(); ++i)
        if (program.buffers[i].grad) {
            std::int64_t count = 1;
            for (const std::int64_t extent : p.buffers[i].extents)
                count *= extent;
            gradients[i].sum.assign(static_cast<std::size_t>(count), 0);
            gradients[i].absolute = gradients[i].sum;
        }
    ir::Environment environment;
    environment.sizes = p.sizes;
    environment.params = p.params;
    environment.q_len = p.q_len;
    environment.kv_len = p.kv_len;
    for (const ir::BufferData& buffer : p.buffers)
        environment.buffers.push_back(&buffer);
    const Tapes tapes(program, environment);

    in_order(
        p.batch * p.heads, threads,
        [&](std::int64_t n) {
            return Head(p, environment, tapes, n / p.heads, n % p.heads).run(answer);
        },
        [&](std::int64_t n, const HeadSums& sums) {
            const std::int64_t b = n / p.heads, group = p.heads / p.kv_heads;
            const std::int64_t kv_row = (b * p.kv_heads + n % p.heads / group) * p.kv_len;
            add(sums.dk, answer.dk, kv_row * p.head_dim);
            add(sums.dk_absolute, answer.dk_absolute, kv_row * p.head_dim);
            add(sums.dv, answer.dv, kv_row * p.head_dim_v);
            for (const Addend& addend : sums.buffers) {
                gradients[addend.buffer].sum[addend.position] += addend.term;
                gradients[addend.buffer].absolute[addend.position] += addend.size;
            }
            answer.margin = std::min(answer.margin, sums.margin);
        });
    for (std::size_t i = 0; i < program.buffers.size(); ++i)
        if (program.buffers[i].grad) {
            answer.d_buffers[program.buffers[i].name] = std::move(gradients[i].sum);
            answer.d_buffers_absolute[program.buffers[i].name] = std::move(gradients[i].absolute);
        }
    return answer;
}

} // namespace flexc::test
