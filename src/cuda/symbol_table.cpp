#include "cuda/symbol_table.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include "passes/launch_divisor.h"
#include "support/text.h"

namespace flexc::cuda {

using ir::NodeId;
using ir::Op;
using passes::Place;
using Kind = passes::ArgumentSlot::Kind;

SymbolTable::SymbolTable(const passes::Mod& mod, const std::vector<NodeId>& roots,
                         passes::Precision most)
    : mod_(&mod), fields_(argument_fields(mod)), precisions_(passes::precisions(mod, most)) {
    types_.reserve(mod.program.graph.size());
    for (NodeId id = 0; id < mod.program.graph.size(); ++id)
        types_.push_back(type_of(id));
    narrow_clamped();
    find_clamped_differences();
    keep(roots);
    find_divisors(roots);
}

bool SymbolTable::has_reciprocal(NodeId quotient) const {
    const ir::Node& value = node(quotient);
    if (value.op != Op::fdiv || !is_fast(quotient) || place(quotient) != Place::element ||
        is_of_term(quotient))
        return false;
    const ir::Node& divisor = node(value.operands[1]);
    // The reciprocal of a constant must be a normal number.
    if (divisor.op == Op::const_real)
        return std::fabs(divisor.real) >= 0x1p-126 && std::fabs(divisor.real) <= 0x1p126;
    const Place kept = place(value.operands[1]);
    return kept == Place::launch || kept == Place::head;
}

bool SymbolTable::has_integer_reciprocal(NodeId quotient) const {
    if (!passes::divides_by_reciprocal(*mod_, quotient) || wraps(quotient)) return false;
    const passes::ArgumentSlot slot{Kind::reciprocal, node(quotient).operands[1]};
    return std::ranges::find(fields_, slot, &ArgumentField::slot) != fields_.end();
}

void SymbolTable::find_divisors(const std::vector<NodeId>& roots) {
    for (const NodeId id : ir::reachable(mod_->program.graph, roots)) {
        if (!has_reciprocal(id)) continue;
        const NodeId divisor = node(id).operands[1];
        if (node(divisor).op != Op::const_real &&
            std::ranges::find(divisors_, divisor) == divisors_.end())
            divisors_.push_back(divisor);
    }
}

std::vector<NodeId> SymbolTable::divisors(Place place) const {
    std::vector<NodeId> found;
    std::ranges::copy_if(divisors_, std::back_inserter(found),
                         [&](NodeId divisor) { return this->place(divisor) == place; });
    return found;
}

void SymbolTable::use_narrow_offsets(const std::vector<NodeId>& roots, int key_width) {
    for (const NodeId id : ir::reachable(mod_->program.graph, roots)) {
        if (node(id).op != Op::read || !passes::has_offset_of_elements(*mod_, id, key_width))
            continue;
        if (std::ranges::all_of(node(id).operands, [&](NodeId index) {
                return place(index) < Place::row || type(index) == CType::narrow;
            }))
            narrow_reads_.push_back(id);
    }
}

void SymbolTable::stage_tables(const passes::StagedTables& staged) {
    if (staged.tables.empty()) return;
    staged_ = &staged;
    for (NodeId id = staged.first_node; id < types_.size(); ++id)
        if (node(id).type == ir::Type::integer && !is_free(id)) types_[id] = CType::narrow;
}

// Makes conversions of reals to integers 32-bit if they are only used by a clamp to 32 bits: they
// may saturate before it, as in clamp(int(x), 0, 127).
void SymbolTable::narrow_clamped() {
    const ir::Graph& graph = mod_->program.graph;
    std::vector<int> users(graph.size());
    for (NodeId id = 0; id < graph.size(); ++id)
        for (const NodeId operand : graph[id].operands)
            ++users[operand];
    const auto is_clamp = [&](NodeId id) {
        return graph[id].op == Op::imin || graph[id].op == Op::imax;
    };
    const auto fits = [&](NodeId id) { return mod_->ranges.of_node[id].fits_32_bits(); };
    for (NodeId id = 0; id < graph.size(); ++id) {
        if (!is_clamp(id) || types_[id] != CType::wide || !fits(id)) continue;
        std::vector<NodeId> clamped = {id};
        bool may_saturate = true;
        for (std::size_t i = 0; i < clamped.size() && may_saturate; ++i) {
            const std::vector<NodeId>& operands = graph[clamped[i]].operands;
            if (!is_clamp(clamped[i])) continue;
            for (const NodeId operand : operands) {
                if (fits(operand)) continue;
                may_saturate = may_saturate && users[operand] == 1 &&
                               (is_clamp(operand) || graph[operand].op == Op::real_to_int);
                clamped.push_back(operand);
            }
        }
        if (!may_saturate) continue;
        for (const NodeId narrow : clamped)
            types_[narrow] = CType::narrow;
    }
}

void SymbolTable::find_clamped_differences() {
    struct Clamp {
        NodeId of;
        std::int64_t bound;
    };
    const auto clamp = [&](NodeId id, Op op) -> std::optional<Clamp> {
        const std::vector<NodeId>& operands = node(id).operands;
        if (node(id).op != op) return std::nullopt;
        for (const std::size_t side : {0U, 1U})
            if (const ir::Node& bound = node(operands[side]); bound.op == Op::const_int)
                return Clamp{operands[1 - side], bound.integer};
        return std::nullopt;
    };
    for (NodeId id = 0; id < mod_->program.graph.size(); ++id) {
        const bool least_is_first = node(id).op == Op::imin;
        const auto outer = clamp(id, least_is_first ? Op::imin : Op::imax);
        const auto inner =
            outer ? clamp(outer->of, least_is_first ? Op::imax : Op::imin) : std::nullopt;
        if (!inner || node(inner->of).op != Op::isub || types_[inner->of] != CType::wide) continue;
        const NodeId x = node(inner->of).operands[0], y = node(inner->of).operands[1];
        const std::int64_t least = least_is_first ? inner->bound : outer->bound,
                           most = least_is_first ? outer->bound : inner->bound;
        if (types_[x] != CType::narrow || types_[y] != CType::narrow || least > 0 || most < 0 ||
            least <= INT32_MIN || most > INT32_MAX)
            continue;
        types_[id] = CType::narrow;
        clamped_differences_[id] = {x, y, least, most};
    }
}

const ClampedDifference* SymbolTable::clamped_difference(NodeId id) const {
    const auto found = clamped_differences_.find(id);
    return found == clamped_differences_.end() ? nullptr : &found->second;
}

const passes::StagedTable* SymbolTable::staged_table(NodeId read) const {
    if (staged_ == nullptr) return nullptr;
    const auto found = std::ranges::find(staged_->tables, read, &passes::StagedTable::read);
    return found == staged_->tables.end() ? nullptr : &*found;
}

passes::ArgumentSlot SymbolTable::slot_of_size(std::uint32_t size) const {
    const auto is_size = [&](const passes::ArgumentSlot& slot) {
        return slot.kind == Kind::size && slot.index == size;
    };
    const auto is_extent = [&](const passes::ArgumentSlot& slot) {
        if (slot.kind != Kind::buffer_extent) return false;
        const ir::Dim& dim = mod_->program.buffers[slot.index].dims[slot.dim];
        return !dim.is_constant() && dim.size == size;
    };
    auto found = std::ranges::find_if(fields_, is_size, &ArgumentField::slot);
    if (found == fields_.end())
        found = std::ranges::find_if(fields_, is_extent, &ArgumentField::slot);
    return found == fields_.end() ? passes::ArgumentSlot{Kind::size, size} : found->slot;
}

bool SymbolTable::is_free(NodeId id) const {
    const ir::Node& value = node(id);
    const bool is_of_request = value.op == Op::q_len || value.op == Op::kv_len ||
                               value.op == Op::q_row || value.op == Op::kv_row;
    return value.op != Op::read && value.op != Op::sum && value.op != Op::counter &&
           !is_of_request && ir::info(value.op).is_leaf();
}

bool SymbolTable::is_repeated(NodeId id) const {
    const ir::Node& value = node(id);
    if (place(id) != Place::row && place(id) != Place::column) return false;
    if (value.op != Op::ilt && value.op != Op::ile && value.op != Op::ieq && value.op != Op::ine)
        return false;
    return std::ranges::all_of(value.operands, [&](NodeId operand) {
        return type(operand) == CType::narrow &&
               (is_free(operand) || place(operand) == Place::launch ||
                place(operand) == Place::head);
    });
}

const std::string& SymbolTable::field(passes::ArgumentSlot slot) const {
    const auto found = std::ranges::find(fields_, slot, &ArgumentField::slot);
    static const auto& kNone =
        *new std::string("missing_argument"); // never destroyed: may be used while the process ends
    return found == fields_.end() ? kNone : found->name;
}

CType SymbolTable::type_of(NodeId id) const {
    const ir::Node& value = node(id);
    if (value.type == ir::Type::boolean) return CType::boolean;
    if (value.type == ir::Type::real) return CType::real;
    const bool narrow = mod_->ranges.narrow[id];
    switch (value.op) {
    case Op::b:
    case Op::h:
    case Op::h_kv:
    case Op::q_idx:
    case Op::kv_idx:
    case Op::q_len:
    case Op::kv_len:
    case Op::bool_to_int: return CType::narrow;
    case Op::q_row:
    case Op::kv_row:
    case Op::size:
    case Op::param: return CType::wide;
    case Op::read:
        return mod_->program.buffers[value.symbol].dtype == DType::i64 ? CType::wide
                                                                       : CType::narrow;
    case Op::const_int:
        return value.integer >= INT32_MIN && value.integer <= INT32_MAX ? CType::narrow
                                                                        : CType::wide;
    default: return narrow ? CType::narrow : CType::wide;
    }
}

// Finds the values that each place keeps: walks from the roots to the leaves, and if an operand
// belongs to an earlier place than its user, that place keeps it. Places are visited from the
// inside out.
void SymbolTable::keep(const std::vector<NodeId>& roots) {
    const NodeId count = mod_->program.graph.size();
    std::vector<bool> kept(count);
    std::array<std::vector<bool>, 5> needed; // whether a user in this place needs the node
    needed.fill(std::vector<bool>(count));
    const auto need = [&](NodeId id, Place user) {
        // The terms of a sum are computed in the place of the sum.
        const bool is_here = place(id) == user || is_of_term(id);
        if (!is_here && !is_free(id) && !is_repeated(id)) kept[id] = true;
        needed[static_cast<std::size_t>(is_of_term(id) ? user : place(id))][id] = true;
    };
    for (NodeId root : roots)
        need(root, Place::element);
    for (NodeId id = count; id-- > 0;)
        for (std::size_t user = 0; user < needed.size(); ++user)
            if (needed[user][id])
                for (NodeId operand : node(id).operands)
                    need(operand, static_cast<Place>(user));
    for (NodeId id = 0; id < count; ++id)
        if (kept[id]) kept_[static_cast<std::size_t>(place(id))].push_back(id);
}

std::string reciprocal_name(NodeId divisor) { return formatted("reciprocal_{}", divisor); }

} // namespace flexc::cuda
