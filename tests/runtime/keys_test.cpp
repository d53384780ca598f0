// Layouts of keys: what their rows, classes and readers say together.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "flexc/flexc_c.h"
#include "fresh_seed.h"
#include "keys/all.h"
#include "runtime/keys/reader.h"
#include "runtime/length_checks.h"
#include "support/key_layout.h"

using namespace flexc;
using support::KeyAxis;

TEST_CASE("layouts of keys have the same numbers in C") {
    constexpr int kInC[] = {FLEXC_LAYOUT_DENSE, FLEXC_LAYOUT_RAGGED, FLEXC_LAYOUT_PAGED};
    REQUIRE(std::size(kInC) == support::key_layouts().size());
    for (std::size_t i = 0; i < std::size(kInC); ++i)
        CHECK(kInC[i] == static_cast<int>(support::key_layouts()[i].layout));
}

TEST_CASE("each layout of keys has a row, a reader and, where keys are not in order, a class") {
    for (std::size_t i = 0; i < support::key_layouts().size(); ++i) {
        const support::KeyLayout& row = support::key_layouts()[i];
        CAPTURE(row.name);
        CHECK(row.layout == static_cast<Layout>(i));
        CHECK(name(row.layout) == row.name);
        for (const KeyAxis axis : {KeyAxis::head, KeyAxis::row, KeyAxis::column})
            CHECK(row.axis(axis) >= 0);
        CHECK(std::ranges::count(row.dims, ',') + 1 == static_cast<long>(row.axes.size()));
        const runtime::KeyReader& reader = runtime::key_reader(row.layout);
        const bool in_order = with_key_layout(
            reader.table_layout, [](auto layout) { return decltype(layout)::Keys::kAreInOrder; });
        CHECK(row.is_in_order == in_order);
        CHECK(row.device_class.empty() == in_order);
        for (const std::string_view array : reader.arrays)
            CHECK(std::ranges::count(runtime::kLengthArrays, array, &runtime::LengthArray::name) ==
                  1);
    }
}

TEST_CASE("classes of keys agree with themselves: places, runs and rows") {
    std::vector<int> numbers(40);
    std::iota(numbers.begin(), numbers.end(), 0);
    std::ranges::shuffle(numbers, std::mt19937(test::fresh_seed()));
    Sequence sequence{};
    sequence.kv_row = 3;
    sequence.first_number = 5;
    constexpr int kKeys = 60, kRequest = 2, kSize = 7;
    for (const support::KeyLayout& row : support::key_layouts()) {
        CAPTURE(row.name);
        const int layout = runtime::key_reader(row.layout).table_layout;
        const KeyTable table{numbers.data(), kSize, layout};
        with_key_layout(layout, [&](auto of) {
            const typename decltype(of)::Keys keys(table, sequence, kRequest);
            int found = 0;
            for (int key = 0; key < kKeys; key += found) {
                const KeyRun run = keys.run(key, kKeys - key);
                found = run.count;
                REQUIRE((found > 0 && found <= kKeys - key));
                for (int i = 0; i < found; ++i) {
                    const KeyPlace place = keys.place(key + i);
                    CHECK(place.entry == run.entry);
                    CHECK(place.row == run.row + i);
                    CHECK(keys.row(key + i) == keys.row(key) + i);
                }
            }
        });
    }
    const KeysInPages pages({numbers.data(), kSize, KeysInPages::kLayout}, sequence, kRequest);
    CHECK(pages.place(16).entry == numbers[5 + 2]);
    CHECK(pages.place(16).row == 2);
    CHECK(pages.row(16) == numbers[7] * 7 + 2);
    CHECK(KeysInOrder({}, sequence, kRequest).row(16) == 19);
}
