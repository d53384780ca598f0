// Shards and schedules alone, without data: every visible pair once, what travels, balance.
#include "distributed/schedule.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <string>

#include "fresh_seed.h"
#include "support/text.h"

using namespace flexc;
using namespace flexc::distributed;
using analysis::TileClass;

namespace {

using Mask = std::function<bool(std::int64_t q, std::int64_t kv)>;

VisibleMap map_of(std::int64_t q_len, std::int64_t kv_len, std::int64_t tile, const Mask& mask) {
    VisibleMap map(q_len, kv_len, tile);
    map.add([&](std::int64_t query_tile, std::int64_t key_tile) {
        std::int64_t seen = 0, all = 0;
        for (std::int64_t q = query_tile * tile; q < std::min(q_len, (query_tile + 1) * tile); ++q)
            for (std::int64_t kv = key_tile * tile; kv < std::min(kv_len, (key_tile + 1) * tile);
                 ++kv, ++all)
                seen += mask(q, kv) ? 1 : 0;
        return seen == 0 ? TileClass::empty : seen == all ? TileClass::full : TileClass::partial;
    });
    return map;
}

// The same where a tile's corners tell.
VisibleMap causal_map(std::int64_t length, std::int64_t tile) {
    VisibleMap map(length, length, tile);
    map.add([](std::int64_t q, std::int64_t kv) {
        return q > kv ? TileClass::full : q == kv ? TileClass::partial : TileClass::empty;
    });
    return map;
}

// How often each element of the score matrix is computed, by all ranks together.
std::vector<int> coverage(const Schedule& schedule, std::int64_t q_len, std::int64_t kv_len) {
    std::vector<int> times(static_cast<std::size_t>(q_len * kv_len));
    for (int rank = 0; rank < schedule.ranks(); ++rank)
        for (const Step& step : schedule.of(rank).steps)
            for (const Piece& piece : step.pieces)
                for (std::int64_t q = piece.queries.begin; q < piece.queries.end; ++q)
                    for (std::int64_t kv = piece.keys.begin; kv < piece.keys.end; ++kv)
                        ++times[static_cast<std::size_t>(q * kv_len + kv)];
    return times;
}

bool holds(std::span<const RowRange> ranges, std::int64_t row) {
    return std::ranges::any_of(
        ranges, [&](const RowRange& range) { return row >= range.begin && row < range.end; });
}

// What is visible is computed once, and nothing twice.
void check_coverage(const Schedule& schedule, std::int64_t q_len, std::int64_t kv_len,
                    const Mask& mask) {
    const std::vector<int> times = coverage(schedule, q_len, kv_len);
    for (std::int64_t q = 0; q < q_len; ++q)
        for (std::int64_t kv = 0; kv < kv_len; ++kv) {
            const int count = times[static_cast<std::size_t>(q * kv_len + kv)];
            if (count > 1 || (count == 0 && mask(q, kv))) {
                FAIL_CHECK("element " << q << ", " << kv << " is computed " << count << " times");
                return;
            }
        }
}

void check_schedule(const Shards& queries, const Shards& keys, const VisibleMap& map,
                    const Mask& mask, Exchange exchange) {
    const Schedule schedule(queries, keys, map, exchange);
    check_coverage(schedule, queries.length(), keys.length(), mask);
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
        const auto& steps = schedule.of(rank).steps;
        for (std::size_t at = 0; at < steps.size(); ++at) {
            const Step& step = steps[at];
            for (const Piece& piece : step.pieces) {
                CHECK(piece.queries.count() > 0);
                CHECK(piece.keys.count() > 0);
                // Whose queries they are, and that their keys have arrived.
                CHECK(std::ranges::any_of(queries.ranges(rank), [&](const RowRange& range) {
                    return range.begin <= piece.queries.begin && piece.queries.end <= range.end;
                }));
                for (std::int64_t kv = piece.keys.begin; kv < piece.keys.end; ++kv)
                    CHECK(std::ranges::any_of(
                        step.arrivals, [&](const Share& share) { return holds(share.runs, kv); }));
            }
            for (const Share& share : step.arrivals) {
                for (const RowRange& run : share.runs)
                    CHECK(std::ranges::any_of(keys.ranges(share.peer), [&](const RowRange& range) {
                        return range.begin <= run.begin && run.end <= range.end;
                    }));
                if (share.peer == rank) continue;
                // The other side knows, in the same step.
                const auto& sent = schedule.of(share.peer).steps[at].departures;
                CHECK(std::ranges::count_if(sent, [&](const Share& other) {
                          return other.peer == rank && other.runs == share.runs;
                      }) == 1);
            }
        }
    }
}

std::vector<std::vector<RowRange>> random_ranges(std::mt19937& random, std::int64_t length,
                                                 int ranks) {
    std::vector<std::vector<RowRange>> ranges(static_cast<std::size_t>(ranks));
    for (std::int64_t begin = 0; begin < length;) {
        const auto rows = static_cast<std::int64_t>(random() % 40 + 1);
        // Some ranks hold nothing.
        ranges[random() % 3 == 0 ? 0 : random() % ranges.size()].push_back(
            {begin, std::min(begin + rows, length)});
        begin += rows;
    }
    for (auto& of_rank : ranges)
        std::shuffle(of_rank.begin(), of_rank.end(), random);
    return ranges;
}

const Mask kCausal = [](std::int64_t q, std::int64_t kv) { return q >= kv; };

} // namespace

TEST_CASE("shards hold every row once, as evenly as can be") {
    for (const int ranks : {1, 2, 3, 8, 64})
        for (const std::int64_t length : {1, 2, 7, 63, 64, 1000}) {
            const Shards all[] = {*Shards::contiguous(length, ranks),
                                  *Shards::zigzag(length, ranks),
                                  *Shards::striped(length, ranks, 5)};
            for (const Shards& shards : all) {
                std::vector<int> times(static_cast<std::size_t>(length));
                std::int64_t rows = 0;
                for (int rank = 0; rank < ranks; ++rank) {
                    rows += shards.rows(rank);
                    for (const RowRange& range : shards.ranges(rank))
                        for (std::int64_t row = range.begin; row < range.end; ++row)
                            ++times[static_cast<std::size_t>(row)];
                }
                CHECK(rows == length);
                CHECK(std::ranges::all_of(times, [](int count) { return count == 1; }));
            }
            for (int rank = 0; rank < ranks; ++rank) {
                const std::int64_t rows = all[0].rows(rank);
                CHECK((rows == length / ranks || rows == length / ranks + 1));
                CHECK(std::abs(all[1].rows(rank) * ranks - length) <= 2 * ranks);
            }
        }
}

TEST_CASE("shards that do not hold every row once are refused, with the rows") {
    const auto message = [](std::vector<std::vector<RowRange>> ranges) {
        const auto shards = Shards::of(10, std::move(ranges));
        REQUIRE(!shards);
        return shards.error().message;
    };
    CHECK(message({{{0, 4}}, {{6, 10}}}) == "no rank holds rows 4 to 6");
    CHECK(message({{{0, 4}}, {{4, 8}}}) == "no rank holds rows 8 to 10");
    CHECK(message({{{0, 6}}, {{4, 10}}}) == "rows 4 to 6 are held twice");
    CHECK(message({{{0, 12}}}) == "rows 0 to 12 are not a range of 10 rows");
    CHECK(message({{{4, 2}}}) == "rows 4 to 2 are not a range of 10 rows");
    CHECK(message({}) == "shards of 0 ranks: there must be between 1 and 1048576");
    CHECK(!Shards::contiguous(0, 2));
    for (const int ranks : {kMaxRanks + 1, std::numeric_limits<int>::max()}) {
        CHECK(!Shards::contiguous(8, ranks));
        CHECK(!Shards::zigzag(8, ranks));
        CHECK(!Shards::striped(8, ranks, 1));
    }
    CHECK(Shards::contiguous(8, kMaxRanks)->rows(7) == 1);
    CHECK(!Shards::striped(8, 2, 0));
    const auto empty = Shards::of(10, {{}, {{5, 10}, {0, 5}}, {{3, 3}}});
    REQUIRE(empty);
    CHECK(empty->rows(0) == 0);
    CHECK(empty->rows(1) == 10);
    CHECK(empty->ranges(1).size() == 2);
}

TEST_CASE("every visible pair is computed once, by any shards, in any exchange") {
    std::mt19937 random(test::fresh_seed());
    const std::pair<const char*, Mask> masks[] = {
        {"none", [](std::int64_t, std::int64_t) { return true; }},
        {"causal", kCausal},
        {"window", [](std::int64_t q, std::int64_t kv) { return q >= kv && q - kv < 30; }},
        {"documents", [](std::int64_t q, std::int64_t kv) { return q / 37 == kv / 37; }},
        {"prefix", [](std::int64_t q, std::int64_t kv) { return kv < 25 || q >= kv; }},
        {"scattered",
         [](std::int64_t q, std::int64_t kv) { return (q / 16 * 7 + kv / 16) % 5 == 0; }},
        {"nothing", [](std::int64_t, std::int64_t) { return false; }},
    };
    for (const auto& [name, mask] : masks) {
        CAPTURE(name);
        for (const auto& [q_len, kv_len] :
             {std::pair<std::int64_t, std::int64_t>{200, 200}, {97, 211}, {5, 130}}) {
            const VisibleMap map = map_of(q_len, kv_len, 16, mask);
            for (int ranks = 1; ranks <= 8; ++ranks)
                for (const Exchange exchange : {Exchange::ring, Exchange::all_gather}) {
                    check_schedule(*Shards::contiguous(q_len, ranks),
                                   *Shards::contiguous(kv_len, ranks), map, mask, exchange);
                    check_schedule(*Shards::zigzag(q_len, ranks), *Shards::zigzag(kv_len, ranks),
                                   map, mask, exchange);
                    check_schedule(*Shards::striped(q_len, ranks, 11),
                                   *Shards::contiguous(kv_len, ranks), map, mask, exchange);
                    check_schedule(*Shards::of(q_len, random_ranges(random, q_len, ranks)),
                                   *Shards::of(kv_len, random_ranges(random, kv_len, ranks)), map,
                                   mask, exchange);
                }
        }
    }
}

TEST_CASE("a gather begins with queries that see their own keys alone, while the others' travel") {
    const Shards shards = *Shards::zigzag(64, 2);
    const Schedule schedule(shards, shards, causal_map(64, 16), Exchange::all_gather);
    using Pieces = std::vector<std::pair<RowRange, RowRange>>;
    const auto pieces = [&](int rank, std::size_t step) {
        Pieces found;
        for (const Piece& piece : schedule.of(rank).steps.at(step).pieces)
            found.emplace_back(piece.queries, piece.keys);
        return found;
    };
    CHECK((pieces(0, 0) == Pieces{{{0, 16}, {0, 16}}}));
    CHECK((pieces(0, 1) == Pieces{{{48, 64}, {0, 64}}}));
    CHECK(pieces(1, 0).empty());
    for (int rank = 0; rank < 2; ++rank) {
        const Step& alone = schedule.of(rank).steps[0];
        CHECK(!alone.travels);
        CHECK(schedule.of(rank).steps[1].travels);
        CHECK(alone.departures.empty());
        for (const Share& share : alone.arrivals)
            CHECK(share.peer == rank);
    }
}

TEST_CASE("what is hidden does not travel: a window moves its own length") {
    constexpr std::int64_t kLength = 1 << 20, kWindow = 4096, kTile = 1024;
    VisibleMap map(kLength, kLength, kTile);
    map.add([](std::int64_t q, std::int64_t kv) {
        return kv > q || (q - kv) * kTile > kWindow + kTile ? TileClass::empty
               : q - kv == 0                                ? TileClass::partial
                                                            : TileClass::full;
    });
    const Shards shards = *Shards::contiguous(kLength, 8);
    for (const Exchange exchange : {Exchange::ring, Exchange::all_gather}) {
        const Schedule schedule(shards, shards, map, exchange);
        CHECK(schedule.received_rows(0) == 0);
        CHECK(schedule.sent_rows(7) == 0);
        for (int rank = 1; rank < 8; ++rank) {
            CHECK(schedule.received_rows(rank) >= kWindow);
            CHECK(schedule.received_rows(rank) <= kWindow + kTile);
            CHECK(schedule.sent_rows(rank - 1) == schedule.received_rows(rank));
        }
    }
}

TEST_CASE("64 and 1024 ranks: bytes, pieces and balance of causal zigzag") {
    for (const int ranks : {8, 64, 1024}) {
        const std::int64_t tile = 64, length = std::int64_t{ranks} * 2 * tile;
        CAPTURE(ranks);
        const VisibleMap map = causal_map(length, tile);
        const auto spread = [&](const Shards& shards) {
            const Schedule schedule(shards, shards, map, Exchange::ring);
            double most = 0, all = 0;
            for (int rank = 0; rank < ranks; ++rank) {
                double area = 0;
                for (const Step& step : schedule.of(rank).steps)
                    for (const Piece& piece : step.pieces)
                        area += map.area(piece.queries, piece.keys);
                most = std::max(most, area);
                all += area;
            }
            const double exact = static_cast<double>(length) * static_cast<double>(length) / 2;
            CHECK(all == doctest::Approx(exact));
            return most / (all / ranks);
        };
        CHECK(spread(*Shards::zigzag(length, ranks)) < 1.05);
        CHECK(spread(*Shards::contiguous(length, ranks)) > 1.8);
        if (ranks <= 64) CHECK(spread(balanced(map, ranks)) < 1.05);
    }
}

TEST_CASE("64 and 1024 ranks: every visible pair is computed once") {
    for (const int ranks : {64, 1024}) {
        CAPTURE(ranks);
        // Two rows of a rank, one of the front and one of the back.
        const std::int64_t length = std::int64_t{ranks} * 2;
        const VisibleMap map = causal_map(length, 1);
        const Shards shards = *Shards::zigzag(length, ranks);
        for (const Exchange exchange : {Exchange::ring, Exchange::all_gather})
            check_coverage(Schedule(shards, shards, map, exchange), length, length, kCausal);
    }
}

TEST_CASE("documents are dealt by area") {
    for (const int ranks : {8, 64, 1024}) {
        CAPTURE(ranks);
        // A map as plan() makes it: a tile of it is a whole rank's rows where there are many ranks.
        constexpr std::int64_t kLength = 1 << 20;
        const std::int64_t tile = map_tile(kLength, kLength);
        std::mt19937 random(7);
        std::vector<std::int64_t> document; // of each tile
        for (std::int64_t index = 0; std::ssize(document) * tile < kLength; ++index)
            document.insert(document.end(), 1 + random() % 60, index);
        VisibleMap map(kLength, kLength, tile);
        map.add([&](std::int64_t q, std::int64_t kv) {
            return document[static_cast<std::size_t>(q)] !=
                               document[static_cast<std::size_t>(kv)] ||
                           kv > q
                       ? TileClass::empty
                   : q == kv ? TileClass::partial
                             : TileClass::full;
        });
        const Shards shards = balanced(map, ranks);
        double most = 0, all = 0;
        for (int rank = 0; rank < ranks; ++rank) {
            CHECK(shards.rows(rank) == kLength / ranks);
            double area = 0;
            for (const RowRange& range : shards.ranges(rank))
                area += map.area(range, {0, kLength});
            most = std::max(most, area);
            all += area;
        }
        CHECK(most / (all / ranks) < 1.05);
        // Time grows with the number of ranks, not with its square.
        if (ranks == 8) CHECK(balanced(map, 1 << 17).rows(0) == kLength >> 17);
    }
}

TEST_CASE("the model: what waits for keys and what is uneven costs, what is hidden behind work "
          "does not") {
    constexpr int kRanks = 8;
    const std::int64_t length = 8192 * kRanks;
    const VisibleMap map = causal_map(length, 1024);
    // 32 heads of 128 at 400 TFLOP/s; 8 key heads in bf16.
    const double heads = 32, elements = 400e12 / (4 * 128), bytes_per_key = 2.0 * 8 * 128 * 2;
    const auto efficiency = [&](const Shards& shards, double bandwidth) {
        const Schedule schedule(shards, shards, map, Exchange::ring);
        return modelled_efficiency(schedule, map, heads, bytes_per_key,
                                   {elements, bandwidth, 1e-5});
    };
    const Shards zigzag = *Shards::zigzag(length, kRanks);
    CHECK(efficiency(zigzag, 400e9) > 0.97);
    CHECK(efficiency(*Shards::contiguous(length, kRanks), 400e9) < 0.6);
    CHECK(efficiency(zigzag, 4e9) < 0.7);
}

// The table of docs/distributed.md: --no-skip -tc="table*".
TEST_CASE("table: schedules of 8, 64 and 1024 ranks" * doctest::skip()) {
    constexpr std::int64_t kRows = 8192, kTile = kRows / 2;
    constexpr double kHeads = 32, kBytesPerKey = 2.0 * 8 * 128 * 2, kElements = 400e12 / (4 * 128);
    std::string text;
    for (const int ranks : {8, 64, 1024}) {
        const std::int64_t length = kRows * ranks;
        const VisibleMap map = causal_map(length, kTile);
        const std::pair<const char*, Shards> all[] = {
            {"contiguous", *Shards::contiguous(length, ranks)},
            {"zigzag", *Shards::zigzag(length, ranks)}};
        for (const auto& [name, shards] : all) {
            const Schedule schedule(shards, shards, map, Exchange::ring);
            double keys = 0, most_keys = 0, most_area = 0, area = 0;
            for (int rank = 0; rank < ranks; ++rank) {
                const auto received = static_cast<double>(schedule.received_rows(rank));
                keys += received / ranks;
                most_keys = std::max(most_keys, received);
                double own = 0;
                for (const RowRange& range : shards.ranges(rank))
                    own += map.area(range, {0, length});
                most_area = std::max(most_area, own);
                area += own / ranks;
            }
            const auto fraction = [&, &own = shards](double bandwidth) {
                return modelled_efficiency(Schedule(own, own, map, Exchange::ring), map, kHeads,
                                           kBytesPerKey, {kElements, bandwidth, 1e-5});
            };
            text += formatted("| {} | {} | {:.1f} | {:.1f} | {:.3f} | {:.2f} | {:.2f} |\n", ranks,
                              name, keys * kBytesPerKey / 1e6, most_keys * kBytesPerKey / 1e6,
                              most_area / area, fraction(400e9), fraction(25e9));
        }
    }
    MESSAGE("\n" << text);
}
