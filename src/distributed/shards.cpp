#include <algorithm>
#include <utility>

#include "analysis/range.h"
#include "flexc/distributed.h"
#include "support/guarded.h"
#include "support/text.h"

namespace flexc {

namespace {

Error invalid(std::string message) { return {ErrorCode::invalid_option, std::move(message)}; }

Result<void> check(std::int64_t length, int ranks) {
    if (ranks < 1 || ranks > kMaxRanks)
        return invalid(
            formatted("shards of {} ranks: there must be between 1 and {}", ranks, kMaxRanks));
    if (length < 1 || length >= analysis::kMaxLength)
        return invalid(formatted("shards of {} rows: there must be between 1 and {}", length,
                                 analysis::kMaxLength - 1));
    return {};
}

// Piece `index` of `count` pieces, as even as possible.
RowRange piece(std::int64_t length, std::int64_t count, std::int64_t index) {
    const std::int64_t least = length / count, longer = length % count;
    const std::int64_t begin = index * least + std::min(index, longer);
    return {begin, begin + least + (index < longer ? 1 : 0)};
}

// Appends a range; joins adjacent ranges and skips empty ones.
void append(std::vector<RowRange>& ranges, RowRange next) {
    if (next.count() == 0) return;
    if (!ranges.empty() && ranges.back().end == next.begin)
        ranges.back().end = next.end;
    else
        ranges.push_back(next);
}

} // namespace

Result<Shards> Shards::contiguous(std::int64_t length, int ranks) {
    return guarded([&]() -> Result<Shards> {
        if (auto checked = check(length, ranks); !checked) return checked.error();
        std::vector<std::vector<RowRange>> ranges(static_cast<std::size_t>(ranks));
        for (int rank = 0; rank < ranks; ++rank)
            append(ranges[static_cast<std::size_t>(rank)], piece(length, ranks, rank));
        return Shards(length, std::move(ranges));
    });
}

Result<Shards> Shards::zigzag(std::int64_t length, int ranks) {
    return guarded([&]() -> Result<Shards> {
        if (auto checked = check(length, ranks); !checked) return checked.error();
        const std::int64_t count = 2 * std::int64_t{ranks};
        std::vector<std::vector<RowRange>> ranges(static_cast<std::size_t>(ranks));
        for (int rank = 0; rank < ranks; ++rank) {
            append(ranges[static_cast<std::size_t>(rank)], piece(length, count, rank));
            append(ranges[static_cast<std::size_t>(rank)], piece(length, count, count - 1 - rank));
        }
        return Shards(length, std::move(ranges));
    });
}

Result<Shards> Shards::striped(std::int64_t length, int ranks, std::int64_t rows) {
    return guarded([&]() -> Result<Shards> {
        if (auto checked = check(length, ranks); !checked) return checked.error();
        if (rows < 1) return invalid(formatted("stripes of {} rows: at least 1", rows));
        std::vector<std::vector<RowRange>> ranges(static_cast<std::size_t>(ranks));
        std::size_t rank = 0;
        for (std::int64_t begin = 0; begin < length; begin += rows) {
            append(ranges[rank], {begin, std::min(begin + rows, length)});
            rank = (rank + 1) % ranges.size();
        }
        return Shards(length, std::move(ranges));
    });
}

Result<Shards> Shards::of(std::int64_t length, std::vector<std::vector<RowRange>> ranges) {
    return guarded([&]() -> Result<Shards> {
        if (auto checked = check(length, static_cast<int>(ranges.size())); !checked)
            return checked.error();
        std::vector<RowRange> all;
        for (std::vector<RowRange>& of_rank : ranges) {
            for (const RowRange& range : of_rank)
                if (range.begin < 0 || range.begin > range.end || range.end > length)
                    return invalid(formatted("rows {} to {} are not a range of {} rows",
                                             range.begin, range.end, length));
            std::vector<RowRange> joined;
            for (const RowRange& range : of_rank)
                append(joined, range);
            of_rank = std::move(joined);
            all.insert(all.end(), of_rank.begin(), of_rank.end());
        }
        std::ranges::sort(all, {}, &RowRange::begin);
        std::int64_t next = 0;
        for (const RowRange& range : all) {
            if (range.begin > next)
                return invalid(formatted("no rank holds rows {} to {}", next, range.begin));
            if (range.begin < next)
                return invalid(formatted("rows {} to {} are held twice", range.begin,
                                         std::min(next, range.end)));
            next = range.end;
        }
        if (next < length) return invalid(formatted("no rank holds rows {} to {}", next, length));
        return Shards(length, std::move(ranges));
    });
}

std::int64_t Shards::rows(int rank) const {
    std::int64_t rows = 0;
    for (const RowRange& range : ranges(rank))
        rows += range.count();
    return rows;
}

std::string_view name(Exchange exchange) {
    switch (exchange) {
    case Exchange::ring: return "ring";
    case Exchange::all_gather: return "all_gather";
    case Exchange::ulysses: return "ulysses";
    case Exchange::automatic: break;
    }
    return "automatic";
}

std::string_view name(GradientReduction reduction) {
    switch (reduction) {
    case GradientReduction::none: return "none";
    case GradientReduction::average: return "average";
    case GradientReduction::sum: break;
    }
    return "sum";
}

} // namespace flexc
