// How Hopper's forward divides its work between warpgroups and in time.
#pragma once

namespace defaults {

enum class PingPong { none, mma, softmax }; // what one warpgroup does at a time

struct ForwardSchedule {
    static constexpr bool kOverlaps = true; // products run under the softmax of the next keys
    static constexpr PingPong kPingPong = PingPong::none;
    static constexpr int kRescalesAfter = 0; // columns exponentiated before products are awaited
    static constexpr int kPolynomials = 0;   // of eight columns, whose exponentials are polynomials
    // Whether tiles of keys are visited from where most is added to scores: sm90/key_walk.cuh.
    static constexpr bool kStartsAtHighest = false;
    // Whether all tiles of a head come before those of the next, as sequences are short.
    static constexpr bool kGoesByHeads = false;
    // Whether addends are computed for a few of a thread's columns at a time, in a loop, as much is
    // read for each element.
    static constexpr bool kComputesInParts = false;
    // Whether the loop over tiles of keys visits the first one too, instead of code of its own, as
    // elements compute much.
    static constexpr bool kVisitsFirstInLoop = false;
    static constexpr bool kHasRegistersForColumns =
        true; // for a value of each of a thread's columns
};

} // namespace defaults
