#include "distributed/requests.h"

#include <algorithm>
#include <utility>

#include "passes/one_sequence.h"
#include "runtime/buffers.h"
#include "runtime/sequences.h"
#include "support/text.h"

namespace flexc::distributed {

namespace {

Result<void> check_rows(const char* name, std::int64_t end, std::int64_t rows, const char* what) {
    if (end <= rows) return {};
    return runtime::invalid(
        formatted("{} ends at {}; the shards of {} have {} rows", name, end, what, rows));
}

// [rows, heads] or [rows, heads, columns].
TensorView as_one_sequence(const TensorView& packed) {
    if (!packed) return packed;
    TensorView view = packed;
    view.rank = packed.rank + 1;
    view.shape[0] = 1;
    view.strides[0] = packed.shape[0] * packed.strides[0];
    view.shape[1] = packed.shape[1];
    view.strides[1] = packed.strides[1];
    view.shape[2] = packed.shape[0];
    view.strides[2] = packed.strides[0];
    if (packed.rank == 3) {
        view.shape[3] = packed.shape[2];
        view.strides[3] = packed.strides[2];
    }
    return view;
}

} // namespace

Result<Requests> Requests::read(const Sizes& sizes, const Lengths& lengths) {
    if (sizes.batch < 1)
        return runtime::invalid(formatted("batch is {}: at least one request", sizes.batch));
    if (lengths.on_device)
        return Error{ErrorCode::unsupported,
                     "attention across ranks needs lengths in host memory: every rank plans what "
                     "all of them do"};
    const auto read = runtime::Sequences::read(Layout::ragged, Layout::ragged, sizes, lengths);
    if (!read) return read.error();
    const runtime::Sequences& sequences = **read;
    if (auto checked = check_rows("cu_seqlens_q", sequences.q_rows, sizes.q_len, "queries");
        !checked)
        return checked.error();
    if (auto checked = check_rows("cu_seqlens_k", sequences.kv_rows, sizes.kv_len, "keys");
        !checked)
        return checked.error();
    Requests requests;
    requests.of_query_.assign(static_cast<std::size_t>(sizes.q_len), passes::kNoQuery);
    requests.of_key_.assign(static_cast<std::size_t>(sizes.kv_len), passes::kNoKey);
    std::int32_t request = 0;
    for (const Sequence& one : sequences.sequences) {
        std::fill_n(requests.of_query_.begin() + one.q_row, one.q_len, request);
        std::fill_n(requests.of_key_.begin() + one.kv_row, one.kv_len, request);
        std::array<std::int32_t, passes::kRequestFacts> facts{};
        facts[passes::kFirstQuery] = static_cast<std::int32_t>(one.q_row - one.q_start);
        facts[passes::kFirstKey] = static_cast<std::int32_t>(one.kv_row);
        facts[passes::kQueryCount] = one.q_len;
        facts[passes::kKeyCount] = one.kv_len;
        requests.facts_.insert(requests.facts_.end(), facts.begin(), facts.end());
        requests.longest_queries_ = std::max<std::int64_t>(requests.longest_queries_, one.q_len);
        requests.longest_keys_ = std::max<std::int64_t>(requests.longest_keys_, one.kv_len);
        requests.have_same_rows_ &= one.q_row == one.kv_row && one.q_start == 0;
        ++request;
    }
    return requests;
}

std::string Requests::text() const {
    std::string text = formatted("{} {}:", of_query_.size(), of_key_.size());
    for (const std::int32_t fact : facts_)
        text += formatted(" {}", fact);
    return text;
}

Result<void> Requests::place(RankWork& work) {
    const auto rows = [](const std::vector<std::int32_t>& values) {
        return TensorView::read_only(values.data(), DType::i32,
                                     {static_cast<std::int64_t>(values.size())});
    };
    const std::int64_t count = static_cast<std::int64_t>(facts_.size()) / passes::kRequestFacts;
    views_ = {rows(of_query_), rows(of_key_),
              TensorView::read_only(facts_.data(), DType::i32, {count, passes::kRequestFacts})};
    for (std::size_t i = 0; i < views_.size(); ++i) {
        const auto placed = work.for_launches(views_[i], memory_[i]);
        if (!placed) return placed.error();
        views_[i] = *placed;
    }
    return {};
}

std::vector<NamedTensor> Requests::buffers() const {
    return {{passes::kRequestBuffers.of_query, views_[0]},
            {passes::kRequestBuffers.of_key, views_[1]},
            {passes::kRequestBuffers.facts, views_[2]}};
}

ForwardTensors as_one_sequence(const ForwardTensors& tensors) {
    ForwardTensors result = tensors;
    for (TensorView* tensor : {&result.q, &result.k, &result.v, &result.o, &result.lse})
        *tensor = as_one_sequence(*tensor);
    return result;
}

BackwardTensors as_one_sequence(const BackwardTensors& tensors) {
    BackwardTensors result = tensors;
    for (TensorView* tensor : {&result.q, &result.k, &result.v, &result.o, &result.lse,
                               &result.d_out, &result.d_lse, &result.dq, &result.dk, &result.dv})
        *tensor = as_one_sequence(*tensor);
    return result;
}

} // namespace flexc::distributed
