// Nodes of a mod as CUDA expressions, and the split of a mod over the places that compute it.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cuda/names.h"
#include "passes/mod.h"
#include "passes/precision.h"
#include "passes/staged_table.h"

namespace flexc::cuda {

enum class CType : std::uint8_t { boolean, narrow, wide, real };
const char* spelling(CType type);

// What every function of a mod's text shares: names, types, and what each place keeps.
class Layout {
  public:
    // roots: of all functions that will be written. most: the lowest precision that values may
    // have, see passes/precision.h.
    Layout(const passes::Mod& mod, const std::vector<ir::NodeId>& roots, passes::Precision most);

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
    CType type_of(ir::NodeId id) const;

    const passes::Mod* mod_;
    std::vector<ArgumentField> fields_;
    std::vector<CType> types_;
    std::vector<passes::Precision> precisions_;
    std::array<std::vector<ir::NodeId>, 4> kept_;
    std::vector<ir::NodeId> narrow_reads_;
    std::vector<ir::NodeId> divisors_; // that are not constant
    const passes::StagedTables* staged_ = nullptr;
    bool splits_positions_ = false;
};

// Name of the field that holds the reciprocal, in the struct of the place that computes it.
std::string reciprocal_name(ir::NodeId divisor);

// The statements of one function.
class Body {
  public:
    // Nodes of `here` are computed in the function and earlier ones taken from the structs.
    // `access` comes before the names of structs and ambient values: "at." or "".
    Body(const Layout& layout, passes::Place here, std::string access);
    // The body of a function that computes nothing itself, outside of rows and columns and later
    // than the head.
    static Body after_head(const Layout& layout) { return {layout, passes::Place::element, ""}; }

    // Says that the node's value exists under this name, whatever its place. Before compute().
    void provide(ir::NodeId id, std::string name) { values_[id] = std::move(name); }
    // Makes reads of floats that may be outside their buffers use predicated loads instead of
    // branches: for functions that are inlined for many elements, so that their loads can overlap.
    void read_without_branches() { reads_without_branches_ = true; }
    // Makes reads of staged tables load from shared memory. checks_all: check every index for each
    // element, even those that are checked once a tile elsewhere. guesses_logs: int(log(x) * c) may
    // round to another integer where the element's `doubt` becomes true. Before compute().
    void read_staged_tables(bool checks_all, bool guesses_logs) {
        reads_staged_ = true;
        checks_all_ = checks_all;
        guesses_logs_ = guesses_logs;
    }
    bool has_guesses() const { return has_guesses_; }
    // Declares the values of the roots. Called once, before any text is asked for.
    void compute(const std::vector<ir::NodeId>& roots);
    // Writes a loop over a counter. The values that its nodes need must have been computed; `fill`
    // adds statements to the body of the loop.
    void loop(ir::NodeId counter, const std::function<void(Body&)>& fill);
    // Writes the body of such a loop alone, for a value of the counter that exists under its name.
    void term(ir::NodeId counter, const std::function<void(Body&)>& fill);
    std::string text(ir::NodeId id) const;
    std::string text_as(ir::NodeId id, CType type) const;

    // For the element that a read names: inside() is the condition that it is in its buffer (""
    // when that is proven), offset() its offset from `data`.
    std::string inside(ir::NodeId read) const;
    std::string offset(ir::NodeId read, passes::ArgumentSlot::Kind stride) const;

    // Base address, for one head, of a read with narrow offsets.
    std::string base(ir::NodeId read) const;
    // The part of a narrow read's offset that a place knows, in 32 bits; "" for none.
    std::string offset_part(ir::NodeId read, passes::ArgumentSlot::Kind stride,
                            passes::Place place) const;

    std::string argument(passes::ArgumentSlot slot) const;
    void line(const std::string& statement) { text_ += "    " + statement + "\n"; }
    void lines_of(const Body& inner); // as statements of a block in this one
    const std::string& statements() const { return text_; }
    // Estimated number of instructions of what compute() declared.
    int instructions() const { return instructions_; }

  private:
    bool is_local(ir::NodeId id) const;
    std::vector<ir::NodeId> needs(ir::NodeId id) const;
    std::string expression(ir::NodeId id);
    std::string sum(ir::NodeId id);
    std::string operation(ir::NodeId id) const;
    std::string reciprocal(ir::NodeId divisor) const;
    bool is_plain(ir::NodeId id) const;
    bool is_narrow_distance(ir::NodeId id) const;
    std::string read(ir::NodeId id) const;
    const passes::StagedTable* staged_table(ir::NodeId read) const;
    std::string read_staged(const passes::StagedTable& table) const;
    std::vector<passes::AddressSplit::Index> checked_indices(const passes::StagedTable&) const;
    struct IndexTerm {
        ir::NodeId node;
        bool is_negative;
    };
    std::vector<IndexTerm> index_terms(ir::NodeId index) const;
    bool has_narrow_offset(ir::NodeId read) const;
    std::string narrow_offset(ir::NodeId read, passes::ArgumentSlot::Kind stride) const;
    std::string offset_of_head(ir::NodeId read, passes::ArgumentSlot::Kind stride) const;
    std::string address(ir::NodeId read) const;

    std::string split_position(ir::NodeId integer) const;
    std::string int_of_log(ir::NodeId real_to_int) const;
    std::string int_of_sqrt(ir::NodeId real_to_int) const;
    std::string bounded_int_of_sqrt(ir::NodeId imin) const;
    std::string square_of_int_of_sqrt(ir::NodeId real_to_int) const;
    std::string free_value(ir::NodeId id) const;
    std::string of_request(ir::Op leaf) const;
    std::vector<std::pair<passes::Place, std::string>>
    by_place(ir::NodeId read, const std::vector<std::string>& terms) const;

    const Layout* layout_;
    passes::Place here_;
    std::string access_;
    ir::NodeId counter_ = ir::kNoNode; // whose loop this is the body of
    bool reads_without_branches_ = false;
    bool reads_staged_ = false, checks_all_ = false;
    bool guesses_logs_ = false, has_guesses_ = false;
    std::map<ir::NodeId, std::string> values_; // name or expression of each local node
    std::string text_;
    int instructions_ = 0;
};

// Text of a __device__ function; the signature is without "__device__" and what goes with it.
std::string device_function(std::string_view signature, const Body& body);
// Text of "TYPE NAME(const At& at, ...)", a function of an element that kernels inline for each
// element of a thread. If it is too long for that, it calls one that is not inlined and takes the
// values of `at` as arguments, so that they can stay in registers. parameter: name of a float
// argument after `at`, or "". instructions_beside: what else is inlined for each element.
std::string element_function(std::string_view type, std::string_view name,
                             std::string_view parameter, const Body& body,
                             int instructions_beside = 0);
// Text of a function of an earlier place than the element that calls a function which is not
// inlined. The body is written with "at." before the names of the parameters.
std::string called_place_function(std::string_view type, std::string_view name,
                                  std::string_view parameters, const Body& body);
// Drops brackets around the whole text.
std::string unbracketed(std::string text);
std::string real_literal(double value);
std::string integer_literal(std::int64_t value, CType type);

} // namespace flexc::cuda
