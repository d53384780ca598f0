// Which of b, h, q, kv and score a value uses.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace flexc::analysis {

struct Dependence {
    std::uint8_t bits = 0;
    enum Bit : std::uint8_t { b = 1, h = 2, q = 4, kv = 8, score = 16 };

    bool has(Bit bit) const { return (bits & bit) != 0; }
    friend bool operator==(Dependence, Dependence) = default;
    friend Dependence operator|(Dependence x, Dependence y) {
        return {static_cast<std::uint8_t>(x.bits | y.bits)};
    }
};

inline constexpr unsigned kPositions = Dependence::q | Dependence::kv;
// What varies within a head.
inline constexpr unsigned kInsideHead = kPositions | Dependence::score;

Dependence dependence_of_leaf(ir::Op op); // nothing for operators and reads
// Returns one entry per node. h_kv counts as h, and leaves that differ from request to request
// count as b.
std::vector<Dependence> dependences(const ir::Graph& graph);
// Adds entries for nodes that were made since.
void extend_dependences(std::vector<Dependence>& dependence, const ir::Graph& graph);
std::string describe(Dependence dependence); // "b, h, q_idx"; "nothing"

} // namespace flexc::analysis
