// Nodes of a mod as CUDA expressions, statements and functions. Reads are in reads.cpp, functions
// in functions.cpp.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/symbol_table.h"

namespace flexc::cuda {

// The statements of one function.
class Body {
  public:
    // Nodes of `here` are computed in the function and earlier ones taken from the structs.
    // `access` comes before the names of structs and ambient values: "at." or "".
    Body(const SymbolTable& symbols, passes::Place here, std::string access);
    // The body of a function that computes nothing itself, outside of rows and columns and later
    // than the head.
    static Body after_head(const SymbolTable& symbols) {
        return {symbols, passes::Place::element, ""};
    }

    // Says that the node's value exists under this name, whatever its place. Before compute().
    void provide(ir::NodeId id, std::string name) { values_[id] = std::move(name); }
    // Makes reads of floats that may be outside their buffers use predicated loads instead of
    // branches: for functions that are inlined for many elements, so that their loads can overlap.
    void read_without_branches() { reads_without_branches_ = true; }
    // Makes reads whose values nobody uses go, with what their addresses take. Before compute().
    void read_if_used() { reads_if_used_ = true; }
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

    // The address of the element that a read names, in its buffer and in the buffer's gradient;
    // null if the element is outside.
    std::string element_address(ir::NodeId read) const;
    std::string gradient_address(ir::NodeId read) const;

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
    // Number of reads among it.
    int reads() const { return reads_; }

  private:
    bool is_local(ir::NodeId id) const;
    std::vector<ir::NodeId> needs(ir::NodeId id) const;
    std::string expression(ir::NodeId id);
    std::string sum(ir::NodeId id);
    std::string operation(ir::NodeId id) const;
    std::string reciprocal(ir::NodeId divisor) const;
    bool is_plain(ir::NodeId id) const;
    bool is_narrow_distance(ir::NodeId id) const;
    std::string text_of(const ClampedDifference& difference) const;
    std::string sum_inside(ir::NodeId index, const std::string& narrow_extent) const;
    std::string read(ir::NodeId id) const;
    const passes::StagedTable* staged_table(ir::NodeId read) const;
    std::string read_staged(const passes::StagedTable& table) const;
    // Whether elements may be others than those whose address is split.
    bool reads_any_address(const passes::StagedTable& table) const {
        return checks_all_ && !table.where.empty();
    }
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
    std::string address_inside(ir::NodeId read, passes::ArgumentSlot::Kind data,
                               passes::ArgumentSlot::Kind stride) const;

    std::string split_position(ir::NodeId integer) const;
    std::string int_of_log(ir::NodeId real_to_int) const;
    std::string int_of_sqrt(ir::NodeId real_to_int) const;
    std::string bounded_int_of_sqrt(ir::NodeId imin) const;
    std::string square_of_int_of_sqrt(ir::NodeId real_to_int) const;
    std::string free_value(ir::NodeId id) const;
    std::string of_request(ir::Op leaf) const;
    std::vector<std::pair<passes::Place, std::string>>
    by_place(ir::NodeId read, const std::vector<std::string>& terms) const;

    const SymbolTable* symbols_;
    passes::Place here_;
    std::string access_;
    ir::NodeId counter_ = ir::kNoNode; // whose loop this is the body of
    bool reads_without_branches_ = false, reads_if_used_ = false;
    bool reads_staged_ = false, checks_all_ = false;
    bool guesses_logs_ = false, has_guesses_ = false;
    std::map<ir::NodeId, std::string> values_; // name or expression of each local node
    std::string text_;
    int instructions_ = 0, reads_ = 0;
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
// The same where it is too long, with these parameters behind `at`.
struct Parameter {
    std::string_view type, name;
};
std::string called_element_function(std::string_view type, std::string_view name,
                                    std::span<const Parameter> behind, const Body& body);
// Text of a function of an earlier place than the element that calls a function which is not
// inlined. The body is written with "at." before the names of the parameters.
std::string called_place_function(std::string_view type, std::string_view name,
                                  std::string_view parameters, const Body& body);
// Drops brackets around the whole text.
std::string unbracketed(std::string text);
std::string real_literal(double value);
std::string integer_literal(std::int64_t value, CType type);

} // namespace flexc::cuda
