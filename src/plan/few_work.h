// What requests with few queries need of launches, as far as the host knows their lengths.
#pragma once

#include <cstdint>

namespace flexc::plan {

struct FewWork {
    std::int64_t parts = 0;          // of keys, for each head of keys
    std::int64_t merging_blocks = 0; // for each request and head: as many as one of them needs
    bool has_others = false;         // requests with more queries
};

} // namespace flexc::plan
