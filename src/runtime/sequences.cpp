#include "runtime/sequences.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "analysis/range.h"
#include "runtime/buffers.h"
#include "support/amounts.h"
#include "support/text.h"

namespace flexc::runtime {

namespace {

using Numbers = std::span<const std::int32_t>;

constexpr std::int64_t kMostPages = INT32_MAX;

Result<void> check_count(std::string_view name, Numbers numbers, std::int64_t expected) {
    if (static_cast<std::int64_t>(numbers.size()) == expected) return {};
    if (numbers.empty())
        return invalid(formatted("{}: missing; expected {} numbers", name, expected));
    return invalid(formatted("{}: expected {} numbers, got {}", name, expected, numbers.size()));
}

Result<void> check_absent(std::string_view name, Numbers numbers, std::string_view reason) {
    if (numbers.empty()) return {};
    return invalid(formatted("{}: {}", name, reason));
}

Result<void> check_numbers(std::string_view name, const TensorView& tensor) {
    if (auto checked = check_view(tensor, name); !checked) return checked;
    if (tensor.dtype == DType::i32 && is_contiguous(tensor)) return {};
    return invalid(formatted("{}: expected a contiguous tensor of i32", name));
}

Result<void> check_ascending(std::string_view name, Numbers numbers) {
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        const std::int32_t before = i == 0 ? 0 : numbers[i - 1];
        if (numbers[i] >= before) continue;
        if (i == 0)
            return invalid(formatted("{}[0] is {}; it must not be negative", name, numbers[i]));
        return invalid(formatted("{}[{}] is {}, which is below {}[{}] = {}: it must ascend", name,
                                 i, numbers[i], name, i - 1, before));
    }
    return {};
}

// Every array of lengths: its name, in the host's memory, in the device's.
struct LengthArray {
    const char* name;
    Numbers Lengths::* on_host;
    TensorView LengthTensors::* on_device;
};
constexpr std::array<LengthArray, kLengthArrays> kArrays = {
    {{"cu_seqlens_q", &Lengths::cu_seqlens_q, &LengthTensors::cu_seqlens_q},
     {"cu_seqlens_k", &Lengths::cu_seqlens_k, &LengthTensors::cu_seqlens_k},
     {"seqused_q", &Lengths::seqused_q, &LengthTensors::seqused_q},
     {"seqused_k", &Lengths::seqused_k, &LengthTensors::seqused_k},
     {"page_table", &Lengths::page_table, &LengthTensors::page_table},
     {"page_indptr", &Lengths::page_indptr, &LengthTensors::page_indptr},
     {"page_indices", &Lengths::page_indices, &LengthTensors::page_indices},
     {"last_page_len", &Lengths::last_page_len, &LengthTensors::last_page_len},
     {"query_starts", &Lengths::query_starts, &LengthTensors::query_starts}}};

// Both ends of one axis, of queries or of keys that have no pages.
struct Axis {
    const char* cu_name;
    const char* used_name;
    const char* what;
    const char* size_name;
    Layout layout;
    Numbers cu_seqlens, used;
    std::int64_t most;
};

struct Part {
    std::int64_t row = 0, rows = 0, used = 0;
};

std::array<Axis, 2> axes_of(Layout queries, Layout keys, const Sizes& sizes,
                            const Lengths& lengths) {
    return {{{"cu_seqlens_q", "seqused_q", "queries", "q_len", queries, lengths.cu_seqlens_q,
              lengths.seqused_q, sizes.q_len},
             {"cu_seqlens_k", "seqused_k", "keys", "kv_len", keys, lengths.cu_seqlens_k,
              lengths.seqused_k, sizes.kv_len}}};
}

Result<void> check_axis(const Axis& axis, std::int64_t batch) {
    if (axis.layout == Layout::ragged) {
        if (auto checked = check_count(axis.cu_name, axis.cu_seqlens, batch + 1); !checked)
            return checked;
    } else if (auto checked = check_absent(
                   axis.cu_name, axis.cu_seqlens,
                   formatted("the kernel was compiled for {} that are not ragged", axis.what));
               !checked) {
        return checked;
    }
    if (!axis.used.empty()) return check_count(axis.used_name, axis.used, batch);
    return {};
}

Result<Part> part_of(const Axis& axis, std::size_t request) {
    Part part{.rows = axis.most};
    if (axis.layout == Layout::ragged) {
        part.row = axis.cu_seqlens[request];
        part.rows = axis.cu_seqlens[request + 1] - part.row;
    }
    part.used = axis.used.empty() ? part.rows : axis.used[request];
    if (part.used < 0 || part.used > part.rows)
        return invalid(formatted("{}[{}] is {}; the request has {} rows of {}", axis.used_name,
                                 request, part.used, part.rows, axis.what));
    if (part.used > axis.most)
        return invalid(formatted("request {} has {} {}; the plan's {} allows {}", request,
                                 part.used, axis.what, axis.size_name, axis.most));
    return part;
}

struct PageList {
    bool is_table = false;
    std::int64_t most = 0; // of a table: of one request

    Numbers of(const Lengths& lengths, std::size_t request) const {
        if (is_table)
            return lengths.page_table.subspan(request * static_cast<std::size_t>(most),
                                              static_cast<std::size_t>(most));
        const auto first = static_cast<std::size_t>(lengths.page_indptr[request]);
        const auto end = static_cast<std::size_t>(lengths.page_indptr[request + 1]);
        return lengths.page_indices.subspan(first, end - first);
    }
};

Result<void> check_cache(const Lengths& lengths) {
    if (lengths.page_size < 1 || lengths.page_size > kMaxPageSize)
        return invalid(formatted("page_size is {}; it must be between 1 and {}", lengths.page_size,
                                 kMaxPageSize));
    if (lengths.pages < 0 || lengths.pages > kMostPages)
        return invalid(
            formatted("pages is {}; it must be between 0 and {}", lengths.pages, kMostPages));
    return {};
}

Result<PageList> check_pages(const Lengths& lengths, std::int64_t batch) {
    if (auto checked = check_cache(lengths); !checked) return checked.error();
    PageList list;
    if (lengths.page_indptr.empty()) {
        list.is_table = true;
        for (auto [name, numbers] : {std::pair{"page_indices", lengths.page_indices},
                                     std::pair{"last_page_len", lengths.last_page_len}})
            if (auto checked = check_absent(name, numbers, "it goes with page_indptr"); !checked)
                return checked.error();
        if (auto checked = check_count("seqused_k", lengths.seqused_k, batch); !checked)
            return checked.error();
        const auto entries = static_cast<std::int64_t>(lengths.page_table.size());
        if (batch == 0 ? entries != 0 : entries % batch != 0)
            return invalid(
                formatted("page_table: {} numbers are no table of {} requests", entries, batch));
        list.most = batch == 0 ? 0 : entries / batch;
        return list;
    }
    if (auto checked =
            check_absent("page_table", lengths.page_table, "pages are given by page_indptr too");
        !checked)
        return checked.error();
    if (auto checked = check_count("page_indptr", lengths.page_indptr, batch + 1); !checked)
        return checked.error();
    for (auto [name, numbers] : {std::pair{"last_page_len", lengths.last_page_len},
                                 std::pair{"seqused_k", lengths.seqused_k}})
        if (!numbers.empty())
            if (auto checked = check_count(name, numbers, batch); !checked) return checked.error();
    if (batch > 0 && lengths.last_page_len.empty() && lengths.seqused_k.empty())
        return invalid("last_page_len: missing; it or seqused_k says how many keys a request has");
    return list;
}

// Which arrays there are, and how long; nothing of them is read.
Result<PageList> check_arrays(Layout queries, Layout keys, const Sizes& sizes,
                              const Lengths& lengths) {
    for (const Axis& axis : axes_of(queries, keys, sizes, lengths))
        if (auto checked = check_axis(axis, sizes.batch); !checked) return checked.error();
    if (!lengths.query_starts.empty())
        if (auto checked = check_count("query_starts", lengths.query_starts, sizes.batch); !checked)
            return checked.error();
    if (keys == Layout::paged) return check_pages(lengths, sizes.batch);
    for (auto [name, numbers] : {std::pair{"page_table", lengths.page_table},
                                 std::pair{"page_indptr", lengths.page_indptr},
                                 std::pair{"page_indices", lengths.page_indices},
                                 std::pair{"last_page_len", lengths.last_page_len}})
        if (auto checked =
                check_absent(name, numbers, "the kernel was compiled for keys without pages");
            !checked)
            return checked.error();
    return PageList();
}

Result<void> check_order(const Lengths& lengths) {
    for (auto [name, numbers] : {std::pair{"cu_seqlens_q", lengths.cu_seqlens_q},
                                 std::pair{"cu_seqlens_k", lengths.cu_seqlens_k},
                                 std::pair{"page_indptr", lengths.page_indptr}})
        if (auto checked = check_ascending(name, numbers); !checked) return checked;
    const auto indices = static_cast<std::int64_t>(lengths.page_indices.size());
    if (!lengths.page_indptr.empty() && lengths.page_indptr.back() > indices)
        return invalid(formatted("page_indptr ends at {}; page_indices has {} numbers",
                                 lengths.page_indptr.back(), indices));
    return {};
}

// How many keys a request has.
Result<std::int64_t> keys_of(const Lengths& lengths, std::size_t request, std::int64_t pages) {
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
    // Without a branch for each: a step of a server has many.
    bool are_there = true;
    for (const std::int32_t id : ids)
        are_there &= is_there(id);
    if (are_there) return {};
    const auto bad = std::ranges::find_if_not(ids, is_there);
    return invalid(formatted("page {} of request {} is {}; the cache has {} pages",
                             bad - ids.begin(), request, *bad, pages));
}

QueryStart resolved(QueryStart start, Layout keys) {
    if (start != QueryStart::automatic) return start;
    return keys == Layout::paged ? QueryStart::end : QueryStart::zero;
}

constexpr std::int64_t kFarthest = analysis::kMaxLength - 2; // q_idx from 0

Result<std::int32_t> start_of(const Lengths& lengths, Layout keys, std::size_t request,
                              const Sequence& sequence) {
    const bool is_end = resolved(lengths.query_start, keys) == QueryStart::end;
    std::int64_t first = is_end ? sequence.kv_len - sequence.q_len : 0;
    if (!lengths.query_starts.empty()) first = lengths.query_starts[request];
    if (first < -kFarthest || first + sequence.q_len > kFarthest)
        return invalid(formatted("query_starts[{}] is {}: q_idx would not be between {} and {}",
                                 request, first, -kFarthest, kFarthest));
    return static_cast<std::int32_t>(first);
}

} // namespace

Result<std::shared_ptr<Sequences>> Sequences::read(Layout queries, Layout keys, const Sizes& sizes,
                                                   const Lengths& lengths) {
    auto list = check_arrays(queries, keys, sizes, lengths);
    if (!list) return list.error();
    if (auto checked = check_order(lengths); !checked) return checked.error();
    const auto [q_axis, k_axis] = axes_of(queries, keys, sizes, lengths);
    const bool is_paged = keys == Layout::paged;
    auto result = std::make_shared<Sequences>();
    result->page_size = is_paged ? lengths.page_size : 0;
    result->pages = is_paged ? lengths.pages : 0;
    result->start = resolved(lengths.query_start, keys);
    result->sequences.reserve(static_cast<std::size_t>(sizes.batch));
    if (is_paged)
        result->page_ids_.reserve(std::max(lengths.page_table.size(), lengths.page_indices.size()));
    for (std::size_t request = 0; request < static_cast<std::size_t>(sizes.batch); ++request) {
        auto q = part_of(q_axis, request);
        if (!q) return q.error();
        Sequence sequence{};
        sequence.q_row = q->row;
        sequence.q_len = static_cast<int>(q->used);
        sequence.q_rows = static_cast<int>(q->rows);
        if (is_paged) {
            const Numbers ids = list->of(lengths, request);
            auto used = keys_of(lengths, request, static_cast<std::int64_t>(ids.size()));
            if (!used) return used.error();
            if (*used > sizes.kv_len)
                return invalid(formatted("request {} has {} keys; the plan's kv_len allows {}",
                                         request, *used, sizes.kv_len));
            sequence.kv_len = sequence.kv_rows = static_cast<int>(*used);
            sequence.first_page = static_cast<long long>(result->page_ids_.size());
            const auto pages =
                static_cast<std::size_t>((*used + lengths.page_size - 1) / lengths.page_size);
            const Numbers own = ids.first(pages);
            if (auto checked = check_ids(own, request, lengths.pages); !checked)
                return checked.error();
            result->page_ids_.insert(result->page_ids_.end(), own.begin(), own.end());
        } else {
            auto k = part_of(k_axis, request);
            if (!k) return k.error();
            sequence.kv_row = k->row;
            sequence.kv_len = static_cast<int>(k->used);
            sequence.kv_rows = static_cast<int>(k->rows);
        }
        auto start = start_of(lengths, keys, request, sequence);
        if (!start) return start.error();
        sequence.q_start = *start;
        result->sequences.push_back(sequence);
    }
    if (queries == Layout::ragged) result->q_rows = lengths.cu_seqlens_q.back();
    if (keys == Layout::ragged) result->kv_rows = lengths.cu_seqlens_k.back();
    return result;
}

void Sequences::keep(const Lengths& lengths) {
    for (std::size_t i = 0; i < kArrays.size(); ++i) {
        const Numbers numbers = lengths.*kArrays[i].on_host;
        given_[i].assign(numbers.begin(), numbers.end());
    }
}

void Sequences::divide_keys(const Sizes& sizes, bool batch_invariant) {
    const int group = static_cast<int>(sizes.heads / sizes.kv_heads);
    const int kv_heads = static_cast<int>(sizes.kv_heads);
    FewRequests few;
    for (const Sequence& sequence : sequences)
        few = joined(few, few_of(sequence, group));
    const long long shared_keys =
        batch_invariant ? 0 : shared_part_keys(few, kv_heads, [&](const PartKeys& keys) {
            PartsByDivision parts;
            for (const Sequence& sequence : sequences)
                add_parts(parts, keys, sequence, group);
            return parts;
        });
    int part = 0;
    for (Sequence& sequence : sequences) {
        sequence.first_part = part;
        part += parts_by(sequence, group,
                         batch_invariant ? own_part_keys(sequence, kv_heads) : shared_keys)
                    .count;
    }
    end_.first_part = part;
}

std::array<std::span<const std::byte>, 3> Sequences::pieces() const {
    return {std::as_bytes(std::span(sequences)), std::as_bytes(std::span(&end_, 1)),
            std::as_bytes(std::span(page_ids_))};
}

SequenceArguments SequenceState::device_view(const Sizes& sizes, std::int64_t page_size) const {
    const auto* sequences = static_cast<const Sequence*>(memory.get());
    return {.sequences = sequences,
            .count = static_cast<int>(sizes.batch),
            .pages = reinterpret_cast<const int*>(sequences + sizes.batch + 1),
            .page_size = static_cast<int>(page_size),
            .work = nullptr,
            .work_count = 0};
}

SequenceRecords SequenceState::records(const Sizes& sizes) const {
    auto* sequences = static_cast<Sequence*>(memory.get());
    return {.sequences = sequences,
            .pages = reinterpret_cast<int*>(sequences + sizes.batch + 1),
            .is_wrong = nullptr};
}

std::size_t SequenceState::bytes_for(const Sizes& sizes, std::int64_t page_size) {
    const auto batch = static_cast<std::size_t>(sizes.batch);
    const std::size_t pages =
        page_size == 0 ? 0 : static_cast<std::size_t>((sizes.kv_len + page_size - 1) / page_size);
    return support::plus(support::times(batch + 1, sizeof(Sequence)),
                         support::times(batch, support::times(pages, sizeof(int))));
}

SequenceArguments Sequences::view() const {
    return {.sequences = sequences.data(),
            .count = static_cast<int>(sequences.size()),
            .pages = page_ids_.data(),
            .page_size = static_cast<int>(page_size),
            .work = work.data(),
            .work_count = static_cast<long long>(work.size())};
}

std::shared_ptr<Sequences> Sequences::on_device(Layout queries, Layout keys, const Sizes& sizes,
                                                const Sequences& like) {
    auto result = std::make_shared<Sequences>();
    Sequence none{};
    none.q_rows = queries == Layout::dense ? static_cast<int>(sizes.q_len) : 0;
    none.kv_rows = keys == Layout::dense ? static_cast<int>(sizes.kv_len) : 0;
    result->sequences.assign(static_cast<std::size_t>(sizes.batch), none);
    result->page_size = like.page_size;
    result->pages = like.pages;
    result->start = like.start;
    result->is_on_device = true;
    return result;
}

Result<std::shared_ptr<Sequences>> Sequences::later(Layout queries, Layout keys, const Sizes& sizes,
                                                    const Lengths& lengths) {
    for (const LengthArray& array : kArrays)
        if (auto checked = check_absent(array.name, lengths.*array.on_host,
                                        "with Lengths::on_device the arrays come with update()");
            !checked)
            return checked.error();
    Sequences like;
    if (keys == Layout::paged) {
        if (auto checked = check_cache(lengths); !checked) return checked.error();
        like.page_size = lengths.page_size;
        like.pages = lengths.pages;
    }
    like.start = resolved(lengths.query_start, keys);
    return on_device(queries, keys, sizes, like);
}

Result<Lengths> Sequences::given_by(const LengthTensors& tensors) const {
    Lengths lengths;
    lengths.page_size = page_size;
    lengths.pages = pages;
    lengths.query_start = start;
    for (const LengthArray& array : kArrays) {
        const TensorView& tensor = tensors.*array.on_device;
        if (!tensor) continue;
        if (auto checked = check_numbers(array.name, tensor); !checked) return checked.error();
        lengths.*array.on_host = {static_cast<const std::int32_t*>(tensor.data),
                                  static_cast<std::size_t>(tensor.elements())};
    }
    return lengths;
}

Result<LengthArrays> Sequences::arrays(Layout queries, Layout keys, const Sizes& sizes,
                                       const Lengths& lengths) {
    auto list = check_arrays(queries, keys, sizes, lengths);
    if (!list) return list.error();
    // An empty array may have no address, and yet be given: of no requests, which nobody reads.
    const auto of = [](Numbers numbers) { return numbers.empty() ? nullptr : numbers.data(); };
    LengthArrays arrays{};
    arrays.cu_seqlens_q = of(lengths.cu_seqlens_q);
    arrays.cu_seqlens_k = of(lengths.cu_seqlens_k);
    arrays.seqused_q = of(lengths.seqused_q);
    arrays.seqused_k = of(lengths.seqused_k);
    arrays.page_table = of(lengths.page_table);
    arrays.page_indptr = of(lengths.page_indptr);
    arrays.page_indices = of(lengths.page_indices);
    arrays.last_page_len = of(lengths.last_page_len);
    arrays.query_starts = of(lengths.query_starts);
    arrays.requests = static_cast<int>(sizes.batch);
    arrays.most_queries = static_cast<int>(sizes.q_len);
    arrays.most_keys = static_cast<int>(sizes.kv_len);
    arrays.table_width = static_cast<int>(list->most);
    arrays.page_index_count = static_cast<int>(lengths.page_indices.size());
    if (keys == Layout::paged) {
        arrays.page_size = static_cast<int>(lengths.page_size);
        arrays.pages = static_cast<int>(lengths.pages);
        arrays.most_pages = lengths::pages_that_hold(arrays.most_keys, arrays.page_size);
    }
    arrays.farthest_start = static_cast<int>(kFarthest);
    arrays.starts_at_end = resolved(lengths.query_start, keys) == QueryStart::end;
    arrays.group = static_cast<int>(sizes.heads / sizes.kv_heads);
    arrays.kv_heads = static_cast<int>(sizes.kv_heads);
    return arrays;
}

Result<void> Sequences::check_same(const LengthTensors& tensors) const {
    for (std::size_t i = 0; i < kArrays.size(); ++i) {
        const TensorView& tensor = tensors.*kArrays[i].on_device;
        if (!tensor) continue;
        if (auto checked = check_numbers(kArrays[i].name, tensor); !checked) return checked;
        const auto* numbers = static_cast<const std::int32_t*>(tensor.data);
        const auto count = static_cast<std::size_t>(tensor.elements());
        const std::vector<std::int32_t>& planned = given_[i];
        if (!std::equal(planned.begin(), planned.end(), numbers, numbers + count))
            return invalid(
                formatted("{}: the plan was made for other numbers: call update() with these",
                          kArrays[i].name));
    }
    return {};
}

} // namespace flexc::runtime
