#include "keys/in_pages.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "runtime/buffers.h"
#include "runtime/keys/reader.h"
#include "runtime/length_checks.h"
#include "support/text.h"

namespace flexc::runtime {

namespace {

constexpr std::int64_t kMostPages = INT32_MAX;
constexpr std::array<std::string_view, 4> kPageArrays = {"page_table", "page_indptr",
                                                         "page_indices", "last_page_len"};

Result<KeyExtents> page_extents(const Lengths& lengths, const Sizes& /*sizes*/) {
    if (lengths.page_size < 1 || lengths.page_size > kMaxPageSize)
        return invalid(formatted("page_size is {}; it must be between 1 and {}", lengths.page_size,
                                 kMaxPageSize));
    if (lengths.pages < 0 || lengths.pages > kMostPages)
        return invalid(
            formatted("pages is {}; it must be between 0 and {}", lengths.pages, kMostPages));
    return KeyExtents{.entries = lengths.pages, .rows = lengths.page_size};
}

Result<void> check_page_arrays(const Lengths& lengths, std::int64_t batch) {
    if (lengths.page_indptr.empty()) {
        for (auto [name, numbers] : {std::pair{"page_indices", lengths.page_indices},
                                     std::pair{"last_page_len", lengths.last_page_len}})
            if (auto checked = check_absent(name, numbers, "it goes with page_indptr"); !checked)
                return checked;
        if (auto checked = check_count("seqused_k", lengths.seqused_k, batch); !checked)
            return checked;
        const auto entries = static_cast<std::int64_t>(lengths.page_table.size());
        if (batch == 0 ? entries != 0 : entries % batch != 0)
            return invalid(
                formatted("page_table: {} numbers are no table of {} requests", entries, batch));
        return {};
    }
    if (auto checked =
            check_absent("page_table", lengths.page_table, "pages are given by page_indptr too");
        !checked)
        return checked;
    if (auto checked = check_count("page_indptr", lengths.page_indptr, batch + 1); !checked)
        return checked;
    for (auto [name, numbers] : {std::pair{"last_page_len", lengths.last_page_len},
                                 std::pair{"seqused_k", lengths.seqused_k}})
        if (!numbers.empty())
            if (auto checked = check_count(name, numbers, batch); !checked) return checked;
    if (batch > 0 && lengths.last_page_len.empty() && lengths.seqused_k.empty())
        return invalid("last_page_len: missing; it or seqused_k says how many keys a request has");
    return {};
}

Result<void> check_page_order(const Lengths& lengths) {
    if (auto checked = check_ascending("page_indptr", lengths.page_indptr); !checked)
        return checked;
    const auto indices = static_cast<std::int64_t>(lengths.page_indices.size());
    if (!lengths.page_indptr.empty() && lengths.page_indptr.back() > indices)
        return invalid(formatted("page_indptr ends at {}; page_indices has {} numbers",
                                 lengths.page_indptr.back(), indices));
    return {};
}

// Returns the page ids of a request, in order.
Numbers pages_of(const Lengths& lengths, std::size_t request, std::size_t requests) {
    if (lengths.page_indptr.empty()) {
        const std::size_t width = lengths.page_table.size() / requests;
        return lengths.page_table.subspan(request * width, width);
    }
    const auto first = static_cast<std::size_t>(lengths.page_indptr[request]);
    const auto end = static_cast<std::size_t>(lengths.page_indptr[request + 1]);
    return lengths.page_indices.subspan(first, end - first);
}

// Returns the number of keys of a request that has so many pages.
Result<std::int64_t> keys_in_pages(const Lengths& lengths, std::size_t request,
                                   std::int64_t pages) {
    std::int64_t slots = pages * lengths.page_size;
    if (!lengths.last_page_len.empty() && pages > 0) {
        const std::int64_t last = lengths.last_page_len[request];
        if (last < 1 || last > lengths.page_size)
            return invalid(formatted("last_page_len[{}] is {}; it must be between 1 and the page "
                                     "size, {}",
                                     request, last, lengths.page_size));
        slots += last - lengths.page_size;
    }
    if (lengths.seqused_k.empty()) return slots;
    const std::int64_t used = lengths.seqused_k[request];
    if (used < 0 || used > slots)
        return invalid(formatted("seqused_k[{}] is {}; the request's pages have {} slots", request,
                                 used, slots));
    return used;
}

Result<void> check_ids(Numbers ids, std::size_t request, std::int64_t pages) {
    const auto is_there = [&](std::int32_t id) {
        return static_cast<std::uint32_t>(id) < static_cast<std::uint32_t>(pages);
    };
    // No branch for each id, because a step of a server has many ids.
    bool are_there = true;
    for (const std::int32_t id : ids)
        are_there &= is_there(id);
    if (are_there) return {};
    const auto bad = std::ranges::find_if_not(ids, is_there);
    return invalid(formatted("page {} of request {} is {}; the cache has {} pages",
                             bad - ids.begin(), request, *bad, pages));
}

Result<void> read_keys_in_pages(Layout /*layout*/, const Lengths& lengths, const Sizes& sizes,
                                std::span<Sequence> sequences, std::vector<int>& numbers) {
    numbers.reserve(std::max(lengths.page_table.size(), lengths.page_indices.size()));
    for (std::size_t request = 0; request < sequences.size(); ++request) {
        const Numbers ids = pages_of(lengths, request, sequences.size());
        auto keys = keys_in_pages(lengths, request, static_cast<std::int64_t>(ids.size()));
        if (!keys) return keys.error();
        if (*keys > sizes.kv_len)
            return invalid(formatted("request {} has {} keys; the plan's kv_len allows {}", request,
                                     *keys, sizes.kv_len));
        Sequence& sequence = sequences[request];
        sequence.kv_len = sequence.kv_rows = static_cast<int>(*keys);
        sequence.first_number = static_cast<long long>(numbers.size());
        const int pages =
            ::KeysInPages::pages_that_hold(sequence.kv_len, static_cast<int>(lengths.page_size));
        const Numbers own = ids.first(static_cast<std::size_t>(pages));
        if (auto checked = check_ids(own, request, lengths.pages); !checked) return checked;
        numbers.insert(numbers.end(), own.begin(), own.end());
    }
    return {};
}

} // namespace

const KeyReader kKeysInPages = {
    .table_layout = ::KeysInPages::kLayout,
    .arrays = kPageArrays,
    .extents = page_extents,
    .check_arrays = check_page_arrays,
    .check_order = check_page_order,
    .read = read_keys_in_pages,
    .most_numbers = [](const Sizes& sizes, const KeyExtents& extents) -> std::int64_t {
        return (sizes.kv_len + extents.rows - 1) / extents.rows;
    }};

} // namespace flexc::runtime
