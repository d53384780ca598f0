#include "runtime/sequences.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "analysis/range.h"
#include "runtime/buffers.h"
#include "runtime/request_rows.h"
#include "support/amounts.h"
#include "support/key_layout.h"
#include "support/text.h"

namespace flexc::runtime {

namespace {

Result<void> check_numbers(std::string_view name, const TensorView& tensor) {
    if (auto checked = check_view(tensor, name); !checked) return checked;
    if (tensor.dtype == DType::i32 && is_contiguous(tensor)) return {};
    return invalid(formatted("{}: expected a contiguous tensor of i32", name));
}

// Checks that no arrays of other layouts of keys are given.
Result<void> check_foreign(Layout keys, const Lengths& lengths) {
    for (const support::KeyLayout& other : support::key_layouts())
        for (const std::string_view name : key_reader(other.layout).arrays) {
            if (other.layout == keys) continue;
            const auto array = std::ranges::find(kLengthArrays, name, &LengthArray::name);
            if (auto checked = check_absent(
                    name, lengths.*array->on_host,
                    formatted("the kernel was compiled for keys without {}", other.things));
                !checked)
                return checked;
        }
    return {};
}

// Checks which arrays are given and how long they are, without reading their elements.
Result<void> check_arrays(Layout queries, Layout keys, const Sizes& sizes, const Lengths& lengths) {
    for (const RequestAxis& axis :
         {query_axis(queries, sizes, lengths), key_axis(keys, sizes, lengths)})
        if (auto checked = check_axis(axis, sizes.batch); !checked) return checked;
    if (!lengths.query_starts.empty())
        if (auto checked = check_count("query_starts", lengths.query_starts, sizes.batch); !checked)
            return checked;
    const KeyReader& reader = key_reader(keys);
    if (auto checked = reader.extents(lengths, sizes); !checked) return checked.error();
    if (auto checked = reader.check_arrays(lengths, sizes.batch); !checked) return checked;
    return check_foreign(keys, lengths);
}

Result<void> check_order(Layout keys, const Lengths& lengths) {
    for (auto [name, numbers] : {std::pair{"cu_seqlens_q", lengths.cu_seqlens_q},
                                 std::pair{"cu_seqlens_k", lengths.cu_seqlens_k}})
        if (auto checked = check_ascending(name, numbers); !checked) return checked;
    return key_reader(keys).check_order(lengths);
}

QueryStart resolved(QueryStart start, Layout keys) {
    if (start != QueryStart::automatic) return start;
    return support::key_layout(keys).starts_at_end ? QueryStart::end : QueryStart::zero;
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

Result<void> Sequences::set_extents(Layout keys, const Sizes& sizes, const Lengths& lengths) {
    reader_ = &key_reader(keys);
    auto extents = reader_->extents(lengths, sizes);
    if (!extents) return extents.error();
    key_extents = *extents;
    beside_ = lengths;
    for (const LengthArray& array : kLengthArrays)
        beside_.*array.on_host = {};
    beside_.query_start = resolved(lengths.query_start, keys);
    beside_.on_device = false;
    return {};
}

Result<std::shared_ptr<Sequences>> Sequences::read(Layout queries, Layout keys, const Sizes& sizes,
                                                   const Lengths& lengths) {
    if (auto checked = check_arrays(queries, keys, sizes, lengths); !checked)
        return checked.error();
    if (auto checked = check_order(keys, lengths); !checked) return checked.error();
    auto result = std::make_shared<Sequences>();
    if (auto set = result->set_extents(keys, sizes, lengths); !set) return set.error();
    std::vector<Sequence>& all = result->sequences;
    all.resize(static_cast<std::size_t>(sizes.batch));
    const RequestAxis axis = query_axis(queries, sizes, lengths);
    for (std::size_t request = 0; request < all.size(); ++request) {
        auto rows = rows_of(axis, request);
        if (!rows) return rows.error();
        all[request].q_row = rows->row;
        all[request].q_len = static_cast<int>(rows->used);
        all[request].q_rows = static_cast<int>(rows->rows);
    }
    if (auto done = result->reader_->read(keys, lengths, sizes, all, result->numbers_); !done)
        return done.error();
    for (std::size_t request = 0; request < all.size(); ++request) {
        auto start = start_of(lengths, keys, request, all[request]);
        if (!start) return start.error();
        all[request].q_start = *start;
    }
    if (queries == Layout::ragged) result->q_rows = lengths.cu_seqlens_q.back();
    if (keys == Layout::ragged) result->kv_rows = lengths.cu_seqlens_k.back();
    return result;
}

void Sequences::keep(const Lengths& lengths) {
    for (std::size_t i = 0; i < kLengthArrays.size(); ++i) {
        const Numbers numbers = lengths.*kLengthArrays[i].on_host;
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
    few_work_ = plan::few_work(sequences, part, group, kv_heads, sizes.q_len);
}

std::array<std::span<const std::byte>, 3> Sequences::pieces() const {
    return {std::as_bytes(std::span(sequences)), std::as_bytes(std::span(&end_, 1)),
            std::as_bytes(std::span(numbers_))};
}

KeyTable Sequences::key_table(const int* numbers) const {
    return {.numbers = numbers,
            .size = static_cast<int>(key_extents.rows),
            .layout = reader_->table_layout};
}

SequenceArguments SequenceState::device_view(const Sizes& sizes, const Sequences& all) const {
    const auto* sequences = static_cast<const Sequence*>(memory.get());
    return {.sequences = sequences,
            .count = static_cast<int>(sizes.batch),
            .keys = all.key_table(reinterpret_cast<const int*>(sequences + sizes.batch + 1)),
            .work = nullptr,
            .work_count = 0};
}

SequenceRecords SequenceState::records(const Sizes& sizes) const {
    auto* sequences = static_cast<Sequence*>(memory.get());
    return {.sequences = sequences,
            .numbers = reinterpret_cast<int*>(sequences + sizes.batch + 1),
            .is_wrong = nullptr};
}

std::size_t SequenceState::bytes_for(const Sizes& sizes, const Sequences& sequences) {
    const auto batch = static_cast<std::size_t>(sizes.batch);
    const auto numbers = static_cast<std::size_t>(sequences.most_numbers(sizes));
    return support::plus(support::times(batch + 1, sizeof(Sequence)),
                         support::times(batch, support::times(numbers, sizeof(int))));
}

SequenceArguments Sequences::view() const {
    return {.sequences = sequences.data(),
            .count = static_cast<int>(sequences.size()),
            .keys = key_table(numbers_.data()),
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
    result->key_extents = like.key_extents;
    result->reader_ = like.reader_;
    result->beside_ = like.beside_;
    result->is_on_device = true;
    return result;
}

Result<std::shared_ptr<Sequences>> Sequences::later(Layout queries, Layout keys, const Sizes& sizes,
                                                    const Lengths& lengths) {
    for (const LengthArray& array : kLengthArrays)
        if (auto checked = check_absent(array.name, lengths.*array.on_host,
                                        "with Lengths::on_device the arrays come with update()");
            !checked)
            return checked.error();
    Sequences like;
    if (auto set = like.set_extents(keys, sizes, lengths); !set) return set.error();
    return on_device(queries, keys, sizes, like);
}

Result<Lengths> Sequences::given_by(const LengthTensors& tensors) const {
    Lengths lengths = beside_;
    for (const LengthArray& array : kLengthArrays) {
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
    if (auto checked = check_arrays(queries, keys, sizes, lengths); !checked)
        return checked.error();
    // Null for arrays that are not given. An empty one that is given is null too, but belongs to a
    // call without requests, which never reads it.
    const auto of = [](Numbers numbers) { return numbers.empty() ? nullptr : numbers.data(); };
    LengthArrays arrays{};
#define FLEXC_LENGTH_ARRAY(name, dims) arrays.name = of(lengths.name);
#include "common/lengths.def"
    arrays.requests = static_cast<int>(sizes.batch);
    arrays.most_queries = static_cast<int>(sizes.q_len);
    arrays.most_keys = static_cast<int>(sizes.kv_len);
    const auto table_numbers = static_cast<std::int64_t>(lengths.page_table.size());
    arrays.table_width = static_cast<int>(sizes.batch == 0 ? 0 : table_numbers / sizes.batch);
    arrays.page_index_count = static_cast<int>(lengths.page_indices.size());
    const KeyReader& reader = key_reader(keys);
    const auto extents = reader.extents(lengths, sizes);
    if (!extents) return extents.error();
    arrays.key_layout = reader.table_layout;
    arrays.entries = static_cast<int>(extents->entries);
    arrays.entry_rows = static_cast<int>(extents->rows);
    arrays.most_numbers = static_cast<int>(reader.most_numbers(sizes, *extents));
    arrays.farthest_start = static_cast<int>(kFarthest);
    arrays.starts_at_end = resolved(lengths.query_start, keys) == QueryStart::end;
    arrays.group = static_cast<int>(sizes.heads / sizes.kv_heads);
    arrays.kv_heads = static_cast<int>(sizes.kv_heads);
    return arrays;
}

Result<void> Sequences::check_same(const LengthTensors& tensors) const {
    for (std::size_t i = 0; i < kLengthArrays.size(); ++i) {
        const TensorView& tensor = tensors.*kLengthArrays[i].on_device;
        if (!tensor) continue;
        if (auto checked = check_numbers(kLengthArrays[i].name, tensor); !checked) return checked;
        const auto* numbers = static_cast<const std::int32_t*>(tensor.data);
        const auto count = static_cast<std::size_t>(tensor.elements());
        const std::vector<std::int32_t>& planned = given_[i];
        if (!std::equal(planned.begin(), planned.end(), numbers, numbers + count))
            return invalid(
                formatted("{}: the plan was made for other numbers: call update() with these",
                          kLengthArrays[i].name));
    }
    return {};
}

} // namespace flexc::runtime
