// Which part of which request a block of forward_few.cu has, and which tiles of keys a part has,
// run on the host.
#include <cstddef>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "common/arguments.h"
#include "common/sequences.h"
#include "cuda/emitted.h"
#include "front/compile_text.h"
#include "host_module.h"
#include "passes/pipeline.h"
#include "plan/plan.h"
#include "sm80/arguments.h"

namespace {

using namespace flexc;

constexpr std::string_view kText = R"(
#include "mod.cuh"
#include "sm80/few_tiles.cuh"
// All parts, and those behind the last.
extern "C" void find(const sm80::KernelArguments* attention, int count, int* found) {
    run_warp([&](int lane) {
        for (int part = 0; part < count; ++part) {
            const sm80::PartOfRequest at = sm80::part_of_request(*attention, part);
            if (lane != part % 32) continue;
            found[3 * part] = at.request, found[3 * part + 1] = at.part;
            found[3 * part + 2] = at.count;
        }
    });
}
extern "C" void divide(int tiles, int part, int parts, int* range) {
    const TileRange own = sm80::tiles_of_part(tiles, {0, part, parts});
    range[0] = own.begin, range[1] = own.end;
}
)";

test::HostModule compiled(Layout layout = Layout::ragged) {
    front::Output output =
        front::compile_text({.source = dsl::Source("<test>", "score_mod = score"),
                             .query_layout = layout,
                             .key_layout = layout});
    REQUIRE_MESSAGE(output.program.has_value(), output.rendered);
    auto mod = passes::lower(std::move(*output.program), {.backward = false});
    REQUIRE(mod.has_value());
    return test::HostModule(std::string(kText),
                            test::emitted(*mod, plan::candidates({.arch = 80}).front()));
}

} // namespace

TEST_CASE("blocks find the request of their part of the keys") {
    const test::HostModule module = compiled();
    auto* find = module.function<void(const sm80::KernelArguments*, int, int*)>("find");
    std::mt19937 random(5);
    for (const int requests : {1, 2, 30, 31, 32, 33, 100, 991, 992, 1023, 1024, 2500}) {
        CAPTURE(requests);
        std::vector<Sequence> sequences(static_cast<std::size_t>(requests) + 1);
        std::vector<int> expected;
        int parts = 0;
        for (int request = 0; request <= requests; ++request) {
            sequences[static_cast<std::size_t>(request)].first_part = parts;
            const int own = request == requests || random() % 3 == 0 ? 0 : 1 + int(random() % 3);
            for (int part = 0; part < own; ++part)
                expected.insert(expected.end(), {request, part, own});
            parts += own;
        }
        constexpr int kBehind = 5;
        expected.insert(expected.end(), 3 * kBehind, 0);
        sm80::KernelArguments attention{};
        attention.batch = requests;
        attention.sequences.sequences = sequences.data();
        std::vector<int> found(expected.size(), -1);
        find(&attention, parts + kBehind, found.data());
        CHECK(found == expected);
    }
}

TEST_CASE("blocks of dense tensors find the batch entry of their part, of which all have as many") {
    const test::HostModule module = compiled(Layout::dense);
    auto* find = module.function<void(const sm80::KernelArguments*, int, int*)>("find");
    for (const int batch : {1, 2, 33, 128})
        for (const int parts : {1, 3, 12, 198}) {
            CAPTURE(batch);
            CAPTURE(parts);
            std::vector<int> expected;
            for (int entry = 0; entry < batch; ++entry)
                for (int part = 0; part < parts; ++part)
                    expected.insert(expected.end(), {entry, part, parts});
            sm80::KernelArguments attention{};
            attention.batch = batch;
            attention.entry_parts = parts;
            std::vector<int> found(expected.size(), -1);
            find(&attention, batch * parts, found.data());
            CHECK(found == expected);
        }
}

TEST_CASE("parts of a request have all of its tiles, and as many as others or one more") {
    const test::HostModule module = compiled();
    auto* divide = module.function<void(int, int, int, int*)>("divide");
    for (const int tiles : {0, 1, 7, 64, 1000, 1 << 27})
        for (const int parts : {1, 2, 3, 48, 1584}) {
            CAPTURE(tiles);
            CAPTURE(parts);
            int end = 0;
            for (int part = 0; part < parts; ++part) {
                int range[2];
                divide(tiles, part, parts, range);
                CHECK(range[0] == end);
                end = range[1];
                const int own = end - range[0];
                CHECK((own == tiles / parts || (own == tiles / parts + 1 && tiles % parts != 0)));
            }
            CHECK(end == tiles);
        }
}

TEST_CASE("keys are divided into as many parts as take the least time") {
    struct Requests {
        int count, queries, keys;
    };
    const auto parts_of = [](const Requests& requests, int group, int kv_heads) {
        Sequence sequence{};
        sequence.q_len = requests.queries;
        sequence.kv_len = requests.keys;
        FewRequests all;
        for (int i = 0; i < requests.count; ++i)
            all = joined(all, few_of(sequence, group));
        const long long keys = shared_part_keys(all, kv_heads, [&](const PartKeys& divisions) {
            PartsByDivision parts;
            for (int i = 0; i < requests.count; ++i)
                add_parts(parts, divisions, sequence, group);
            return parts;
        });
        return parts_by(sequence, group, keys).count;
    };
    // Few rows leave little to join: parts fill a wave, or two where one would leave much empty.
    CHECK(parts_of({4, 1, 32768}, 4, 8) == 12);
    CHECK(parts_of({32, 1, 4096}, 4, 8) == 3);
    CHECK(parts_of({128, 1, 1024}, 4, 8) == 1);
    // Of 64 rows a part leaves much, so that one for each multiprocessor may be enough.
    CHECK(parts_of({32, 1, 8192}, 64, 1) == 12);
    CHECK(parts_of({128, 1, 1024}, 64, 1) == 1);
    CHECK(parts_of({32, 16, 4096}, 4, 8) == 1);
    CHECK(parts_of({8, 16, 16384}, 4, 8) == 6);
    CHECK(parts_of({1, 1, 131072}, 4, 8) == 48);
}
