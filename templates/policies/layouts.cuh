// How queries and keys lie in memory: templates/common/sequences.h has the rows of requests.
#pragma once

namespace defaults {

struct Layouts {
    static constexpr bool kAreDense = true; // both, [B, H, S, D] with any strides
    static constexpr bool kQueriesAreRagged = false;
    static constexpr bool kKeysAreRagged = false, kKeysArePaged = false;
};

} // namespace defaults
