#include "flexc/command.h"

#include <algorithm>
#include <numeric>

#include <nlohmann/json.hpp>

#include "support/text.h"

namespace flexc::cli {

namespace {
// Names come from users' files: bytes that are not UTF-8 are replaced, not thrown about.
std::string dump(const nlohmann::json& value, int indent) {
    return value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}
} // namespace

void print_json(const nlohmann::json& value) { print(stdout, "{}\n", dump(value, -1)); }
void print_json_indented(const nlohmann::json& value) { print(stdout, "{}\n", dump(value, 2)); }
void print_error(const CommandError& error, bool as_json) {
    std::string_view message = error.what();
    while (message.ends_with('\n')) {
        message.remove_suffix(1);
    }
    if (as_json) {
        const nlohmann::json value{
            {"error",
             {{"code", error.code()}, {"message", message}, {"exit_code", error.exit_code()}}}};
        print(stderr, "{}\n", dump(value, -1));
        return;
    }
    // Messages about a program start with its place and say "error:" themselves.
    const auto first_line = message.substr(0, message.find('\n'));
    const bool has_place = first_line.find(": error: ") != std::string_view::npos;
    print(stderr, "{}{}\n", has_place ? "" : "flexc: error: ", message);
}

namespace {
std::size_t edit_distance(std::string_view left, std::string_view right) {
    std::vector<std::size_t> row(right.size() + 1);
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 0; i < left.size(); ++i) {
        std::size_t diagonal = std::exchange(row[0], i + 1);
        for (std::size_t j = 0; j < right.size(); ++j) {
            const std::size_t replaced = diagonal + (left[i] != right[j]);
            diagonal = row[j + 1];
            row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, replaced});
        }
    }
    return row.back();
}
} // namespace

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
    std::string best;
    std::size_t best_distance = std::max<std::size_t>(name.size() / 3, 1) + 1;
    for (const auto& candidate : candidates) {
        const auto distance = edit_distance(name.substr(0, 64), candidate);
        if (distance < best_distance) {
            best_distance = distance;
            best = candidate;
        }
    }
    return best;
}

} // namespace flexc::cli
