// Sums of some elements at once, by loops over their terms: the part of mod.cuh that forwards and
// backwards have in common.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cuda/expressions.h"
#include "passes/decompose.h"
#include "plan/kernel.h"

namespace flexc::cuda {

// Members of a type for the terms of one counter: the counter's type and range; a parameter for its
// value; and "Parts parts(at, carried, counter)", the `values` of a term. given: values that
// elements compute before the loop, and carry into it.
std::string counter_range(const SymbolTable& symbols, ir::NodeId counter);
std::string counter_parameter(const SymbolTable& symbols, ir::NodeId counter);
std::string term_parts(const SymbolTable& symbols, ir::NodeId counter,
                       const std::vector<ir::NodeId>& given, const std::vector<ir::NodeId>& values);

// Text of enter(), which stores what an element carries into the terms; and, if that is too long to
// be inlined for each element, of the function that it calls.
struct EnterText {
    std::string called, member;
};
// body: that of an element's function. prefix: of the names.
EnterText enter_text(Body body, const std::vector<ir::NodeId>& given, std::string_view prefix = "");
// Says in the body of an element's function that the sums are in At::sums.
void provide_totals(Body& body, const std::vector<ir::NodeId>& sums);

// Returns the sums that a forward computes for some of a thread's elements at once. At::sums is an
// array of their values.
std::vector<ir::NodeId> sums_at_once(const passes::Mod& mod, const passes::ScoreParts& parts,
                                     const plan::KernelConfig& config);

// Member template visit_terms(visit), which calls visit with each of `count` types of this name.
std::string visit_function(std::string_view function, std::string_view types, int count);
// Emits the policy ElementSums of these sums, for so many elements at once. given: as above.
// functions: text of enter() and the like.
std::string emit_element_sums(const SymbolTable& symbols, const std::vector<ir::NodeId>& sums,
                              const std::vector<ir::NodeId>& given, int elements,
                              const std::string& functions);

} // namespace flexc::cuda
