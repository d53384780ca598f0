// Nodes of a mod as instructions, each in the block of the function where its place puts it.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cpu/access.h"
#include "cpu/loop_metadata.h"
#include "passes/mod.h"

namespace flexc::cpu {

// Blocks of an emitted function. entry: once a tile (launch and head); column: a loop over kv, once
// a tile; row: once a query row; element: the loop over kv inside a row. Beyond these, each loop
// over the terms of a sum is a block of its own.
enum class Block : std::uint8_t { entry, column, row, element };
inline constexpr std::size_t kBlocks = 4;

// The values of one function. Names that the blocks may use: %args, and as i32 %b %h %h_kv %q_begin
// %kv_begin %row (the row's number) %j_column %j_element (the column's); %scratch and, behind its
// arrays, %nowhere, which is written and never read; in the element block %score.
class Values {
  public:
    // dense: assume stride 1 for reads and gradients that change with kv through one index.
    Values(const passes::Mod& mod, bool dense, int first_scratch_array,
           const LoopMetadata& metadata);

    // Requests a node's value in a block; all requests come before emit().
    void need(ir::NodeId id, Block block);
    void emit();

    // A loop over the terms of gradients: a block over columns, after those of a row.
    Block gradient_loop(ir::NodeId counter);
    struct LoopParts {
        std::string phis;        // once a term
        std::string column_phis; // where a loop over columns begins
        std::string each;        // after the values
        std::string after;       // after a loop over columns
    };
    std::string loop_text(Block block, const LoopParts& parts);
    std::string letter(Block block) const; // that names of its values begin with
    std::string column(Block block) const; // the number of the column
    // The loops of sums over columns that come between a block and the columns.
    const std::string& sums(Block outer) const {
        return outer == Block::entry ? entry_sums_ : row_sums_;
    }

    const std::string& text(Block block) const { return texts_[static_cast<std::size_t>(block)]; }
    // Operand text of a node in a block where it was requested.
    std::string value(ir::NodeId id, Block block) const;
    // Where the gradient of a read is added: the name of a pointer that may be written in any case
    // and, if an index may be outside, of a condition (else ""). Appends to `out`; the indices must
    // have been requested in `block`.
    struct Address {
        std::string pointer, condition, offset;
    };
    Address gradient_address(ir::NodeId read, Block block, std::string& out);
    void need_indices(ir::NodeId read, Block block);
    std::string gradient_base(ir::NodeId read);
    std::string wide_integer(ir::NodeId id, Block block, std::string& out) {
        return integer(id, 64, block, out);
    }
    std::string out_of_range_pointer() {
        return pointer(slot(passes::ArgumentSlot::Kind::out_of_range, 0));
    }

    bool has_columns() const { return !texts_[static_cast<std::size_t>(Block::column)].empty(); }
    int scratch_arrays() const { return next_array_; }
    // Stride slots that `dense` takes to be 1.
    const std::vector<int>& dense_slots() const { return dense_slots_; }

  private:
    struct Loop {
        ir::NodeId sum; // none: of gradients
        ir::NodeId counter;
        Block outer = Block::entry; // entry or row
        bool over_columns = false;
    };
    void find_loops();
    void add_loop(Loop loop);
    const Loop* loop(Block block) const; // null for the four others
    bool is_in_row(Block block) const;   // a loop over columns in a row
    void need_range(ir::NodeId counter);
    void need_sum(ir::NodeId sum);
    void emit_nodes(Block block);
    void emit_scalar_sum(ir::NodeId sum, std::string& out);
    std::string column_sum(ir::NodeId sum);
    std::string column_sums(Block outer);
    std::string term_of(ir::NodeId sum, std::string& out);

    Block home(ir::NodeId id, Block user) const;
    bool is_literal(ir::NodeId id) const;
    int width(ir::NodeId id) const;
    std::string type(ir::NodeId id) const;
    std::string name(ir::NodeId id, Block block) const;
    std::string integer(ir::NodeId id, int bits, Block block, std::string& out);
    int slot(passes::ArgumentSlot::Kind kind, std::uint32_t index, std::uint32_t dim = 0) const;
    std::string word(int slot); // an i64 of the launch arguments
    std::string pointer(int slot);
    std::string field(int field, std::string_view type); // a TileField, where few programs read it

    void emit_node(ir::NodeId id, Block block);
    void emit_leaf(ir::NodeId id, Block block, std::string& out);
    void emit_operator(ir::NodeId id, Block block, std::string& out);
    bool emit_division(ir::NodeId id, Block block, std::string& out);
    void emit_read(ir::NodeId id, Block block, std::string& out);
    void emit_load(ir::NodeId id, const std::string& address, Block block, std::string& out);
    bool fetches(ir::NodeId id, Block block) const; // from an array
    void keep_column(ir::NodeId id, Block block);
    void fetch_column(ir::NodeId id, Block block);
    int array_of(ir::NodeId id);
    struct Offset {
        std::string offset, condition;
    };
    Offset offset(ir::NodeId read, Block block, bool gradient, const std::string& prefix,
                  std::string& out);
    std::string base(ir::NodeId read);
    std::string group(Block block) const;

    const passes::Mod& mod_;
    bool dense_;
    std::vector<passes::ArgumentSlot> slots_;
    std::vector<bool> costly_; // a column value that is kept instead of computed in every row
    std::vector<std::vector<bool>> needed_; // by block
    std::vector<bool> kept_;
    std::map<ir::NodeId, int> arrays_;
    int next_array_;
    std::vector<std::string> texts_; // by block
    std::string entry_sums_, row_sums_;
    std::vector<Loop> loops_;
    std::map<ir::NodeId, Block> loop_of_; // of each sum
    LoopMetadata metadata_;
    std::map<int, std::string> words_;
    std::set<int> fields_;
    std::set<std::string> widened_, guarded_;
    std::vector<int> dense_slots_;
};

// A float as LLVM spells it.
std::string literal(double value);

} // namespace flexc::cpu
