// Addends of scores that depend on the key through one integer of few values, the kind of a key:
// t[g[q_idx], k[kv_idx]]. With one column for each kind, such an addend is the product of a row of
// addends and a one-hot row of the key's kind. Or pairs of a query and a key have kinds, by an
// integer that is stored for each pair: t[h, d[q_idx, kv_idx]].
#pragma once

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
    bool found() const { return count != 0; }
};

// Upper bound on kinds; no kernel multiplies by as many. Those of pairs, and that a pair has none,
// are bytes.
inline constexpr int kMostKeyKinds = 64;
inline constexpr int kMostPairKinds = 255;

// Finds the kind in a real addend whose terms are all multiples of reads by the same kind. Adds
// nodes to the mod's graph, for which facts are not yet known.
KeyKinds find_key_kinds(Mod& mod, ir::NodeId addend);

} // namespace flexc::passes
