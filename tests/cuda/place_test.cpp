// What templates/common/place.cuh says of bands with clamps, run on the host, against every
// element.
#include <vector>

#include <doctest/doctest.h>

#include "common/arguments.h"
#include "cuda/emitted.h"
#include "host_arguments.h"
#include "host_module.h"
#include "masks.h"

namespace {

using namespace flexc;

constexpr int kQueries = 61, kKeys = 83;

struct Window {
    int head, first_q, last_q, first_kv, last_kv;
};
struct Answer {
    int first_key, last_key, first_query, last_query;         // of the windows
    int first_of_row, last_of_row, first_of_key, last_of_key; // of their first query and key
    int holds;
};
using Function = void(const std::uint64_t*, const AttentionArguments*, const Window*, Answer*);

constexpr std::string_view kPrelude = R"(
inline int min(int x, int y) { return x < y ? x : y; }
inline int max(int x, int y) { return x < y ? y : x; }
)";
constexpr std::string_view kCaller = R"(
#include "common/place.cuh"
struct Window { int head, first_q, last_q, first_kv, last_kv; };
struct Answer {
    int first_key, last_key, first_query, last_query;
    int first_of_row, last_of_row, first_of_key, last_of_key, holds;
};
extern "C" void answer(const unsigned long long* words, const AttentionArguments* attention,
                       const Window* w, Answer* out) {
    const mod::Arguments& arguments = *reinterpret_cast<const mod::Arguments*>(words);
    const HeadPlace place(*attention, arguments, w->head);
    const Positions keys = place.keys_of(w->first_q, w->last_q);
    const Positions queries = place.queries_of(w->first_kv, w->last_kv);
    *out = {keys.first, keys.last, queries.first, queries.last,
            place.first_key(w->first_q), place.last_key(w->first_q),
            place.first_query(w->first_kv), place.last_query(w->first_kv),
            place.band_holds(w->first_q, w->last_q, w->first_kv, w->last_kv)};
}
)";

// Visible elements among some queries and keys, as rows of the tensors.
struct Seen {
    int count = 0, first_q = kQueries, last_q = -1, first_kv = kKeys, last_kv = -1;
};
Seen look(const std::vector<bool>& visible, Window w) {
    Seen seen;
    for (int q = w.first_q; q <= w.last_q; ++q)
        for (int kv = w.first_kv; kv <= w.last_kv; ++kv)
            if (visible[static_cast<std::size_t>(q * kKeys + kv)]) {
                ++seen.count;
                seen.first_q = std::min(seen.first_q, q);
                seen.last_q = std::max(seen.last_q, q);
                seen.first_kv = std::min(seen.first_kv, kv);
                seen.last_kv = std::max(seen.last_kv, kv);
            }
    return seen;
}

void check(const std::vector<bool>& visible, const Window& w, const Answer& found) {
    // Ends are clipped to the tensors by those who ask.
    const auto inside = [](int position, int length) {
        return std::max(0, std::min(position, length - 1));
    };
    const Seen all = look(visible, w);
    CHECK((found.holds != 0) ==
          (all.count == (w.last_q - w.first_q + 1) * (w.last_kv - w.first_kv + 1)));
    const Seen of_row = look(visible, {0, w.first_q, w.first_q, 0, kKeys - 1});
    const int first = std::max(found.first_of_row, 0);
    const int last = std::min(found.last_of_row, kKeys - 1);
    CHECK(std::max(0, last - first + 1) == of_row.count);
    if (of_row.count > 0) CHECK(first == of_row.first_kv);
    const Seen of_key = look(visible, {0, 0, kQueries - 1, w.first_kv, w.first_kv});
    const int first_query = std::max(found.first_of_key, 0);
    const int last_query = std::min(found.last_of_key, kQueries - 1);
    CHECK(std::max(0, last_query - first_query + 1) >= of_key.count);
    if (of_key.count > 0) {
        CHECK(first_query <= of_key.first_q);
        CHECK(last_query >= of_key.last_q);
    }
    const Seen of_rows = look(visible, {0, w.first_q, w.last_q, 0, kKeys - 1});
    if (of_rows.count > 0) {
        CHECK(inside(found.first_key, kKeys) <= of_rows.first_kv);
        CHECK(inside(found.last_key, kKeys) >= of_rows.last_kv);
    }
    const Seen of_keys = look(visible, {0, 0, kQueries - 1, w.first_kv, w.last_kv});
    if (of_keys.count > 0) {
        CHECK(inside(found.first_query, kQueries) <= of_keys.first_q);
        CHECK(inside(found.last_query, kQueries) >= of_keys.last_q);
    }
}

} // namespace

TEST_CASE("ranges of clamped bands hold what is visible, and no more for one query") {
    const std::vector<test::MaskCase> cases = test::clamped_cases();
    for (const test::MaskCase& one : cases) {
        const passes::Mod mod = test::lowered(one.text, {.backward = false, .clamps_bands = true});
        REQUIRE(mod.band.clamps);
        plan::KernelConfig config;
        config.kind = plan::KernelKind::forward;
        std::string text = test::emitted(mod, config, {});
        text.replace(text.find("#pragma once"), 12, "");
        // place.cuh asks for the file mod.cuh, which is this text.
        const test::HostModule module(std::string(kPrelude) + text + std::string(kCaller));
        auto* answer = module.function<Function>("answer");
        for (const auto& [q_offset, kv_offset] : {std::pair{0, 0}, {9, 4}}) {
            CAPTURE(one.text);
            CAPTURE(q_offset);
            test::MaskInstance mask(one, {kQueries + q_offset, kKeys + kv_offset}, true);
            AttentionArguments attention{};
            attention.batch = attention.heads = attention.kv_heads = 2;
            attention.q_len = kQueries;
            attention.kv_len = kKeys;
            attention.q_offset = q_offset;
            attention.kv_offset = kv_offset;
            for (int b = 0; b < 2; ++b) {
                const test::HostArguments arguments(mask.mod(), mask.move(b, 1));
                std::vector<bool> visible;
                for (int q = 0; q < kQueries; ++q)
                    for (int kv = 0; kv < kKeys; ++kv)
                        visible.push_back(mask.visible(q + q_offset, kv + kv_offset));
                for (int q = 0; q < kQueries; q += 16)
                    for (int kv = 0; kv < kKeys; kv += 16) {
                        const Window window{2 * b + 1, q, std::min(q + 15, kQueries - 1), kv,
                                            std::min(kv + 15, kKeys - 1)};
                        Answer found{};
                        answer(arguments.words(), &attention, &window, &found);
                        CAPTURE(q);
                        CAPTURE(kv);
                        check(visible, window, found);
                    }
            }
        }
    }
}
