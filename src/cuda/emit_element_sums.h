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

// Members of a type for the terms of one counter: its type and range; the parameter that is its
// value; and "Parts parts(at, carried, counter)", these values of a term. given: what elements
// carry.
std::string counter_range(const SymbolTable& symbols, ir::NodeId counter);
std::string counter_parameter(const SymbolTable& symbols, ir::NodeId counter);
std::string term_parts(const SymbolTable& symbols, ir::NodeId counter,
                       const std::vector<ir::NodeId>& given, const std::vector<ir::NodeId>& values);

// Statements of enter(), which stores what an element carries into the terms.
void fill_enter(Body& body, const std::vector<ir::NodeId>& given);
// Says in the body of an element's function that the sums are in At::sums.
void provide_totals(Body& body, const std::vector<ir::NodeId>& sums);

// Sums that a forward computes for some of a thread's elements at once: of which At::sums is an
// array.
std::vector<ir::NodeId> sums_at_once(const passes::Mod& mod, const passes::ScoreParts& parts,
                                     const plan::KernelConfig& config);

// Member template visit_terms(visit), which calls visit with each of `count` types of this name.
std::string visit_function(std::string_view function, std::string_view types, int count);
// Policy of these sums, for so many elements at once. given: what elements carry. functions: text
// of enter() and the like.
std::string emit_element_sums(const SymbolTable& symbols, const std::vector<ir::NodeId>& sums,
                              const std::vector<ir::NodeId>& given, int elements,
                              const std::string& functions);

} // namespace flexc::cuda
