// Addends of scores that use keys through one integer of few values, the kind of a key: t[g[q_idx],
// k[kv_idx]]. With one column for each kind, such an addend is a product of a row of addends and a
// row of zeros with a one where the key's kind is.
#pragma once

#include "passes/mod.h"

namespace flexc::passes {

struct KeyKinds {
    int count = 0;                 // 0: there is no such addend
    ir::NodeId kind = ir::kNoNode; // uses kv, b and h; outside of [0, count) nothing is added
    ir::NodeId addend_of_kind = ir::kNoNode; // with kv_idx in place of the key's kind
    bool found() const { return count != 0; }
};

// More than any kernel multiplies by.
inline constexpr int kMostKeyKinds = 64;

// Of a real addend all of whose terms are multiples of reads by one kind of the key. Adds nodes to
// the mod's graph, of which facts are not known.
KeyKinds find_key_kinds(Mod& mod, ir::NodeId addend);

} // namespace flexc::passes
