// Which tiles of the score matrix a mask leaves empty, and which it leaves whole.
//
// What uses q alone or kv alone is evaluated exactly, once for each position; its least and
// greatest value in a tile enter interval arithmetic over the few operators that bring q and kv
// together. Where that does not tell, the elements of the tile are looked at until one is visible
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

// How much work it takes to know the tiles of a mask.
enum class MaskTier : std::uint8_t {
    constant,    // all or nothing is visible
    closed_form, // a range of keys for each query, from a few numbers of each head
    tile_tests,  // intervals of what q and kv alone give, tile by tile
    exhaustive,  // nothing but a look at the elements tells
};
MaskTier tier_of(const ir::Graph& graph, ir::NodeId mask, const Band& band);

// Whether other arithmetic than that of the kernels, more exact, may see other elements.
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

// What an operator of this type gives in a tile, from what its operands can be there; and whether
// anything is ever known of that.
interval::Fact tile_interval(ir::Op op, ir::Type type,
                             const std::array<interval::Fact, 3>& operands);
bool has_tile_interval(ir::Op op);

// The tiles of one (b, h).
class TileClassifier {
  public:
    // The environment names b, h, h_kv, sizes, params and buffers. The program must stay. Once the
    // watch is over, answers come soon and mean nothing.
    TileClassifier(const ir::Program& program, ir::NodeId mask, const ir::Environment& environment,
                   TiledAxis queries, TiledAxis keys, support::Watch watch = {});

    TileClass classify(std::int64_t query_tile, std::int64_t key_tile) const;
    // By intervals alone; nothing where they do not tell.
    std::optional<TileClass> test(std::int64_t query_tile, std::int64_t key_tile) const;

  private:
    // What one side gives: values of some nodes at each position, and their intervals in each tile.
    struct Side {
        TiledAxis axis;
        std::vector<ir::NodeId> nodes;
        std::vector<ir::Value<double>> values; // [position][node]
        std::vector<interval::Fact> facts;     // [tile][node]
    };

    void find_nodes();
    void fill(Side& side, Dependence::Bit variable);
    TileClass look(std::int64_t query_tile, std::int64_t key_tile) const;
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
