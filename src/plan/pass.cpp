#include "plan/pass.h"

#include <utility>

#include "common/sequences.h"
#include "support/amounts.h"
#include "support/text.h"

namespace flexc::plan {

namespace {

std::int64_t value_of(const Length& length, const CallLengths& call) {
    std::int64_t value = 1;
    switch (length.of) {
    case Length::Of::batch: value = call.batch; break;
    case Length::Of::heads: value = call.heads; break;
    case Length::Of::kv_heads: value = call.kv_heads; break;
    case Length::Of::queries: value = call.queries; break;
    case Length::Of::keys: value = call.keys; break;
    case Length::Of::all_queries: value = call.all_queries; break;
    case Length::Of::all_keys: value = call.all_keys; break;
    case Length::Of::few_rows:
        value = ::few_rows(call.queries, static_cast<int>(call.heads / call.kv_heads));
        break;
    case Length::Of::few_parts: value = call.few.parts; break;
    case Length::Of::merging_blocks: value = call.few.merging_blocks; break;
    case Length::Of::entry_parts: value = call.few.parts / call.batch; break;
    case Length::Of::joined_parts: value = call.few.parts > call.batch ? call.few.parts : 0; break;
    }
    value += length.plus;
    return (value + length.step - 1) / length.step * (length.step / length.per);
}

std::string text_of(const Length& length) {
    constexpr std::string_view kNames[] = {
        "B",           "H",           "H_KV",     "Q",         "KV",
        "TOTAL_Q",     "TOTAL_K",     "FEW_ROWS", "FEW_PARTS", "MERGING_BLOCKS",
        "ENTRY_PARTS", "JOINED_PARTS"};
    std::string text(kNames[static_cast<std::size_t>(length.of)]);
    if (length.plus != 0) text = formatted("({} + {})", text, length.plus);
    if (length.step == 1) return text;
    text = formatted("ceil({} / {})", text, length.step);
    const int factor = length.step / length.per;
    return factor == 1 ? text : formatted("{} * {}", factor, text);
}

} // namespace

std::int64_t Extent::of(const CallLengths& call) const {
    std::int64_t sum = 0;
    for (const Product& product : terms) {
        std::int64_t value = product.factor;
        for (const Length& length : product.lengths)
            value = support::times(value, value_of(length, call));
        sum = support::plus(sum, value);
    }
    return sum;
}

std::string text_of(const Extent& extent) {
    std::vector<std::string> terms;
    for (const Extent::Product& product : extent.terms) {
        std::vector<std::string> factors;
        if (product.factor != 1 || product.lengths.empty())
            factors.push_back(std::to_string(product.factor));
        for (const Length& length : product.lengths)
            factors.push_back(text_of(length));
        terms.push_back(joined(factors, " * "));
    }
    return terms.empty() ? "0" : joined(terms, " + ");
}

Launch launch_of(std::size_t kernel, const KernelConfig& config, Extent blocks) {
    return {.kernel = kernel,
            .entry = config.entry,
            .blocks = std::move(blocks),
            .threads = config.block.threads(),
            .shared_bytes = config.block.shared_bytes};
}

std::string_view text_of_heads(bool by_batch, bool by_head) {
    if (by_batch && by_head) return "each b and h";
    if (by_batch) return "each b";
    return by_head ? "each h" : "all b and h";
}

} // namespace flexc::plan
