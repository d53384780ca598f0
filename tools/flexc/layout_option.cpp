#include "flexc/layout_option.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <sstream>

#include "flexc/command.h"
#include "flexc/fill.h"
#include "flexc/input_check.h"
#include "support/amounts.h"
#include "support/key_layout.h"
#include "support/text.h"

namespace flexc::cli {
namespace {

Layout parse_layout(const std::string& text, const char* option, bool of_keys) {
    std::vector<std::string> names;
    for (const auto& row : support::key_layouts()) {
        if (!of_keys && !row.is_in_order) {
            continue;
        }
        if (text == row.name) {
            return row.layout;
        }
        names.emplace_back(row.name);
    }
    const auto last = names.back();
    names.pop_back();
    fail_usage(formatted("{} '{}': expected {} or {}", option, text, joined(names, ", "), last));
}

QueryStart parse_query_start(const std::string& text) {
    if (text == "auto") {
        return QueryStart::automatic;
    }
    if (text == "zero") {
        return QueryStart::zero;
    }
    if (text == "end") {
        return QueryStart::end;
    }
    fail_usage(formatted("--query-start '{}': expected auto, zero or end", text));
}

std::vector<std::int32_t> read_numbers(const TensorFile& file, const char* tensor) {
    const auto* entry = file.find(tensor);
    if (entry == nullptr) {
        return {};
    }
    if (entry->dtype != DType::i32) {
        fail(formatted("{}: tensor '{}': is {} {}; expected i32", file.path(), tensor,
                       name(entry->dtype), describe_shape(entry->shape)));
    }
    const auto bytes = value_of(file.read(*entry));
    std::vector<std::int32_t> numbers(bytes.size() / sizeof(std::int32_t));
    std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(std::int32_t));
    return numbers;
}

const TensorEntry& tensor_of(const TensorFile& file, const char* tensor, std::size_t rank,
                             std::string_view dims, bool may_be_narrow = false) {
    const char* const types =
        may_be_narrow ? "f32, f16, bf16, e4m3, e5m2 or i8" : "f32, f16 or bf16";
    const auto* entry = file.find(tensor);
    if (entry == nullptr) {
        fail(formatted("{}: tensor '{}': missing; expected {} {}", file.path(), tensor, types,
                       dims));
    }
    const bool is_right = entry->dtype == DType::f32 || entry->dtype == DType::f16 ||
                          entry->dtype == DType::bf16 ||
                          (may_be_narrow && is_cache_type(entry->dtype));
    if (entry->shape.size() != rank || !is_right) {
        fail(formatted("{}: tensor '{}': is {} {}; expected {} {}", file.path(), tensor,
                       name(entry->dtype), describe_shape(entry->shape), types, dims));
    }
    return *entry;
}

// Returns the longest of the lengths. Does not check them: the plan rejects invalid ones.
std::int64_t longest(const std::vector<std::int32_t>& used, const std::vector<std::int32_t>& cu,
                     std::int64_t all) {
    std::int64_t most = 0;
    if (!used.empty()) {
        return std::max(*std::ranges::max_element(used), 0);
    }
    if (cu.empty()) {
        return all;
    }
    for (std::size_t i = 1; i < cu.size(); ++i) {
        most = std::max<std::int64_t>(most, std::int64_t{cu[i]} - cu[i - 1]);
    }
    return most;
}

} // namespace

void add_layout_options(CommandLine command, LayoutOption& option) {
    command.option("--query-layout", option.query_layout,
                   "dense, or ragged: q [TOTAL_Q,H,D] with cu_seqlens_q i32 [B+1]",
                   {.usual = {"dense", "ragged"}});
    command.option("--key-layout", option.key_layout,
                   "dense, ragged: k, v [TOTAL_K,H_KV,.] with cu_seqlens_k, or paged: "
                   "[PAGES,PAGE_SIZE,H_KV,.] with page_table i32 [B,MAX_PAGES] and seqused_k i32 "
                   "[B], or page_indptr, page_indices and last_page_len",
                   {.usual = {"dense", "ragged", "paged"}});
}

void add_query_start_option(CommandLine command, LayoutOption& option) {
    command.option("--query-start", option.query_start,
                   "Where q_idx of a request begins: zero, or end, so that it ends with the keys; "
                   "auto is end with paged keys",
                   {.usual = {"auto", "zero", "end"}});
}

void apply(const LayoutOption& option, CompileOptions& options) {
    options.query_layout = parse_layout(option.query_layout, "--query-layout", false);
    options.key_layout = parse_layout(option.key_layout, "--key-layout", true);
    const auto start = parse_query_start(option.query_start);
    if (is_dense(option) && start != QueryStart::automatic) {
        fail_usage("--query-start is of ragged and paged layouts");
    }
}

bool is_dense(const LayoutOption& option) {
    return option.query_layout == "dense" && option.key_layout == "dense";
}

ProblemShape requests_shape(const TensorFile& file, const LayoutOption& option) {
    ProblemShape shape;
    shape.query_layout = parse_layout(option.query_layout, "--query-layout", false);
    shape.key_layout = parse_layout(option.key_layout, "--key-layout", true);
    RequestLengths& lengths = shape.lengths;
#define FLEXC_LENGTH_ARRAY(name, dims) lengths.name = read_numbers(file, #name);
#include "common/lengths.def"
    lengths.query_start = parse_query_start(option.query_start);

    const bool ragged_q = shape.query_layout == Layout::ragged;
    const auto& q =
        tensor_of(file, "q", ragged_q ? 3 : 4, ragged_q ? "[TOTAL_Q, H, D]" : "[B, H, Q_LEN, D]");
    const auto& keys = support::key_layout(shape.key_layout);
    const auto &k = tensor_of(file, "k", keys.axes.size(), keys.dims, true),
               &v = tensor_of(file, "v", keys.axes.size(), keys.dims, true);
    const auto extent = [&](support::KeyAxis axis) {
        return k.shape[static_cast<std::size_t>(keys.axis(axis))];
    };
    if (is_cache_type(k.dtype)) {
        shape.kv_dtype = k.dtype;
    }
    auto expected = k.shape;
    expected.back() = v.shape.back();
    if (v.shape != expected || k.dtype != shape.kv_dtype.value_or(q.dtype) || v.dtype != k.dtype ||
        k.shape.back() != q.shape.back()) {
        fail(formatted("{}: q {} {}, k {} {} and v {} {} do not go together", file.path(),
                       name(q.dtype), describe_shape(q.shape), name(k.dtype),
                       describe_shape(k.shape), name(v.dtype), describe_shape(v.shape)));
    }
    shape.dtype = q.dtype;
    shape.head_dim = static_cast<int>(std::min<std::int64_t>(q.shape.back(), 1 << 20));
    shape.head_dim_v = static_cast<int>(std::min<std::int64_t>(v.shape.back(), 1 << 20));
    Sizes& sizes = shape.sizes;
    sizes.heads = q.shape[1];
    sizes.kv_heads = extent(support::KeyAxis::head);
    shape.kv_rows = extent(support::KeyAxis::row);
    if (!keys.is_in_order) {
        shape.kv_entries = extent(support::KeyAxis::entry);
    }
    const auto counted = [](const std::vector<std::int32_t>& cu) {
        return static_cast<std::int64_t>(cu.size()) - 1;
    };
    sizes.batch = !ragged_q                           ? q.shape[0]
                  : !lengths.cu_seqlens_q.empty()     ? counted(lengths.cu_seqlens_q)
                  : shape.key_layout == Layout::dense ? k.shape[0]
                                                      : 0;
    shape.q_rows = ragged_q ? q.shape[0] : q.shape[2];
    sizes.q_len = ragged_q ? longest(lengths.seqused_q, lengths.cu_seqlens_q, 0) : q.shape[2];
    switch (shape.key_layout) {
    case Layout::dense:
        if (k.shape[0] != sizes.batch) {
            fail(formatted("{}: tensor 'k': is {} {}, which is not of {} requests", file.path(),
                           name(k.dtype), describe_shape(k.shape), sizes.batch));
        }
        sizes.kv_len = shape.kv_rows;
        break;
    case Layout::ragged: sizes.kv_len = longest(lengths.seqused_k, lengths.cu_seqlens_k, 0); break;
    case Layout::paged:
        lengths.pages = shape.kv_entries;
        lengths.page_size = shape.kv_rows;
        if (!lengths.seqused_k.empty()) {
            sizes.kv_len = longest(lengths.seqused_k, {}, 0);
        } else {
            // Page sizes are not checked here; the plan rejects invalid ones.
            sizes.kv_len = support::times(longest({}, lengths.page_indptr, 0), lengths.page_size);
        }
        break;
    }
    return shape;
}

ProblemShape made_up_requests(const std::string& requests, std::int64_t page_size) {
    ProblemShape shape;
    shape.query_layout = Layout::ragged;
    shape.key_layout = page_size > 0 ? Layout::paged : Layout::ragged;
    RequestLengths& lengths = shape.lengths;
    lengths.cu_seqlens_q = lengths.cu_seqlens_k = {0};
    std::stringstream stream(requests);
    for (std::string part; std::getline(stream, part, ',');) {
        const auto times = part.find('x'), at = part.find('@');
        const auto what = "--requests " + part;
        if (times == std::string::npos || at == std::string::npos || at < times) {
            fail_usage(formatted("--requests: '{}' is not COUNTxQUERIES@KEYS", part));
        }
        const auto count = parse_count(part.substr(0, times), what);
        const auto queries = parse_count(part.substr(times + 1, at - times - 1), what);
        const auto keys = parse_count(part.substr(at + 1), what);
        constexpr std::int64_t kMostRequests = std::int64_t{1} << 20,
                               kMostRows = std::int64_t{1} << 30;
        if (static_cast<std::int64_t>(lengths.cu_seqlens_q.size()) + count > kMostRequests) {
            fail_usage(formatted("{}: 2^20 requests or more: give fewer", what));
        }
        if (lengths.cu_seqlens_q.back() + count * queries >= kMostRows ||
            lengths.cu_seqlens_k.back() + count * keys >= kMostRows) {
            fail_usage(formatted("{}: 2^30 rows or more: give fewer", what));
        }
        for (std::int64_t i = 0; i < count; ++i) {
            lengths.cu_seqlens_q.push_back(
                static_cast<std::int32_t>(lengths.cu_seqlens_q.back() + queries));
            lengths.cu_seqlens_k.push_back(
                static_cast<std::int32_t>(lengths.cu_seqlens_k.back() + keys));
        }
        shape.sizes.q_len = std::max(shape.sizes.q_len, queries);
        shape.sizes.kv_len = std::max(shape.sizes.kv_len, keys);
    }
    shape.sizes.batch = static_cast<std::int64_t>(lengths.cu_seqlens_q.size()) - 1;
    shape.q_rows = lengths.cu_seqlens_q.back();
    shape.kv_rows = lengths.cu_seqlens_k.back();
    if (page_size == 0) {
        lengths.query_start = QueryStart::end;
        return shape;
    }
    lengths.page_size = page_size;
    lengths.page_indptr = {0};
    for (std::size_t b = 1; b < lengths.cu_seqlens_k.size(); ++b) {
        const std::int64_t keys = lengths.cu_seqlens_k[b] - lengths.cu_seqlens_k[b - 1];
        lengths.seqused_k.push_back(static_cast<std::int32_t>(keys));
        lengths.page_indptr.push_back(static_cast<std::int32_t>(
            lengths.page_indptr.back() + (keys + page_size - 1) / page_size));
    }
    lengths.pages = lengths.page_indptr.back();
    shape.kv_entries = lengths.pages;
    shape.kv_rows = page_size;
    lengths.page_indices.resize(static_cast<std::size_t>(lengths.pages));
    std::iota(lengths.page_indices.begin(), lengths.page_indices.end(), 0);
    std::ranges::shuffle(lengths.page_indices, std::mt19937(1));
    lengths.cu_seqlens_k.clear();
    return shape;
}

} // namespace flexc::cli
