// How queries and keys lie in memory: common/sequences.h has the rows of requests.
#pragma once

#include "keys/in_order.h"

namespace defaults {

struct Layouts {
    static constexpr bool kAreDense = true; // both, [B, H, S, D] with any strides
    static constexpr bool kQueriesAreRagged = false;
    static constexpr bool kKeysAreRagged = false;
    using Keys = KeysInOrder; // says where keys lie: a class of keys/
};

} // namespace defaults
