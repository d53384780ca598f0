#include "plan/pass.h"

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
    }
    value += length.plus;
    return (value + length.step - 1) / length.step * (length.step / length.per);
}

std::string text_of(const Length& length) {
    constexpr std::string_view kNames[] = {
        "B",       "H",       "H_KV",     "Q",         "KV",
        "TOTAL_Q", "TOTAL_K", "FEW_ROWS", "FEW_PARTS", "MERGING_BLOCKS"};
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

std::string_view name(Region region) {
    switch (region) {
    case Region::delta: return "delta";
    case Region::dq_accumulator: return "dq_accumulator";
    case Region::dq_semaphores: return "dq_semaphores";
    case Region::row_facts: return "row_facts";
    case Region::distance_sums: return "distance_sums";
    case Region::distance_values: return "distance_values";
    case Region::key_values: return "key_values";
    case Region::exact_sums: return "exact_sums";
    case Region::stored_tiles: return "stored_tiles";
    case Region::blocks_done: return "blocks_done";
    case Region::tiles_taken: return "tiles_taken";
    case Region::row_block_states: return "row_block_states";
    case Region::partial_results: return "partial_results";
    }
    return "";
}

} // namespace flexc::plan
