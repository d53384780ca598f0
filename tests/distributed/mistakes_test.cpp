// Mistakes that rings of attention have been shipped with, planted one by one in a ring that is
// written out here: each is found, and its error over the ranks has a shape of its own, by which it
// can be told from the others.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <random>
#include <string>
#include <vector>

#include "api/tensor.h"
#include "cpu_options.h"
#include "flexc/flexc.h"

using namespace flexc;
using namespace flexc::test;

namespace {

constexpr std::int64_t kRanks = 8, kRows = 48, kHeads = 2, kDim = 16, kLength = kRanks * kRows;
constexpr std::int64_t kChunk = 16; // that a rank's rows are cut into

enum class Mistake : std::uint8_t {
    none,
    rounded_delta,        // delta from an output that was rounded to bf16
    rounded_gradients,    // gradients of each block in bf16, their sums in f32
    rounded_sum,          // the running dq in bf16
    local_lse_and_output, // of a block, where those of all keys belong
    local_lse,
    local_output,
    strided_lse,        // a slice of lse read as if it had no gaps
    skips_later_chunks, // local chunks j > i are left out, on every step of the ring
    causal_every_step,  // the causal flag on every block
    overwritten,        // dq of the last block alone
    binary_lse,         // in units of log 2
};

using Values = std::vector<float>; // [H, S, D] or [H, S]

struct Gradients {
    Values dq, dk, dv;
};

TensorView view(Values& values, std::int64_t begin, std::int64_t count, std::int64_t columns,
                std::int64_t rows = kLength) {
    TensorView result = TensorView::contiguous(values.data() + begin * columns, DType::f32,
                                               {1, kHeads, count, columns});
    result.strides = {kHeads * rows * columns, rows * columns, columns, 1};
    return result;
}
TensorView row_view(Values& values, std::int64_t begin, std::int64_t count) {
    TensorView result =
        TensorView::contiguous(values.data() + begin, DType::f32, {1, kHeads, count});
    result.strides = {kHeads * kLength, kLength, 1};
    return result;
}

Values round_to_bf16(Values values) {
    for (float& value : values)
        value = from_bf16(to_bf16(value));
    return values;
}

struct Inputs {
    Values q, k, v, d_out, o, lse;
};

class Ring {
  public:
    Ring(const Kernel& kernel, Inputs& in, Mistake mistake)
        : kernel_(kernel), in_(in), mistake_(mistake) {}

    Gradients run() {
        sums_ = {Values(in_.q.size()), Values(in_.k.size()), Values(in_.v.size())};
        for (std::int64_t rank = 0; rank < kRanks; ++rank)
            for (std::int64_t from = rank; from >= 0; --from)
                block(rank, from);
        return sums_;
    }

  private:
    struct Area {
        std::int64_t q = 0, q_rows = 0, kv = 0, kv_rows = 0;
    };

    void block(std::int64_t rank, std::int64_t from) {
        const bool is_own = rank == from;
        if (mistake_ != Mistake::skips_later_chunks || is_own)
            return piece({rank * kRows, kRows, from * kRows, kRows}, is_own);
        for (std::int64_t i = 0; i < kRows; i += kChunk)
            for (std::int64_t j = 0; j <= i; j += kChunk)
                piece({rank * kRows + i, kChunk, from * kRows + j, kChunk}, false);
    }

    void piece(const Area& area, bool is_own) {
        // A rank that thinks that every block is its own sees a causal mask in each.
        const bool is_causal_by_mistake = mistake_ == Mistake::causal_every_step && !is_own;
        PlanOptions options;
        options.q_offset = area.q;
        options.kv_offset = is_causal_by_mistake ? area.q : area.kv;
        options.global_q_len = options.global_kv_len = kLength;
        const Sizes sizes{1, kHeads, kHeads, area.q_rows, area.kv_rows};
        const auto plan = kernel_.plan(sizes, {}, {}, options);
        REQUIRE_MESSAGE(plan.has_value(), plan.error().message);
        std::vector<std::byte> memory(plan->workspace_bytes() + 256);
        const Workspace workspace{memory.data(), memory.size()};

        Values o(in_.o), lse(in_.lse);
        if (mistake_ == Mistake::local_lse_and_output || mistake_ == Mistake::local_output ||
            mistake_ == Mistake::local_lse) {
            Values local_o(in_.o.size()), local_lse(in_.lse.size());
            const auto done = kernel_.forward(
                *plan,
                {view(in_.q, area.q, area.q_rows, kDim), view(in_.k, area.kv, area.kv_rows, kDim),
                 view(in_.v, area.kv, area.kv_rows, kDim), view(local_o, area.q, area.q_rows, kDim),
                 row_view(local_lse, area.q, area.q_rows)},
                {}, workspace);
            REQUIRE(done.has_value());
            if (mistake_ != Mistake::local_lse) o = local_o;
            if (mistake_ != Mistake::local_output) lse = local_lse;
        }
        if (mistake_ == Mistake::rounded_delta) o = round_to_bf16(o);
        if (mistake_ == Mistake::binary_lse)
            for (float& value : lse)
                value *= std::numbers::log2e_v<float>;
        // Slices of chunks of the rank's own [H, rows], whose rows of the next head do not follow.
        if (mistake_ == Mistake::strided_lse)
            for (std::int64_t head = 0; head < kHeads; ++head)
                for (std::int64_t row = 0; row < kRows; ++row) {
                    const std::int64_t read = row / kChunk * kChunk + head * kChunk + row % kChunk;
                    lse[static_cast<std::size_t>(head * kLength + area.q + row)] =
                        in_.lse[static_cast<std::size_t>(read / kRows * kLength + area.q +
                                                         read % kRows)];
                }

        Gradients own{Values(in_.q.size()), Values(in_.k.size()), Values(in_.v.size())};
        const auto done = kernel_.backward(*plan,
                                           {.q = view(in_.q, area.q, area.q_rows, kDim),
                                            .k = view(in_.k, area.kv, area.kv_rows, kDim),
                                            .v = view(in_.v, area.kv, area.kv_rows, kDim),
                                            .o = view(o, area.q, area.q_rows, kDim),
                                            .lse = row_view(lse, area.q, area.q_rows),
                                            .d_out = view(in_.d_out, area.q, area.q_rows, kDim),
                                            .dq = view(own.dq, area.q, area.q_rows, kDim),
                                            .dk = view(own.dk, area.kv, area.kv_rows, kDim),
                                            .dv = view(own.dv, area.kv, area.kv_rows, kDim)},
                                           {}, {}, workspace);
        REQUIRE_MESSAGE(done.has_value(), done.error().message);
        if (mistake_ == Mistake::rounded_gradients)
            own = {round_to_bf16(own.dq), round_to_bf16(own.dk), round_to_bf16(own.dv)};
        const auto add = [](Values& sums, const Values& more) {
            std::ranges::transform(sums, more, sums.begin(), std::plus());
        };
        add(sums_.dk, own.dk);
        add(sums_.dv, own.dv);
        if (mistake_ == Mistake::overwritten)
            for (std::int64_t head = 0; head < kHeads; ++head)
                std::fill_n(sums_.dq.begin() + (head * kLength + area.q) * kDim, area.q_rows * kDim,
                            0.0f);
        add(sums_.dq, own.dq);
        if (mistake_ == Mistake::rounded_sum) sums_.dq = round_to_bf16(sums_.dq);
    }

    const Kernel& kernel_;
    Inputs& in_;
    Mistake mistake_;
    Gradients sums_;
};

// Relative errors of the rows of each rank.
using ByRank = std::vector<double>;
ByRank errors(const Values& got, const Values& want) {
    ByRank result;
    for (std::int64_t rank = 0; rank < kRanks; ++rank) {
        double error = 0, norm = 0;
        for (std::int64_t head = 0; head < kHeads; ++head)
            for (std::int64_t i = 0; i < kRows * kDim; ++i) {
                const auto at =
                    static_cast<std::size_t>((head * kLength + rank * kRows) * kDim + i);
                error += std::pow(double{got[at]} - double{want[at]}, 2);
                norm += std::pow(double{want[at]}, 2);
            }
        result.push_back(std::sqrt(error / norm));
    }
    return result;
}

double most(const ByRank& errors) { return std::ranges::max(errors); }
double least(const ByRank& errors) { return std::ranges::min(errors); }
// Of the last ranks over that of the first.
double growth(const ByRank& errors) { return errors.back() / errors.front(); }

struct Found {
    ByRank dq, dk, dv;
};

constexpr double kExact = 3e-6;

class Planted {
  public:
    Planted() : kernel_(make_kernel()) {
        std::mt19937 random(1993);
        std::normal_distribution<float> normal;
        for (Values* values : {&in_.q, &in_.k, &in_.v, &in_.d_out}) {
            values->resize(static_cast<std::size_t>(kHeads * kLength * kDim));
            for (float& value : *values)
                value = normal(random);
        }
        in_.o.resize(in_.q.size());
        in_.lse.resize(static_cast<std::size_t>(kHeads * kLength));
        const auto plan = kernel_.plan({1, kHeads, kHeads, kLength, kLength});
        REQUIRE(plan.has_value());
        std::vector<std::byte> memory(plan->workspace_bytes() + 256);
        const Workspace workspace{memory.data(), memory.size()};
        right_ = {Values(in_.q.size()), Values(in_.k.size()), Values(in_.v.size())};
        const auto whole = [](Values& values) { return view(values, 0, kLength, kDim); };
        REQUIRE(kernel_.forward(
            *plan,
            {whole(in_.q), whole(in_.k), whole(in_.v), whole(in_.o), row_view(in_.lse, 0, kLength)},
            {}, workspace));
        REQUIRE(kernel_.backward(*plan,
                                 {.q = whole(in_.q),
                                  .k = whole(in_.k),
                                  .v = whole(in_.v),
                                  .o = whole(in_.o),
                                  .lse = row_view(in_.lse, 0, kLength),
                                  .d_out = whole(in_.d_out),
                                  .dq = whole(right_.dq),
                                  .dk = whole(right_.dk),
                                  .dv = whole(right_.dv)},
                                 {}, {}, workspace));
    }

    Found find(Mistake mistake) {
        const Gradients got = Ring(kernel_, in_, mistake).run();
        const Found found{errors(got.dq, right_.dq), errors(got.dk, right_.dk),
                          errors(got.dv, right_.dv)};
        std::string text;
        for (const ByRank* by_rank : {&found.dq, &found.dk, &found.dv}) {
            for (const double error : *by_rank)
                text += " " + std::to_string(error);
            text += " |";
        }
        INFO(text);
        return found;
    }

  private:
    static Kernel make_kernel() {
        CompileOptions options = cpu_options();
        options.head_dim = kDim;
        const auto kernel = compile("mask_mod = q_idx >= kv_idx", options);
        REQUIRE_MESSAGE(kernel.has_value(), kernel.error().message);
        return *kernel;
    }

    Kernel kernel_;
    Inputs in_;
    Gradients right_;
};

} // namespace

TEST_CASE("planted mistakes are found, each by the shape of its error over the ranks") {
    if (!has_cpu()) return;
    Planted planted;
    {
        const Found found = planted.find(Mistake::none);
        CHECK(most(found.dq) < kExact);
        CHECK(most(found.dk) < kExact);
        CHECK(most(found.dv) < kExact);
    }
    { // Small, and dv exact.
        const Found found = planted.find(Mistake::rounded_delta);
        CHECK(most(found.dq) > 1e-4);
        CHECK(most(found.dq) < 1e-2);
        CHECK(most(found.dk) > 3e-5);
        CHECK(most(found.dv) < kExact);
    }
    { // The same everywhere.
        const Found found = planted.find(Mistake::rounded_gradients);
        for (const ByRank* by_rank : {&found.dq, &found.dk, &found.dv}) {
            CHECK(least(*by_rank) > 1e-3);
            CHECK(most(*by_rank) < 4e-3);
        }
    }
    { // Of dq alone, slowly growing.
        const Found found = planted.find(Mistake::rounded_sum);
        CHECK(least(found.dq) > 1e-3);
        CHECK(most(found.dq) < 1e-2);
        CHECK(growth(found.dq) > 1.3);
        CHECK(most(found.dk) < kExact);
        CHECK(most(found.dv) < kExact);
    }
    // Large, growing about as the rank does, in all three; the first rank has its own keys alone.
    for (const Mistake mistake : {Mistake::local_lse_and_output, Mistake::local_lse}) {
        const Found found = planted.find(mistake);
        CHECK(found.dq[0] < kExact);
        CHECK(found.dq[1] > 0.3);
        CHECK(found.dq.back() > 4 * found.dq[1]);
        CHECK(found.dq.back() > 3);
        CHECK(most(found.dk) > 1);
        CHECK(most(found.dv) > 1);
    }
    { // Moderate, and dv exact.
        const Found found = planted.find(Mistake::local_output);
        CHECK(found.dq[0] < kExact);
        CHECK(least({found.dq.begin() + 1, found.dq.end()}) > 0.02);
        CHECK(most(found.dq) < 1);
        CHECK(most(found.dk) > 0.02);
        CHECK(most(found.dv) < kExact);
    }
    { // The heads behind the first, most of all at the first rank, whose rows see few keys.
        const Found found = planted.find(Mistake::strided_lse);
        CHECK(found.dq[0] > 0.3);
        CHECK(growth(found.dq) < 0.5);
        CHECK(found.dv[0] > 0.1);
    }
    { // A plateau; the first rank's queries and the last rank's keys are right.
        const Found found = planted.find(Mistake::skips_later_chunks);
        CHECK(found.dq[0] < kExact);
        CHECK(least({found.dq.begin() + 1, found.dq.end()}) > 0.2);
        CHECK(most(found.dq) < 1);
        CHECK(found.dk.back() < kExact);
        CHECK(found.dv.back() < kExact);
        CHECK(found.dk[0] > 0.2);
    }
    { // Half of each other block is missing.
        const Found found = planted.find(Mistake::causal_every_step);
        CHECK(found.dq[0] < kExact);
        CHECK(least({found.dq.begin() + 1, found.dq.end()}) > 0.1);
        CHECK(found.dk.back() < kExact);
        CHECK(found.dk[0] > 0.1);
    }
    { // Of dq alone, rising towards 1.
        const Found found = planted.find(Mistake::overwritten);
        CHECK(found.dq[0] < kExact);
        CHECK(found.dq[1] > 0.3);
        CHECK(found.dq.back() > found.dq[1]);
        CHECK(most(found.dq) < 1.1);
        CHECK(most(found.dk) < kExact);
        CHECK(most(found.dv) < kExact);
    }
    { // Gross everywhere.
        const Found found = planted.find(Mistake::binary_lse);
        for (const ByRank* by_rank : {&found.dq, &found.dk, &found.dv})
            CHECK(least(*by_rank) > 0.5);
    }
}
