// A program of ragged requests and the same of one sequence say the same of every element.
#include "passes/one_sequence.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "front/compile_text.h"
#include "ir/interp.h"
#include "passes/part.h"
#include "passes/pipeline.h"

using namespace flexc;

namespace {

struct Request {
    std::int64_t q_row, q_len, q_start, kv_row, kv_len;
};
// One that has no keys, and one whose queries end with its keys.
const std::vector<Request> kRequests = {
    {0, 5, 0, 0, 7}, {5, 3, 0, 7, 0}, {8, 4, 2, 7, 6}, {14, 2, 0, 13, 1}};
// Queries and keys are the same rows.
const std::vector<Request> kAlike = {{0, 5, 0, 0, 5}, {5, 0, 0, 5, 0}, {5, 9, 0, 5, 9}};
constexpr std::int64_t kRows = 16; // of both; the last ones are nobody's

ir::Program program_of(const char* text, OneSequence lengths = OneSequence::no) {
    front::Output output = front::compile_text({.source = dsl::Source("<test>", text),
                                                .query_layout = Layout::ragged,
                                                .key_layout = Layout::ragged});
    REQUIRE_MESSAGE(output.program.has_value(), output.rendered);
    CompileOptions options;
    options.one_sequence = lengths;
    const auto made = passes::make_part(*output.program, options);
    REQUIRE_MESSAGE(made.has_value(), made.error().message);
    return std::move(*output.program);
}

// Of every buffer of the text: 16 elements along each dim.
ir::BufferData values_of(const ir::Buffer& buffer) {
    ir::BufferData data;
    std::size_t count = 1;
    for (const ir::Dim& dim : buffer.dims) {
        data.extents.push_back(dim.is_constant() ? dim.constant : kRows);
        count *= static_cast<std::size_t>(data.extents.back());
    }
    for (std::size_t i = 0; i < count; ++i) {
        data.reals.push_back(std::sin(static_cast<double>(i)));
        data.integers.push_back(static_cast<std::int64_t>(i * 7 % 5));
    }
    return data;
}

struct Elements {
    Elements(const char* text, const std::vector<Request>& of, OneSequence lengths)
        : requests(of), ragged(program_of(text)), whole(program_of(text, lengths)) {
        for (const ir::Buffer& buffer : ragged.buffers)
            data.push_back(values_of(buffer));
        ir::BufferData of_query{.extents = {kRows}}, of_key{.extents = {kRows}},
            facts{.extents = {static_cast<std::int64_t>(requests.size()), passes::kRequestFacts}};
        of_query.integers.assign(kRows, passes::kNoQuery);
        of_key.integers.assign(kRows, passes::kNoKey);
        for (std::size_t b = 0; b < requests.size(); ++b) {
            const Request& one = requests[b];
            std::fill_n(of_query.integers.begin() + one.q_row, one.q_len, b);
            std::fill_n(of_key.integers.begin() + one.kv_row, one.kv_len, b);
            facts.integers.insert(facts.integers.end(),
                                  {one.q_row - one.q_start, one.kv_row, one.q_len, one.kv_len});
        }
        for (ir::BufferData* own : {&of_query, &of_key, &facts})
            data.push_back(*own);
    }

    // Of both programs, at one element.
    ir::Environment at(std::int64_t q_row, std::int64_t kv_row, bool is_whole) const {
        ir::Environment environment{.score = 0.5, .h = 1};
        const ir::Program& program = is_whole ? whole : ragged;
        environment.sizes.assign(program.sizes.size(), static_cast<std::int64_t>(requests.size()));
        for (std::size_t i = 0; i < program.buffers.size(); ++i)
            environment.buffers.push_back(&data[i]);
        environment.q_idx = q_row;
        environment.kv_idx = kv_row;
        if (is_whole) {
            environment.sizes[ir::kB] = 1;
            return environment;
        }
        const Request& one = requests[static_cast<std::size_t>(request_of(q_row))];
        environment.b = request_of(q_row);
        environment.q_row = q_row;
        environment.kv_row = kv_row;
        environment.q_idx = q_row - one.q_row + one.q_start;
        environment.kv_idx = kv_row - one.kv_row;
        environment.q_len = one.q_len;
        environment.kv_len = one.kv_len;
        return environment;
    }
    std::int64_t request_of(std::int64_t q_row) const { return find(0, q_row); }
    bool are_together(std::int64_t q_row, std::int64_t kv_row) const {
        return request_of(q_row) >= 0 && request_of(q_row) == find(1, kv_row);
    }
    std::int64_t find(std::size_t which, std::int64_t row) const {
        const std::int64_t found =
            data[data.size() - 3 + which].integers[static_cast<std::size_t>(row)];
        return found < 0 ? -1 : found;
    }

    const std::vector<Request>& requests;
    ir::Program ragged, whole;
    std::vector<ir::BufferData> data;
};

} // namespace

TEST_CASE("elements of a request are as the ragged program has them, others are hidden") {
    for (const char* text :
         {"score_mod = score + q_idx * 100 + kv_idx + 0.1 * b\nmask_mod = q_idx >= kv_idx",
          "score_mod = score + Q_LEN * 100 + KV_LEN + 10000 * B + h",
          "buffer t: f32[B, H, KV_LEN]\nscore_mod = score + t[b, h, kv_idx]",
          "buffer t: f32[B, Q_LEN, KV_LEN]\nscore_mod = score + t[b, q_idx, kv_idx]",
          "buffer x: f32[N]\nbuffer y: i32[N]\nscore_mod = score + x[q_row] * y[kv_row]\n"
          "mask_mod = y[kv_row] != 2 and kv_idx < KV_LEN - 1",
          "buffer t: f32[N]\nscore_mod = score + sum(i in 0..3: t[kv_idx + i] * t[q_idx + i])",
          "buffer s: f32[B]\nsink = s[b] + q_idx * 0.1 + KV_LEN\nscore_mod = score"})
        for (const bool is_alike : {false, true}) {
            CAPTURE(text);
            CAPTURE(is_alike);
            const Elements all(text, is_alike ? kAlike : kRequests,
                               is_alike ? OneSequence::of_same_lengths
                                        : OneSequence::of_any_lengths);
            CHECK(all.whole.is_dense());
            for (std::int64_t q = 0; q < kRows; ++q)
                for (std::int64_t kv = 0; kv < kRows; ++kv) {
                    CAPTURE(q);
                    CAPTURE(kv);
                    const ir::Environment here = all.at(q, kv, true);
                    const bool is_visible = ir::evaluate_boolean(all.whole, all.whole.mask, here);
                    if (all.whole.sink != ir::kNoNode) {
                        const double sink = ir::evaluate_real(all.whole, all.whole.sink, here);
                        if (all.request_of(q) < 0)
                            CHECK(sink == -INFINITY);
                        else
                            CHECK(sink == ir::evaluate_real(all.ragged, all.ragged.sink,
                                                            all.at(q, kv, false)));
                    }
                    if (!all.are_together(q, kv)) {
                        CHECK(!is_visible);
                        continue;
                    }
                    const ir::Environment there = all.at(q, kv, false);
                    CHECK(is_visible == ir::evaluate_boolean(all.ragged, all.ragged.mask, there));
                    CHECK(ir::evaluate_real(all.whole, all.whole.score, here) ==
                          ir::evaluate_real(all.ragged, all.ragged.score, there));
                }
        }
}

TEST_CASE("a causal mask over same lengths is a band of the sequence beside the requests") {
    ir::Program program = program_of("mask_mod = q_idx >= kv_idx", OneSequence::of_same_lengths);
    const auto mod = passes::lower(std::move(program), {});
    REQUIRE_MESSAGE(mod.has_value(), mod.error().message);
    CHECK(mod->band.found());
    const auto other =
        passes::lower(program_of("mask_mod = q_idx >= kv_idx", OneSequence::of_any_lengths), {});
    REQUIRE(other);
    CHECK(!other->band.found());
}

TEST_CASE("a program with as many buffers as there may be has no room for requests") {
    std::string text;
    for (int i = 0; i < 30; ++i)
        text += "buffer t" + std::to_string(i) + ": f32[H]\n";
    front::Output output = front::compile_text({.source = dsl::Source("<test>", text + "score"),
                                                .query_layout = Layout::ragged,
                                                .key_layout = Layout::ragged});
    REQUIRE(output.program);
    const auto made = passes::make_one_sequence(*output.program, OneSequence::of_any_lengths);
    REQUIRE(!made);
    CHECK(made.error().message == "30 buffers, and 3 that say which rows are whose: at most 32");
}
