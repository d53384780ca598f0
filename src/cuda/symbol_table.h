// What all functions of a mod's text share: names, types, and which place computes and keeps what.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cuda/names.h"
#include "passes/mod.h"
#include "passes/precision.h"
#include "passes/staged_table.h"

namespace flexc::cuda {

enum class CType : std::uint8_t { boolean, narrow, wide, real };
const char* spelling(CType type);

// min(max(x - y, least), most), or both the other way around, for least <= 0 <= most, where x and y
// have 32 bits and their difference needs 64.
struct ClampedDifference {
    ir::NodeId x, y;
    std::int64_t least, most;
};

class SymbolTable {
  public:
    // roots: of all functions that will be written. most: the lowest precision that values may
    // have, see passes/precision.h.
    SymbolTable(const passes::Mod& mod, const std::vector<ir::NodeId>& roots,
                passes::Precision most);

    const passes::Mod& mod() const { return *mod_; }
    const ir::Node& node(ir::NodeId id) const { return mod_->program.graph[id]; }
    passes::Place place(ir::NodeId id) const { return mod_->place[id]; }
    CType type(ir::NodeId id) const { return types_[id]; }

    // Whether a node is a constant, ambient value or argument: these cost nothing, so no place
    // keeps them.
    bool is_free(ir::NodeId id) const;
    // Whether a node is a comparison of integers: computing it costs one instruction, as reading a
    // kept result would, but no register, so every function that needs it computes it.
    bool is_repeated(ir::NodeId id) const;
    // Whether the value changes with the counter of a sum.
    bool is_of_term(ir::NodeId id) const { return mod_->counters[id] != ir::kNoNode; }
    passes::Precision precision(ir::NodeId id) const { return precisions_[id]; }
    bool is_fast(ir::NodeId id) const { return precision(id) != passes::Precision::exact; }
    // Called for kernels whose elements lie at constant distances from a first one, at first_q and
    // first_kv: an integer that is affine in both positions becomes a float computed there plus a
    // constant.
    void split_positions() { splits_positions_ = true; }
    bool splits_positions() const { return splits_positions_; }
    // Called for kernels whose threads have few keys, each with many queries; threads of others
    // have few queries.
    void share_columns() { shared_ = passes::Place::column; }
    // Whether many elements of a thread share the value.
    bool is_shared(ir::NodeId id) const {
        return place(id) <= passes::Place::head || place(id) == shared_;
    }
    // Called for kernels whose buffers have offsets that fit into 32 bits (plan::small_buffers()),
    // which then compute the offsets of elements in 32 bits. key_width: of the 2-D key index, 0 for
    // none.
    void use_narrow_offsets(const std::vector<ir::NodeId>& roots, int key_width);
    // Called for kernels that keep these tables in shared memory: addresses there are computed in
    // 32 bits. staged_table() returns null for a read of any other table.
    void stage_tables(const passes::StagedTables& staged);
    const passes::StagedTable* staged_table(ir::NodeId read) const;
    std::ptrdiff_t staged_index(const passes::StagedTable& table) const {
        return &table - staged_->tables.data();
    }
    // Whether a node was made for the address in a staged table: it may overflow and wrap, because
    // only the sum of such nodes is an index.
    bool wraps(ir::NodeId id) const {
        return staged_ != nullptr && id >= staged_->first_node && !is_free(id);
    }
    // The argument that holds this size. If the program does not use the size itself, that is the
    // extent of a buffer.
    passes::ArgumentSlot slot_of_size(std::uint32_t size) const;
    // Reads for each element whose offsets are computed in 32 bits. The parts of an offset that
    // depend on the row or column alone are kept with their values: Body::offset_part().
    const std::vector<ir::NodeId>& narrow_reads() const { return narrow_reads_; }
    // Whether a quotient of an element by a value of its head may be a few roundings off, so that
    // the element is multiplied by a reciprocal instead.
    bool has_reciprocal(ir::NodeId quotient) const;
    // Divisors, other than constants, whose reciprocals this place computes and keeps.
    std::vector<ir::NodeId> divisors(passes::Place place) const;
    // Whether a quotient or remainder is computed by its divisor's reciprocal, an argument.
    bool has_integer_reciprocal(ir::NodeId quotient) const;
    // What the node clamps, if it is such a difference; else null.
    const ClampedDifference* clamped_difference(ir::NodeId id) const;
    // Values that a place computes for later ones, in the order of the graph.
    const std::vector<ir::NodeId>& kept(passes::Place place) const {
        return kept_[static_cast<std::size_t>(place)];
    }
    const std::vector<ArgumentField>& fields() const { return fields_; }
    const std::string& field(passes::ArgumentSlot slot) const;

  private:
    void keep(const std::vector<ir::NodeId>& roots);
    void find_divisors(const std::vector<ir::NodeId>& roots);
    void narrow_clamped();
    void find_clamped_differences();
    CType type_of(ir::NodeId id) const;

    const passes::Mod* mod_;
    std::vector<ArgumentField> fields_;
    std::vector<CType> types_;
    std::vector<passes::Precision> precisions_;
    std::array<std::vector<ir::NodeId>, 4> kept_;
    std::vector<ir::NodeId> narrow_reads_;
    std::map<ir::NodeId, ClampedDifference> clamped_differences_;
    std::vector<ir::NodeId> divisors_; // that are not constant
    const passes::StagedTables* staged_ = nullptr;
    bool splits_positions_ = false;
    passes::Place shared_ = passes::Place::row;
};

// Name of the field that holds the reciprocal, in the struct of the place that computes it.
std::string reciprocal_name(ir::NodeId divisor);

} // namespace flexc::cuda
