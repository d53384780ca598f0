// Gradients of reads from tables that are small, or of which a tile meets a small part. They are
// summed in shared memory before they are added to global memory.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "passes/mod.h"

namespace flexc::passes {

// Fills ReadGradient::is_of_table, is_separable and entry_sum from the mod's facts: whether each
// element adds dS, a constant multiple of it, or nothing, to an entry that several elements of a
// tile meet.
void find_table_gradients(Mod& mod);
// Makes gradients by distance those of tables too if some other is of a table: a kernel has warps
// for one kind of sums. Does nothing if grids take all tables, whose sums are by distance as well.
// Needs find_grid_gradients().
void join_distances_to_tables(Mod& mod);
// Makes reads of tables, or by distance, whose partial is any other expression (the score, say)
// is_weighted, if tiles of dS are not summed: warps that would sum them sum tiles of what elements
// add instead. One such partial: that of the first. None if elements add many gradients: another
// kernel is for those. If some are tables, all are is_of_table. Comes after all that find sums of
// dS.
void find_weighted_gradients(Mod& mod);
// The mod's gradients as a generic kernel sums those that have an entry_sum: what elements add, and
// by what sums are multiplied, may be something else where another kernel sums diagonals.
std::vector<ReadGradient> summed_by_entries(const Mod& mod);
// For each of these, the first that has the same sums: tables that elements read by the same
// indices, and add the same to, share sums of dS, which each multiplies by a factor of its own.
std::vector<std::size_t> first_of_same_sums(const Mod& mod,
                                            const std::vector<ReadGradient>& gradients);
// The number by which the elements' dS is multiplied, or that number or 0, if the program's text
// has one: -0.5 for `score - t[...] * 0.5`.
std::optional<double> constant_factor(const Mod& mod, const ReadGradient& gradient);
// The same if there is no sum_factor.
double table_factor(const Mod& mod, const ReadGradient& gradient);
// Whether that number is the same for every element.
bool has_table_factor(const Mod& mod, const ReadGradient& gradient);
// A real that is 0 for elements that add nothing, as for `where(q_idx > 0, t[...], 0)`; kNoNode if
// all add.
ir::NodeId table_choice(const Mod& mod, const ReadGradient& gradient);
// The dims of a read whose index varies within a head.
std::vector<std::uint32_t> varying_dims(const Mod& mod, ir::NodeId read);

// The entries of a head of tables: of those whose extents the program's text has, and whether there
// are others, whose extents a call binds.
struct EntryCount {
    int known = 0;
    bool is_bound = false;
    bool exist() const { return known > 0 || is_bound; }
};
// Those of one table; none if they are too many for any block.
EntryCount table_entries(const Mod& mod, const ReadGradient& gradient);
// The same of all that tiles sum as tables, if some element of one computes an index from q and kv
// together, and dS is all that they add; none otherwise.
EntryCount entries_of_elements(const Mod& mod);
// Whether the kernel that sums those tables has sums beside them that take registers: any but of
// numbers of a head.
bool has_sums_beside_entries(const Mod& mod);

// A read by a kind of the query and a kind of the key, both of them few by the program's text or,
// of Mod::few_kinds, by a call.
struct KindDims {
    std::size_t query_dim = 0; // of its two varying dims
    int query_kinds = 0, key_kinds = 0;
};
std::optional<KindDims> kind_dims(const Mod& mod, const ReadGradient& gradient);
// The read that products may sum where tables are summed: the first by kinds; kNoNode for none.
ir::NodeId read_by_kinds(const Mod& mod);
bool sums_kinds_beside(const Mod& mod); // there is one, and other tables

// What these nodes use of queries alone and of keys alone: the largest expressions that depend on
// one of the two, other than q_idx and kv_idx themselves.
struct PositionParts {
    std::vector<ir::NodeId> query, key;
};
PositionParts position_parts(const Mod& mod, const std::vector<ir::NodeId>& nodes);

} // namespace flexc::passes
