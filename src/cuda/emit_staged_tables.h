// Tables that a kernel keeps in shared memory, as text.
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

// Where a function of an element reads tables: in memory; on chip, where what can be known of whole
// tiles is; the same, but for conditions of queries and keys; on chip, with everything checked for
// the element.
enum class TableReads : std::uint8_t { memory, staged, conditional, checked };
std::string_view name(TableReads reads);
void set_table_reads(Body& body, TableReads reads, bool guesses_logs);
// What places in these tables are computed from: roots of a kernel's functions.
std::vector<ir::NodeId> staged_roots(const passes::StagedTables& staged);
// The policy's constants and a StagedTable of each, for a kernel that keeps so many words of each;
// none where words is empty. aligned: of all, or empty. provide(body): of what is computed before
// the kernel.
using ProvideValues = std::function<void(Body&)>;
std::string emit_staged_tables(Policy& policy, const Layout& layout,
                               const passes::StagedTables& staged, const std::vector<int>& words,
                               const std::vector<passes::AlignedTable>& aligned,
                               const ProvideValues& provide);
// What decides whether an element uses aligned tables, and whether its addend is in their units.
void add_table_conditions(Policy& policy, const Layout& layout,
                          const passes::TableConditions& conditions, bool addend_scales);

} // namespace flexc::cuda
