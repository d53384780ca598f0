// How a block of a warp-specialized forward divides its work, and its text form, which users and
// caches keep.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace flexc::plan {

// Which part of the main loop the warpgroups of a block run one at a time.
enum class PingPong : std::uint8_t { none, mma, softmax };
std::string_view name(PingPong ping_pong);

struct ForwardSchedule {
    int consumers = 2; // warpgroups of 64 rows each
    int key_tile = 128;
    int query_stages = 1;
    bool overlaps = true; // products of one block of keys run under the softmax of the next
    PingPong ping_pong = PingPong::none;
    int rescales_after = 0; // columns whose exponents come before earlier products are awaited
    int polynomials = 0;    // of eight columns, whose powers of two are polynomials

    bool operator==(const ForwardSchedule&) const = default;
};

// "warpgroups=2 keys=128 stages=1 overlap=yes ping_pong=mma rescale=8", and where there are some,
// " polynomials=3".
std::string text_of(const ForwardSchedule& schedule);
// Empty unless the text is exactly what text_of gives.
std::optional<ForwardSchedule> read_schedule(std::string_view text);

} // namespace flexc::plan
