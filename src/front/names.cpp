#include "front/names.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numbers>

namespace flexc::front {

namespace {

struct Ambient {
    std::string_view name;
    ir::Op op;
};
constexpr auto kAmbient = std::to_array<Ambient>({
    {"score", ir::Op::score},
    {"b", ir::Op::b},
    {"h", ir::Op::h},
    {"h_kv", ir::Op::h_kv},
    {"q_idx", ir::Op::q_idx},
    {"kv_idx", ir::Op::kv_idx},
    {"q_row", ir::Op::q_row},
    {"kv_row", ir::Op::kv_row},
});

constexpr std::array<std::string_view, ir::kStandardSizes> kSizes = {"B",      "H", "H_KV", "Q_LEN",
                                                                     "KV_LEN", "D", "DV"};

struct Number {
    std::string_view name;
    double value;
    bool qualified;
};
constexpr auto kNumbers = std::to_array<Number>({
    {"pi", std::numbers::pi, false},
    {"inf", std::numeric_limits<double>::infinity(), false},
    {"nan", std::numeric_limits<double>::quiet_NaN(), true},
    {"e", std::numbers::e, true},
    {"tau", 2 * std::numbers::pi, true},
});

constexpr auto kReserved = std::to_array<std::string_view>(
    {"score", "b", "h", "h_kv", "q_idx", "kv_idx", "q_row", "kv_row", "B", "H", "H_KV", "Q_LEN",
     "KV_LEN", "D", "DV", "pi", "inf", "score_mod", "mask_mod"});

struct Synonym {
    std::string_view from;
    std::string_view to;
};
constexpr auto kUsualNames = std::to_array<Synonym>({
    {"q", "q_idx"},      {"kv", "kv_idx"},      {"k", "kv_idx"},       {"m", "q_idx"},
    {"n", "kv_idx"},     {"k_idx", "kv_idx"},   {"i", "q_idx"},        {"j", "kv_idx"},
    {"head", "h"},       {"head_idx", "h"},     {"h_idx", "h"},        {"batch", "b"},
    {"batch_idx", "b"},  {"b_idx", "b"},        {"hkv", "h_kv"},       {"kv_head", "h_kv"},
    {"h_q", "h"},        {"HKV", "H_KV"},       {"Hkv", "H_KV"},       {"NUM_HEADS", "H"},
    {"num_heads", "H"},  {"seq_len", "KV_LEN"}, {"SEQ_LEN", "KV_LEN"}, {"S", "KV_LEN"},
    {"Q", "Q_LEN"},      {"KV", "KV_LEN"},      {"q_len", "Q_LEN"},    {"kv_len", "KV_LEN"},
    {"head_dim", "D"},   {"HEAD_DIM", "D"},     {"scores", "score"},   {"s", "score"},
    {"infinity", "inf"}, {"INF", "inf"},        {"NEG_INF", "-inf"},
});

template <typename Rows, typename Key> const auto* find_row(const Rows& rows, Key matches) {
    const auto* found = std::find_if(rows.begin(), rows.end(), matches);
    return found == rows.end() ? nullptr : found;
}

// Letters to insert, delete, change or swap with their neighbour.
std::size_t distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j)
        last[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        row[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = std::min(row[j], before[j - 2] + 1);
        }
        before = last;
        last = row;
    }
    return last[b.size()];
}

std::string lower_case(std::string_view text) {
    std::string out(text);
    for (char& c : out)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
    return out;
}

constexpr std::size_t kLongestGuess = 64;

} // namespace

std::optional<ir::Op> ambient_of(std::string_view name) {
    const auto* row = find_row(kAmbient, [&](const Ambient& entry) { return entry.name == name; });
    return row != nullptr ? std::optional(row->op) : std::nullopt;
}

std::optional<std::uint32_t> standard_size_of(std::string_view name) {
    const auto* row = find_row(kSizes, [&](std::string_view entry) { return entry == name; });
    return row != nullptr ? std::optional(static_cast<std::uint32_t>(row - kSizes.begin()))
                          : std::nullopt;
}

std::optional<double> number_named(std::string_view name, bool qualified) {
    const auto* row = find_row(kNumbers, [&](const Number& entry) {
        return entry.name == name && entry.qualified <= qualified;
    });
    return row != nullptr ? std::optional(row->value) : std::nullopt;
}

std::optional<ir::Op> combination_of(std::string_view name) {
    if (name == "and_masks") return ir::Op::band;
    if (name == "or_masks") return ir::Op::bor;
    return std::nullopt;
}

bool is_reserved(std::string_view name) {
    return find_row(kReserved, [&](std::string_view entry) { return entry == name; }) != nullptr;
}

std::span<const std::string_view> reserved_names() { return kReserved; }

std::string nearest_name(std::string_view name, std::span<const std::string> candidates) {
    std::string best;
    std::size_t best_distance = std::max<std::size_t>(1, name.size() / 3) + 1;
    if (name.size() > kLongestGuess || name.size() < 2) return best;
    for (const std::string& candidate : candidates) {
        if (candidate.size() > kLongestGuess || candidate == name) continue;
        const bool same_letters = lower_case(candidate) == lower_case(name);
        const std::size_t apart = same_letters ? 0 : distance(name, candidate);
        if (apart >= best_distance || apart >= candidate.size()) continue;
        best = candidate;
        best_distance = apart;
    }
    return best;
}

std::string_view usual_name(std::string_view name) {
    const auto* row =
        find_row(kUsualNames, [&](const Synonym& entry) { return entry.from == name; });
    return row != nullptr ? row->to : std::string_view();
}

} // namespace flexc::front
