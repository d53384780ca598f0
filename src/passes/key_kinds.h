// Addends of scores that depend on the key through one integer of few values, the kind of a key:
// t[g[q_idx], k[kv_idx]]. With one column for each kind, such an addend is the product of a row of
// addends and a one-hot row of the key's kind. Or pairs of a query and a key have kinds, by an
// integer that is stored for each pair: t[h, d[q_idx, kv_idx]]; or by several, and conditions
// beside them, all of which a kind is digits of:
// where(q_idx == 0, a[h], t[h, d[q_idx, kv_idx]] + u[h, e[q_idx, kv_idx]]).
#pragma once

#include <cstdint>
#include <vector>

#include "passes/mod.h"

namespace flexc::passes {

struct KeyKinds {
    int count = 0;                 // 0: there is no such addend
    ir::NodeId kind = ir::kNoNode; // uses kv, b and h; outside of [0, count) nothing is added
    ir::NodeId addend_of_kind = ir::kNoNode; // with kv_idx in place of the kind
    // Of pairs: the kind uses q, kv and b, and reads memory for each pair. What a kind adds is one
    // number for a head.
    bool are_of_pairs = false;
    bool pairs_use_batch = false;
    std::vector<ir::NodeId> indices; // of reads, that decide the kind
    // Dims of buffers whose extent a call binds, and the most that there are kinds for. Such calls
    // have those alone.
    struct BoundDim {
        std::uint32_t buffer = 0, dim = 0;
        std::int64_t most = 0;
    };
    std::vector<BoundDim> bound;
    bool found() const { return count != 0; }
};

// Upper bound on kinds; no kernel multiplies by as many. Those of pairs are one or two bytes, and
// a head has a number for each in shared memory.
inline constexpr int kMostKeyKinds = 64;
inline constexpr int kMostPairKinds = 8192, kMostByteKinds = 255;

// Finds the kind in a real addend whose terms are all multiples of reads by the same kind; or that
// of pairs in one that is any function of the head and of what decides the kind. Adds nodes to the
// mod's graph, for which facts are not yet known.
KeyKinds find_key_kinds(Mod& mod, ir::NodeId addend);

} // namespace flexc::passes
