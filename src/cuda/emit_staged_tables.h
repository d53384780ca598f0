// Emits the tables that a kernel keeps in shared memory.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/expressions.h"
#include "cuda/policy.h"
#include "passes/aligned_table.h"

namespace flexc::cuda {

// How a function of an element reads tables: from global memory; from shared memory, where indices
// are checked once a tile as far as possible; likewise, but conditions of queries and keys decide;
// from shared memory, with every index checked for each element.
enum class TableReads : std::uint8_t { memory, staged, conditional, checked };
std::string_view name(TableReads reads);
void set_table_reads(Body& body, TableReads reads, bool guesses_logs);
// Roots of the functions that compute addresses in these tables.
std::vector<ir::NodeId> staged_roots(const passes::StagedTables& staged);
// Policy constants, and a StagedTable for each table, for a kernel that keeps words[i] words of
// table i in shared memory; nothing if `words` is empty. aligned: an entry for each table, or none.
// provide(body): provides values that were computed before the kernel.
using ProvideValues = std::function<void(Body&)>;
std::string emit_staged_tables(Policy& policy, const SymbolTable& symbols,
                               const passes::StagedTables& staged, const std::vector<int>& words,
                               const std::vector<passes::AlignedTable>& aligned,
                               const ProvideValues& provide);
// Conditions under which an element reads aligned tables. addend_scales: multiplying all tables by
// a number multiplies the element's addend by it, see passes::scales_with_tables().
void add_table_conditions(Policy& policy, const SymbolTable& symbols,
                          const passes::TableConditions& conditions, bool addend_scales);

} // namespace flexc::cuda
