// How Hopper's forward divides its work between warpgroups and in time.
#pragma once

namespace defaults {

enum class PingPong { none, mma, softmax }; // what one warpgroup does at a time

struct ForwardSchedule {
    static constexpr bool kOverlaps = true; // products run under the softmax of the next keys
    static constexpr PingPong kPingPong = PingPong::none;
    static constexpr int kRescalesAfter = 0; // columns exponentiated before products are awaited
    static constexpr int kPolynomials = 0;   // of eight columns, whose exponentials are polynomials
    // Tiles of keys come from where most is added: sm90/key_walk.cuh.
    static constexpr bool kStartsAtHighest = false;
    // Much is read for each element: addends of a few of a thread's come at a time, in a loop.
    static constexpr bool kComputesInParts = false;
    static constexpr bool kHasRegistersForColumns = true; // a value for each of a thread's
};

} // namespace defaults
