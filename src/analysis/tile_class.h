// Classifies tiles of the score matrix: which ones a mask leaves empty, and which full.
//
// Values of q alone or kv alone are evaluated exactly, once for each position; their least and
// greatest values in a tile are combined by interval arithmetic over the few operators that use
// both q and kv. If that does not decide a tile, its elements are evaluated until one is visible
// and one is hidden.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "analysis/band.h"
#include "analysis/dependence.h"
#include "common/interval.h"
#include "ir/interp.h"
#include "support/watch.h"

namespace flexc::analysis {

// How much work it takes to classify the tiles of a mask.
enum class MaskTier : std::uint8_t {
    constant,    // all or nothing is visible
    closed_form, // a range of keys for each query, from a few numbers of each head
    tile_tests,  // intervals of what q and kv alone give, tile by tile
    exhaustive,  // only the elements themselves tell
};
MaskTier tier_of(const ir::Graph& graph, ir::NodeId mask, const Band& band);

// Whether arithmetic that is more exact than the kernels' may give other visible elements.
bool uses_real_arithmetic(const ir::Graph& graph, ir::NodeId mask);

enum class TileClass : std::uint8_t { empty, partial, full };

// Positions [0, length) of a call's tensors, in tiles; the program sees them shifted by `offset`.
struct TiledAxis {
    std::int64_t length = 0, offset = 0, tile = 0;
    std::int64_t tiles() const { return (length + tile - 1) / tile; }
    std::int64_t begin(std::int64_t index) const { return index * tile; }
    std::int64_t end(std::int64_t index) const {
        return index + 1 == tiles() ? length : (index + 1) * tile;
    }
};

// The interval of an operator's result in a tile, given its operands' intervals; and whether
// anything is ever known of it.
interval::Fact tile_interval(ir::Op op, ir::Type type,
                             const std::array<interval::Fact, 3>& operands);
bool has_tile_interval(ir::Op op);

// Classifies the tiles of one (b, h).
class TileClassifier {
  public:
    // The environment has values for b, h, h_kv, sizes, params and buffers. The program must
    // outlive this object. Once the watch is over, results come at once and are meaningless.
    TileClassifier(const ir::Program& program, ir::NodeId mask, const ir::Environment& environment,
                   TiledAxis queries, TiledAxis keys, support::Watch watch = {});

    TileClass classify(std::int64_t query_tile, std::int64_t key_tile) const;
    // Classifies by intervals alone; nothing if these do not decide.
    std::optional<TileClass> test(std::int64_t query_tile, std::int64_t key_tile) const;

  private:
    // One side's values: those of some nodes at each position, and their intervals in each tile.
    struct Side {
        TiledAxis axis;
        std::vector<ir::NodeId> nodes;
        std::vector<ir::Value<double>> values; // [position][node]
        std::vector<interval::Fact> facts;     // [tile][node]
    };

    void find_nodes();
    void fill(Side& side, Dependence::Bit variable);
    TileClass evaluate(std::int64_t query_tile, std::int64_t key_tile) const;
    void put(const Side& side, std::int64_t position) const;
    bool is_over() const;

    const ir::Program& program_;
    ir::NodeId mask_;
    ir::Environment environment_;
    std::vector<std::uint8_t> positions_;      // that each node uses: bits of Dependence
    std::vector<ir::NodeId> fixed_, elements_; // in order: without q and kv; with both
    Side queries_, keys_;
    support::Watch watch_;
    mutable std::uint32_t evaluations_ = 0;
    // One entry per node, so that nothing is allocated for a tile.
    mutable std::vector<ir::Value<double>> values_;
    mutable std::vector<interval::Fact> facts_;
};

} // namespace flexc::analysis
