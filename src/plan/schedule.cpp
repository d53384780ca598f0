#include "plan/schedule.h"

#include <charconv>

#include "support/text.h"

namespace flexc::plan {
namespace {

// "keys=128 more": takes the value of the word that must come next, and a space after it.
std::optional<std::string_view> take(std::string_view& text, std::string_view key) {
    if (!text.starts_with(key) || !text.substr(key.size()).starts_with('=')) return {};
    text.remove_prefix(key.size() + 1);
    const std::size_t length = std::min(text.find(' '), text.size());
    const std::string_view value = text.substr(0, length);
    text.remove_prefix(std::min(length + 1, text.size()));
    return value;
}

bool take_number(std::string_view& text, std::string_view key, int& number) {
    const auto value = take(text, key);
    if (!value) return false;
    const char* end = value->data() + value->size();
    // NOLINTNEXTLINE(bugprone-suspicious-stringview-data-usage): it ends at `end`
    const auto [stop, problem] = std::from_chars(value->data(), end, number);
    return problem == std::errc() && stop == end;
}

bool take_ping_pong(std::string_view& text, PingPong& ping_pong) {
    const auto value = take(text, "ping_pong");
    for (const PingPong one : {PingPong::none, PingPong::mma, PingPong::softmax})
        if (value == name(one)) {
            ping_pong = one;
            return true;
        }
    return false;
}

} // namespace

std::string_view name(PingPong ping_pong) {
    switch (ping_pong) {
    case PingPong::none: return "none";
    case PingPong::mma: return "mma";
    case PingPong::softmax: return "softmax";
    }
    return "";
}

std::string text_of(const ForwardSchedule& schedule) {
    std::string text = formatted(
        "warpgroups={} keys={} stages={} overlap={} ping_pong={} rescale={}", schedule.consumers,
        schedule.key_tile, schedule.query_stages, schedule.overlaps ? "yes" : "no",
        name(schedule.ping_pong), schedule.rescales_after);
    if (schedule.polynomials != 0) text += formatted(" polynomials={}", schedule.polynomials);
    return text;
}

std::optional<ForwardSchedule> read_schedule(std::string_view text) {
    ForwardSchedule schedule;
    std::string_view rest = text;
    if (!take_number(rest, "warpgroups", schedule.consumers) ||
        !take_number(rest, "keys", schedule.key_tile) ||
        !take_number(rest, "stages", schedule.query_stages))
        return {};
    const auto overlaps = take(rest, "overlap");
    schedule.overlaps = overlaps == "yes";
    if (!overlaps || !take_ping_pong(rest, schedule.ping_pong) ||
        !take_number(rest, "rescale", schedule.rescales_after) ||
        (!rest.empty() && !take_number(rest, "polynomials", schedule.polynomials)))
        return {};
    // Each schedule has exactly one text, so that equal schedules are equal cache keys.
    if (text_of(schedule) != text) return {};
    return schedule;
}

} // namespace flexc::plan
