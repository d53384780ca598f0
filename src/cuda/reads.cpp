// Reads of buffers, and of tables in shared memory, as expressions.
#include <algorithm>
#include <cstdint>

#include "cuda/expressions.h"
#include "support/text.h"

namespace flexc::cuda {

using ir::NodeId;
using ir::Op;
using passes::Place;
using Kind = passes::ArgumentSlot::Kind;

namespace {

// Returns the field in which a head, a row or a column keeps its part of a read's address.
std::string part_name(Place place, std::string_view part, NodeId read) {
    return formatted("{}.{}_{}", passes::name(place), part, read);
}

} // namespace

const passes::StagedTable* Body::staged_table(NodeId read) const {
    return reads_staged_ ? symbols_->staged_table(read) : nullptr;
}

std::vector<passes::AddressSplit::Index>
Body::checked_indices(const passes::StagedTable& table) const {
    const std::vector<passes::AddressSplit::Index>& indices =
        reads_any_address(table) ? table.of_any.indices : table.split.indices;
    std::vector<passes::AddressSplit::Index> checked;
    for (std::size_t i = 0; i < indices.size(); ++i)
        if (table.is_checked_by_element(i) || (checks_all_ && table.is_checked_by_tile(i)))
            checked.push_back(indices[i]);
    return checked;
}

// The parts that change least often come first, as in by_place().
std::string Body::read_staged(const passes::StagedTable& table) const {
    const auto narrow = [&](NodeId part) { return unbracketed(text_as(part, CType::narrow)); };
    std::string address = formatted("{}tables[{}]", access_, symbols_->staged_index(table));
    if (reads_any_address(table)) {
        // The address that it begins with has the query's part of the split.
        const NodeId of_query = table.split.parts.query;
        address =
            formatted("flexc_entry({}, {}{})", address, narrow(table.of_any.place),
                      of_query == ir::kNoNode ? "" : " - " + text_as(of_query, CType::narrow));
    } else {
        if (table.key_bytes != ir::kNoNode)
            address = formatted("flexc_shifted({}, {})", address, narrow(table.key_bytes));
        if (table.split.parts.rest != ir::kNoNode)
            address = formatted("flexc_entry({}, {})", address, narrow(table.split.parts.rest));
    }
    std::string inside;
    for (const passes::AddressSplit::Index& index : checked_indices(table)) {
        const auto& [query, key, rest] = index.parts;
        const bool is_alone = query == ir::kNoNode && key == ir::kNoNode;
        if (is_alone && symbols_->type(rest) == CType::wide) {
            const std::string of_sum = symbols_->type(index.entries) == CType::narrow
                                           ? sum_inside(rest, narrow(index.entries))
                                           : "";
            inside += inside.empty() ? "" : " & ";
            inside += !of_sum.empty() ? of_sum
                                      : formatted("flexc_inside({}, {})", unbracketed(text(rest)),
                                                  unbracketed(text_as(index.entries, CType::wide)));
            continue;
        }
        std::string sum;
        for (const NodeId part : {index.parts.query, index.parts.key, index.parts.rest})
            if (part != ir::kNoNode)
                sum = sum.empty() ? narrow(part)
                                  : formatted("flexc_wrapped_sum({}, {})", sum, narrow(part));
        inside += formatted("{}flexc_inside({}, {})", inside.empty() ? "" : " & ", sum,
                            narrow(index.entries));
    }
    return inside.empty() ? formatted("flexc_read_table({})", address)
                          : formatted("flexc_read_table_if({}, {})", inside, address);
}

std::string Body::read(NodeId id) const {
    if (const passes::StagedTable* table = staged_table(id)) return read_staged(*table);
    const std::string address = this->address(id);
    std::string element = (reads_if_used_ ? "flexc_read_if_used(" : "flexc_read(") + address + ")";
    const std::string inside = this->inside(id);
    if (inside.empty()) return element;
    if (reads_without_branches_ && symbols_->type(id) == CType::real)
        return "flexc_read_if(" + unbracketed(inside) + ", " + address + ")";
    switch (symbols_->type(id)) {
    case CType::real: return inside + " ? " + element + " : 0.0f";
    case CType::boolean: return inside + " ? " + element + " : false";
    case CType::narrow:
    case CType::wide: break;
    }
    return inside + " ? " + element + " : 0";
}

// Returns the terms sorted by place, earlier places first. With a bracket for each place, the CUDA
// compiler moves each bracket out of the loops that it does not depend on.
std::vector<std::pair<Place, std::string>>
Body::by_place(NodeId read, const std::vector<std::string>& terms) const {
    std::vector<std::pair<Place, std::string>> sorted;
    const auto& indices = symbols_->node(read).operands;
    for (std::size_t i = 0; i < indices.size(); ++i)
        if (!terms[i].empty()) sorted.emplace_back(symbols_->place(indices[i]), terms[i]);
    std::ranges::stable_sort(sorted, {}, &std::pair<Place, std::string>::first);
    return sorted;
}

// Returns the text of 0 <= index < extent, if the index is a sum of 64 bits that a thread's
// elements share and of 32 bits that they do not; else "".
std::string Body::sum_inside(NodeId index, const std::string& narrow_extent) const {
    const ir::Node& sum = symbols_->node(index);
    if (sum.op != Op::iadd || !is_local(index) || symbols_->type(index) != CType::wide) return "";
    for (const std::size_t side : {0U, 1U}) {
        const NodeId known = sum.operands[1 - side], narrow = sum.operands[side];
        if (symbols_->is_shared(known) && symbols_->type(narrow) == CType::narrow)
            return formatted("flexc_sum_inside({}, {}, {})",
                             unbracketed(text_as(known, CType::wide)), unbracketed(text(narrow)),
                             narrow_extent);
    }
    return "";
}

std::string Body::inside(NodeId read) const {
    const ir::Node& node = symbols_->node(read);
    const ir::Buffer& buffer = symbols_->mod().program.buffers[node.symbol];
    const std::vector<bool>& proven = symbols_->mod().ranges.in_range[read];
    std::vector<std::string> terms(node.operands.size());
    for (std::uint32_t dim = 0; dim < node.operands.size(); ++dim) {
        if (dim < proven.size() && proven[dim]) continue;
        const ir::Dim& extent = buffer.dims[dim];
        const NodeId index = node.operands[dim];
        const bool small = extent.is_constant() && extent.constant <= INT32_MAX;
        const CType type =
            small && symbols_->type(index) != CType::wide ? CType::narrow : CType::wide;
        if (small && type == CType::wide)
            terms[dim] = sum_inside(index, integer_literal(extent.constant, CType::narrow));
        if (!terms[dim].empty()) continue;
        terms[dim] = "flexc_inside(" + unbracketed(text_as(index, type)) + ", " +
                     (extent.is_constant() ? integer_literal(extent.constant, type)
                                           : argument({Kind::buffer_extent, node.symbol, dim})) +
                     ")";
    }
    std::string result;
    const auto sorted = by_place(read, terms);
    for (const auto& [place, term] : sorted)
        result += (result.empty() ? "" : " & ") + term;
    return sorted.size() > 1 ? "(" + result + ")" : result;
}

// Returns the terms of an index that is a sum, so that places before the element can compute some
// of them; otherwise the index itself.
std::vector<Body::IndexTerm> Body::index_terms(NodeId index) const {
    constexpr std::size_t kMostTerms = 8;
    std::vector<IndexTerm> terms, pending = {{index, false}};
    while (!pending.empty()) {
        const IndexTerm term = pending.back();
        pending.pop_back();
        const ir::Node& node = symbols_->node(term.node);
        const bool is_sum = node.op == Op::iadd || node.op == Op::isub;
        if (!is_sum || symbols_->place(term.node) != Place::element) {
            terms.push_back(term);
            continue;
        }
        if (pending.size() + terms.size() > kMostTerms) return {{index, false}};
        pending.push_back({node.operands[1], term.is_negative != (node.op == Op::isub)});
        pending.push_back({node.operands[0], term.is_negative});
    }
    return terms;
}

std::string Body::offset_part(NodeId read, Kind stride, Place place) const {
    const ir::Node& node = symbols_->node(read);
    std::string part;
    for (std::uint32_t dim = 0; dim < node.operands.size(); ++dim) {
        if (symbols_->place(node.operands[dim]) < Place::row) continue;
        for (const IndexTerm& term : index_terms(node.operands[dim])) {
            // Terms that are constant for a head are added to the row's part.
            const Place known = std::max(symbols_->place(term.node), Place::row);
            const ir::Node& value = symbols_->node(term.node);
            if (known != place || (value.op == Op::const_int && value.integer == 0)) continue;
            part += formatted("{}flexc_step({}, {})",
                              term.is_negative ? " - "
                              : part.empty()   ? ""
                                               : " + ",
                              unbracketed(text_as(term.node, CType::narrow)),
                              argument({stride, node.symbol, dim}));
        }
    }
    return part;
}

bool Body::has_narrow_offset(NodeId read) const {
    const std::vector<NodeId>& narrow = symbols_->narrow_reads();
    return here_ == Place::element && counter_ == ir::kNoNode &&
           std::ranges::find(narrow, read) != narrow.end();
}

std::string Body::narrow_offset(NodeId read, Kind stride) const {
    std::string result;
    for (const Place place : {Place::row, Place::column, Place::element}) {
        std::string part = offset_part(read, stride, place);
        if (part.empty()) continue;
        if (place != Place::element && stride == Kind::buffer_stride)
            part = access_ + part_name(place, "offset", read);
        result += (result.empty() ? "(" : " + (") + part + ")";
    }
    return result;
}

std::string Body::address(NodeId read) const {
    const std::string data = argument({Kind::buffer_data, symbols_->node(read).symbol});
    if (has_narrow_offset(read))
        return access_ + part_name(Place::head, "base", read) + " + (" +
               narrow_offset(read, Kind::buffer_stride) + ")";
    const std::string offset = this->offset(read, Kind::buffer_stride);
    return data + (offset.empty() ? "" : " + " + offset);
}

std::string Body::base(NodeId read) const {
    const std::string data = argument({Kind::buffer_data, symbols_->node(read).symbol});
    const std::string offset = offset_of_head(read, Kind::buffer_stride);
    return data + (offset.empty() ? "" : " + " + offset);
}

// Returns the offset of the indices that are constant for a head; of all indices if the offset
// needs 64 bits.
std::string Body::offset_of_head(NodeId read, Kind stride) const {
    const ir::Node& node = symbols_->node(read);
    const std::vector<NodeId>& narrow = symbols_->narrow_reads();
    const bool of_head_alone = std::ranges::find(narrow, read) != narrow.end() &&
                               (here_ != Place::element || has_narrow_offset(read));
    std::vector<std::string> terms(node.operands.size());
    for (std::uint32_t dim = 0; dim < node.operands.size(); ++dim) {
        const NodeId index = node.operands[dim];
        if (symbols_->node(index).op == Op::const_int && symbols_->node(index).integer == 0)
            continue;
        if (of_head_alone && symbols_->place(index) >= Place::row) continue;
        terms[dim] = text_as(index, CType::wide) + " * " + argument({stride, node.symbol, dim});
    }
    std::string result;
    const auto sorted = by_place(read, terms);
    for (std::size_t i = 0; i < sorted.size();) {
        const Place place = sorted[i].first;
        std::string group;
        for (; i < sorted.size() && sorted[i].first == place; ++i)
            group += (group.empty() ? "" : " + ") + sorted[i].second;
        result += (result.empty() ? "(" : " + (") + group + ")";
    }
    return result;
}

std::string Body::offset(NodeId read, Kind stride) const {
    std::string result = offset_of_head(read, stride);
    if (has_narrow_offset(read))
        result += (result.empty() ? "(" : " + (") + narrow_offset(read, stride) + ")";
    // Brackets around the sum, unless a single place has all of it.
    if (result.empty() || unbracketed(result) != result) return result;
    return "(" + result + ")";
}

std::string Body::element_address(NodeId read) const {
    return address_inside(read, Kind::buffer_data, Kind::buffer_stride);
}

std::string Body::gradient_address(NodeId read) const {
    return address_inside(read, Kind::gradient_data, Kind::gradient_stride);
}

std::string Body::address_inside(NodeId read, Kind data, Kind stride) const {
    const std::string offset = this->offset(read, stride);
    const std::string address =
        argument({data, symbols_->node(read).symbol}) + (offset.empty() ? "" : " + " + offset);
    const std::string inside = this->inside(read);
    return inside.empty() ? address : unbracketed(inside) + " ? " + address + " : nullptr";
}

} // namespace flexc::cuda
