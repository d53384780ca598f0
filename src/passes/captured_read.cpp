#include "passes/captured_read.h"

#include <algorithm>
#include <array>
#include <optional>
#include <ranges>
#include <span>
#include <unordered_set>
#include <utility>

#include "analysis/interval.h"
#include "passes/mod.h"

namespace flexc::passes {

using analysis::Dependence;
using analysis::IndexForm;
using analysis::IndexForms;
using analysis::IndexTerm;
using analysis::Interval;
using analysis::kInsideHead;
using analysis::Product;
using ir::kNoNode;
using ir::NodeId;
using ir::Op;

namespace {

// Limits on the conditions by which a read may be split into pieces, and on the pieces.
constexpr std::size_t kMaxConditions = 4, kMaxPieces = 12;
// Limit on the index nodes visited under assumptions, over all reads: a program with many reads and
// large indices gets no pieces.
constexpr std::size_t kMaxPieceWork = 20000;
// Larger extents are lengths, not tables.
constexpr std::int64_t kMostEntries = std::int64_t{1} << 31;

std::optional<std::int64_t> count_of(Interval range) {
    std::int64_t count = 0;
    if (__builtin_sub_overflow(range.high, range.low, &count) || count < 0 || count >= kMostEntries)
        return {};
    return count + 1;
}

Interval intersection(Interval x, Interval y) {
    return {std::max(x.low, y.low), std::min(x.high, y.high)};
}

bool multiply_by(Count& count, const ir::Dim& dim) {
    if (!dim.is_constant()) {
        count.sizes.insert(std::ranges::upper_bound(count.sizes, dim.size), dim.size);
        return true;
    }
    return !__builtin_mul_overflow(count.constant, dim.constant, &count.constant) &&
           count.constant < kMostEntries;
}

// Whether some size grows with the sequences.
bool has_lengths(const Count& count) {
    return std::ranges::any_of(
        count.sizes, [](std::uint32_t size) { return size == ir::kQLen || size == ir::kKvLen; });
}

bool is_many(const Count& count) {
    return has_lengths(count) || count.constant > kMostSmallEntries;
}

// Whether the node depends on real arithmetic over numbers that the caller chooses.
bool is_made_of_reals(const ir::Graph& graph, NodeId root) {
    return std::ranges::any_of(ir::reachable(graph, std::span(&root, 1)),
                               [&](NodeId id) { return graph[id].op == Op::real_to_int; });
}

// Classifies a read under some assumptions.
class Piece {
  public:
    Piece(const Mod& mod, const ir::Node& read, NodeId id, const IndexForms& forms)
        : mod_(mod), graph_(mod.program.graph), read_(read), id_(id), forms_(forms) {}

    ReadPiece classify() {
        for (std::size_t i = 0; i < read_.operands.size(); ++i)
            piece_.slice.push_back(slice_index(i));
        for (const SliceIndex& index : piece_.slice)
            has_entries_ = has_entries_ && multiply_by(piece_.entries, index.entries);
        piece_.read_class = find_class();
        return std::move(piece_);
    }

  private:
    ReadClass find_class() {
        Dependence all;
        for (const NodeId index : read_.operands)
            all = all | forms_.uses(index);
        if (mod_.counters[id_] != kNoNode)
            return beyond(Obstacle::term_of_sum, kNoNode, ReadClass::large_table);
        if (all.has(Dependence::score)) {
            beyond(Obstacle::uses_score, kNoNode, ReadClass::small_table);
            return table();
        }
        const bool q = all.has(Dependence::q), kv = all.has(Dependence::kv);
        if (!q && !kv) return ReadClass::constant;
        if (!kv) return ReadClass::row;
        if (!q) return ReadClass::column;
        if (const auto found = by_differences()) return *found;
        if (const auto found = by_shifts()) return *found;
        if (const auto found = by_kinds()) return *found;
        return table();
    }

    ReadClass beyond(Obstacle obstacle, NodeId culprit, ReadClass read_class) {
        piece_.obstacle = obstacle;
        piece_.culprit = culprit;
        return read_class;
    }
    std::optional<ReadClass> none(Obstacle obstacle, NodeId culprit = kNoNode) {
        piece_.obstacle = obstacle;
        piece_.culprit = culprit;
        return {};
    }

    // --- distances ------------------------------------------------------------------------------
    std::optional<ReadClass> by_differences() {
        std::vector<analysis::DigitDifference> used;
        for (const NodeId index : read_.operands) {
            const analysis::Differences& differences = forms_.differences(index);
            if (!differences.only) return none(Obstacle::other_positions, index);
            for (const analysis::DigitDifference& difference : differences.used)
                if (std::ranges::find(used, difference) == used.end()) used.push_back(difference);
        }
        auto grid = analysis::grid_of(used);
        if (!grid) return none(Obstacle::no_mixed_radix);
        if (grid->axes.size() > kMaxAxes) return none(Obstacle::too_many_axes);
        piece_.grid = *std::move(grid);
        return used.size() == 1 && used[0].is_distance() ? ReadClass::distance_1d
                                                         : ReadClass::grid_distance;
    }

    // --- affine addresses
    //
    // Strips the clamps around an integer, and records them in `shift`.
    NodeId unclamped(NodeId id, ShiftedIndex& shift) const {
        for (;;) {
            id = forms_.chosen(id);
            const ir::Node& node = graph_[id];
            if (node.op != Op::imin && node.op != Op::imax) return id;
            const auto is_bound = [&](NodeId operand) {
                return (forms_.uses(operand).bits & kInsideHead) == 0;
            };
            const std::size_t side = is_bound(node.operands[1]) ? 0 : 1;
            if (!is_bound(node.operands[1 - side])) return id;
            (node.op == Op::imin ? shift.most : shift.least).push_back(node.operands[1 - side]);
            id = node.operands[side];
        }
    }

    std::optional<ShiftedIndex> shifted_index(NodeId index) const {
        ShiftedIndex shift;
        // In clamp(...) + c and c - clamp(...) the clamp is a term of its own.
        const IndexForm* form = &forms_.form(index);
        Product outer;
        shift.inside = forms_.chosen(index);
        const auto uses_position = [](const IndexTerm& term) { return term.node != kNoNode; };
        if (std::ranges::count_if(*form, uses_position) == 1) {
            const IndexTerm& term = *std::ranges::find_if(*form, uses_position);
            const NodeId inside = unclamped(term.node, shift);
            if (shift.is_clamped()) {
                shift.inside = inside;
                outer = term.coefficient;
                form = &forms_.form(inside);
            }
        }
        for (const IndexTerm& term : *form) {
            if (term.node == kNoNode) continue;
            const Op op = graph_[term.node].op;
            if (op != Op::q_idx && op != Op::kv_idx) return {};
            Product& gain = op == Op::q_idx ? shift.q : shift.kv;
            const auto coefficient = analysis::multiply(term.coefficient, outer);
            if (gain.constant != 0 || !coefficient) return {};
            gain = *coefficient;
        }
        return shift;
    }

    static bool are_constant(const ShiftedIndex& shift) {
        return shift.q.factors.empty() && shift.kv.factors.empty();
    }

    // Whether two of the indices identify every pair of q and kv.
    bool is_injective(const std::vector<ShiftedIndex>& shifts) const {
        for (const ShiftedIndex& x : shifts)
            for (const ShiftedIndex& y : shifts) {
                std::int64_t up = 0, down = 0;
                if (are_constant(x) && are_constant(y) &&
                    !__builtin_mul_overflow(x.q.constant, y.kv.constant, &up) &&
                    !__builtin_mul_overflow(x.kv.constant, y.q.constant, &down) && up != down)
                    return true;
            }
        return std::ranges::any_of(shifts, [&](const ShiftedIndex& shift) {
            return !shift.is_clamped() && is_flat_matrix(shift);
        });
    }
    // Whether it is q * KV_LEN + kv, or kv * Q_LEN + q, or either of them descending.
    bool is_flat_matrix(const ShiftedIndex& shift) const {
        const auto is_by = [&](const Product& rows, const Product& columns, std::uint32_t length) {
            return std::abs(rows.constant) == 1 && rows.factors.size() == 1 &&
                   graph_[rows.factors[0]].op == Op::size &&
                   graph_[rows.factors[0]].symbol == length && columns.factors.empty() &&
                   std::abs(columns.constant) == 1;
        };
        return mod_.program.is_dense() &&
               (is_by(shift.q, shift.kv, ir::kKvLen) || is_by(shift.kv, shift.q, ir::kQLen));
    }

    std::optional<ReadClass> by_shifts() {
        std::vector<ShiftedIndex> shifts;
        std::ptrdiff_t clamped = 0;
        for (const NodeId index : read_.operands) {
            auto shift = shifted_index(index);
            if (!shift) return none(Obstacle::not_affine, index);
            clamped += shift->is_clamped() ? 1 : 0;
            shifts.push_back(*std::move(shift));
        }
        if (clamped > 1 || !is_injective(shifts) || (clamped == 1 && !have_ends(shifts)))
            return none(Obstacle::no_single_address);
        const bool is_dense = clamped == 0 && is_dense_bias(shifts);
        piece_.shifts = std::move(shifts);
        return is_dense ? ReadClass::dense_bias : ReadClass::shifted;
    }

    static bool has(const Product& gain) { return gain.constant != 0; }

    // Whether the only clamp makes either rows or columns share addresses, but not both.
    static bool have_ends(const std::vector<ShiftedIndex>& shifts) {
        bool rows = false, columns = false;
        for (const ShiftedIndex& shift : shifts) {
            if (shift.is_clamped()) continue;
            rows |= has(shift.q);
            columns |= has(shift.kv);
        }
        return rows != columns;
    }

    static bool is_dense_bias(const std::vector<ShiftedIndex>& shifts) {
        int rows = 0, columns = 0;
        for (const ShiftedIndex& shift : shifts) {
            if (has(shift.q) ? has(shift.kv) || !shift.q.is(1) : has(shift.kv) && !shift.kv.is(1))
                return false;
            rows += has(shift.q) ? 1 : 0;
            columns += has(shift.kv) ? 1 : 0;
        }
        return rows == 1 && columns == 1;
    }

    // --- numbers of a query and of a key
    std::optional<ReadClass> by_kinds() {
        Count queries, keys;
        for (std::size_t i = 0; i < read_.operands.size(); ++i) {
            const NodeId index = read_.operands[i];
            const IndexForm& form = forms_.form(index);
            for (const IndexTerm& term : form)
                if ((term.uses.bits & kInsideHead) == analysis::kPositions ||
                    term.uses.has(Dependence::score))
                    return none(Obstacle::mixes_positions, index);
            const Dependence uses = piece_.slice[i].uses;
            bool is_known = true;
            const auto multiply_part = [&](Count& kinds, Dependence::Bit bit) {
                if (!uses.has(bit)) return;
                if ((uses.bits & analysis::kPositions) != analysis::kPositions) {
                    is_known &= multiply_by(kinds, piece_.slice[i].entries);
                    return;
                }
                // If one index uses both, the range of each part must be known separately.
                const auto count = count_of(range_of(form, bit));
                is_known &= count && *count <= kMostSmallEntries &&
                            multiply_by(kinds, ir::Dim{.constant = *count});
            };
            multiply_part(queries, Dependence::q);
            multiply_part(keys, Dependence::kv);
            if (!is_known) return none(Obstacle::unbounded, index);
        }
        // If one of the two is many (a slice for each query, or for each key), the other's kinds
        // are summed.
        const bool are_queries_many = is_many(queries), are_keys_many = is_many(keys);
        if (are_queries_many && are_keys_many)
            return none(has_lengths(queries) || has_lengths(keys) ? Obstacle::unbounded
                                                                  : Obstacle::too_many_entries);
        piece_.query_kinds = std::move(queries);
        piece_.key_kinds = std::move(keys);
        return ReadClass::pair_of_kinds;
    }

    // --- tables
    ReadClass table() {
        if (has_entries_ && has_lengths(piece_.entries))
            return beyond(Obstacle::unbounded, kNoNode, ReadClass::large_table);
        if (!has_entries_ || piece_.entries.constant > kMostSmallEntries)
            return beyond(Obstacle::too_many_entries, kNoNode, ReadClass::large_table);
        return ReadClass::small_table;
    }

    // --- ranges
    //
    // Range of the sum of those terms that use a position in `bits`; with bits == 0, of those that
    // use no position.
    Interval range_of(const IndexForm& form, unsigned bits) const {
        Interval sum{0, 0};
        for (const IndexTerm& term : form) {
            const unsigned uses = term.uses.bits & kInsideHead;
            if (bits == 0 ? uses != 0 : (uses & bits) == 0) continue;
            Interval product{term.coefficient.constant, term.coefficient.constant};
            const auto by = [&](Interval factor) {
                const std::array factors = {product, factor};
                product = analysis::transfer(Op::imul, factors);
            };
            for (const NodeId factor : term.coefficient.factors)
                by(mod_.ranges.of_node[factor]);
            if (term.node != kNoNode) by(forms_.range(term.node));
            const std::array terms = {sum, product};
            sum = analysis::is_any(product) ? product : analysis::transfer(Op::iadd, terms);
            if (analysis::is_any(sum)) return sum;
        }
        return sum;
    }

    SliceIndex slice_index(std::size_t i) const {
        const NodeId index = read_.operands[i];
        const ir::Dim& dim = mod_.program.buffers[read_.symbol].dims[i];
        const IndexForm& form = forms_.form(index);
        SliceIndex slice;
        Dependence of_base;
        for (const IndexTerm& term : form) {
            if (term.node != kNoNode) slice.uses = slice.uses | term.uses;
            for (const NodeId factor : term.coefficient.factors)
                (term.node == kNoNode ? of_base : slice.uses) =
                    (term.node == kNoNode ? of_base : slice.uses) | mod_.dependence[factor];
        }
        if ((slice.uses.bits & kInsideHead) == 0) {
            slice.has_base = true;
            return slice;
        }
        const Interval own = range_of(form, kInsideHead);
        const auto few = [](Interval range) -> std::optional<std::int64_t> {
            const auto count = count_of(range);
            return count && *count <= kMostSmallEntries ? count : std::nullopt;
        };
        if (const auto count = few(own); count && !(of_base == Dependence{})) {
            slice.has_base = true;
            slice.low = own.low;
            slice.entries = {.constant = *count};
            slice.is_inside = !is_made_of_reals(graph_, index);
            return slice;
        }
        const std::array terms = {own, range_of(form, 0)};
        Interval all = forms_.range(index);
        if (!analysis::is_any(own) && !analysis::is_any(terms[1]))
            all = intersection(all, analysis::transfer(Op::iadd, terms));
        Interval inside = {std::max<std::int64_t>(all.low, 0), all.high};
        if (dim.is_constant()) inside.high = std::min(inside.high, dim.constant - 1);
        const bool is_proven = mod_.ranges.in_range[id_][i];
        if (inside.low > inside.high) inside = {0, 0}; // no element is inside
        const auto count = dim.is_constant() ? count_of(inside) : few(inside);
        if (!count) {
            slice.entries = dim;
            slice.is_inside = is_proven;
            return slice;
        }
        slice.low = inside.low;
        slice.entries = {.constant = *count};
        const bool is_whole = dim.is_constant() && slice.low == 0 && *count == dim.constant;
        slice.is_inside =
            (is_whole && is_proven) ||
            (inside.low <= all.low && all.high <= inside.high && !is_made_of_reals(graph_, index));
        return slice;
    }

    const Mod& mod_;
    const ir::Graph& graph_;
    const ir::Node& read_;
    NodeId id_;
    const IndexForms& forms_;
    ReadPiece piece_;
    bool has_entries_ = true;
};

// The positions for which the assumptions hold.
struct Box {
    Interval q, kv;
};

// Applies those assumptions that compare one position with a constant.
void narrow(Box& box, const ir::Graph& graph, const std::vector<analysis::AffineForm>& affine,
            std::pair<NodeId, bool> assumption) {
    const ir::Node& node = graph[assumption.first];
    switch (node.op) {
    case Op::ilt:
    case Op::ile:
    case Op::ieq:
    case Op::ine: break;
    default: return;
    }
    const auto difference = analysis::sum(affine[node.operands[0]], affine[node.operands[1]], -1);
    if (!difference || !difference->rest.empty() ||
        std::abs(difference->q) + std::abs(difference->kv) != 1)
        return;
    const std::int64_t sign = difference->q + difference->kv;
    Interval& position = difference->q != 0 ? box.q : box.kv;
    // The bound that the comparison puts on sign * position.
    const std::int64_t at = -difference->constant;
    const auto limit = [&](bool below, std::int64_t value) {
        if (below == (sign > 0))
            position.high = std::min(position.high, sign * value);
        else
            position.low = std::max(position.low, sign * value);
    };
    if (node.op == Op::ilt || node.op == Op::ile) {
        const std::int64_t gap = (node.op == Op::ilt) == assumption.second ? 1 : 0;
        limit(assumption.second, assumption.second ? at - gap : at + gap);
        return;
    }
    if ((node.op == Op::ieq) == assumption.second) {
        limit(true, at);
        limit(false, at);
        return;
    }
    if (position.low == sign * at) ++position.low;
    if (position.high == sign * at) --position.high;
}

class Reader {
  public:
    Reader(const Mod& mod, const IndexForms& forms)
        : mod_(mod), graph_(mod.program.graph), forms_(forms) {}

    CapturedRead find(NodeId id) {
        const ir::Node& node = graph_[id];
        CapturedRead read{.read = id, .pieces = {}, .positive = {}};
        for (const NodeId index : node.operands)
            read.uses = read.uses | forms_.uses(index);
        read.pieces = {Piece(mod_, node, id, forms_).classify()};
        read.read_class = read.pieces[0].read_class;
        if (read.read_class > ReadClass::grid_distance && mod_.counters[id] == kNoNode)
            for (const bool of_both : {true, false})
                if (split(read, of_both)) break;
        find_positive(read);
        return read;
    }

  private:
    bool split(CapturedRead& read, bool of_both) {
        std::vector<ReadPiece> pieces;
        if (!add_pieces(read.read, {}, of_both, pieces) || pieces.size() < 2) return false;
        ReadClass least = ReadClass::constant;
        for (const ReadPiece& piece : pieces)
            least = std::max(least, piece.read_class);
        // A pair of kinds remains one if conditions on positions decide the kind.
        const bool is_better =
            least < read.read_class &&
            !(read.read_class == ReadClass::pair_of_kinds && least <= ReadClass::column);
        if (!is_better) return false;
        read.read_class = least;
        read.pieces = std::move(pieces);
        return true;
    }

    bool add_pieces(NodeId id, const analysis::Assumptions& where, bool of_both,
                    std::vector<ReadPiece>& pieces) {
        const ir::Node& node = graph_[id];
        work_ += ir::reachable(graph_, node.operands).size();
        if (work_ > kMaxPieceWork) return false;
        IndexForms forms(graph_, mod_.ranges, where);
        forms.find(node.operands);
        const NodeId condition = undecided(forms, node.operands, of_both);
        if (condition == kNoNode) {
            ReadPiece piece = Piece(mod_, node, id, forms).classify();
            piece.where = where;
            pieces.push_back(std::move(piece));
            return pieces.size() <= kMaxPieces;
        }
        if (where.size() == kMaxConditions) return false;
        for (const bool holds : {true, false}) {
            analysis::Assumptions more = where;
            more.emplace_back(condition, holds);
            if (is_possible(more) && !add_pieces(id, more, of_both, pieces)) return false;
        }
        return true;
    }

    bool is_possible(const analysis::Assumptions& where) const {
        constexpr Interval kPosition{0, analysis::kMaxLength};
        Box box{kPosition, kPosition};
        if (!mod_.program.is_dense()) box.q.low = -analysis::kMaxLength;
        // Two rounds suffice, as single points are removed only at the ends.
        for (int round = 0; round < 2; ++round)
            for (const auto& assumption : where)
                narrow(box, graph_, mod_.affine, assumption);
        return box.q.low <= box.q.high && box.kv.low <= box.kv.high;
    }

    // Returns a condition on one position by which some select among these nodes chooses. of_both:
    // only of selects that use both positions.
    NodeId undecided(const IndexForms& forms, const std::vector<NodeId>& roots,
                     bool of_both) const {
        std::vector<NodeId> seen;
        std::unordered_set<NodeId> known;
        const auto add = [&](NodeId id) {
            id = forms.chosen(id);
            if (known.insert(id).second) seen.push_back(id);
        };
        std::ranges::for_each(roots, add);
        for (std::size_t next = 0; next < seen.size(); ++next) {
            const ir::Node& node = graph_[seen[next]];
            const bool is_select = node.op == Op::iselect && !forms.truth(node.operands[0]);
            const unsigned uses = forms.uses(seen[next]).bits & analysis::kPositions;
            if (is_select && (!of_both || uses == analysis::kPositions))
                if (const NodeId condition = of_one_position(forms, node.operands[0]);
                    condition != kNoNode)
                    return condition;
            std::ranges::for_each(node.operands, add);
        }
        return kNoNode;
    }

    NodeId of_one_position(const IndexForms& forms, NodeId root) const {
        std::vector<NodeId> seen = {root};
        std::unordered_set<NodeId> known = {root};
        for (std::size_t next = 0; next < seen.size(); ++next) {
            const NodeId id = seen[next];
            if (forms.truth(id)) continue;
            const Op op = graph_[id].op;
            if (op != Op::band && op != Op::bor && op != Op::bnot && op != Op::bxor) {
                const unsigned uses = forms.uses(id).bits & kInsideHead;
                if (uses == Dependence::q || uses == Dependence::kv) return id;
                continue;
            }
            for (const NodeId operand : graph_[id].operands)
                if (known.insert(operand).second) seen.push_back(operand);
        }
        return kNoNode;
    }

    void find_positive(CapturedRead& read) const {
        const auto add = [&](const Product& product) {
            for (const NodeId factor : product.factors)
                if (graph_[factor].op == Op::param &&
                    std::ranges::find(read.positive, factor) == read.positive.end())
                    read.positive.push_back(factor);
        };
        for (const ReadPiece& piece : read.pieces)
            for (const analysis::Grid::Axis& axis : piece.grid.axes) {
                add(axis.start);
                if (axis.end) add(*axis.end);
            }
    }

    const Mod& mod_;
    const ir::Graph& graph_;
    const IndexForms& forms_;
    std::size_t work_ = 0;
};

// Returns the grid if the value is a function of its digit differences alone.
std::optional<analysis::Grid> tabulated_grid(const Mod& mod, const IndexForms& forms, NodeId id) {
    const analysis::Differences& differences = forms.differences(id);
    if (!differences.only || differences.used.empty() || mod.counters[id] != kNoNode) return {};
    auto grid = analysis::grid_of(differences.used);
    if (!grid || grid->axes.size() > kMaxAxes) return {};
    return grid;
}

std::vector<DifferenceValue> difference_values(const Mod& mod, const IndexForms& forms) {
    const ir::Graph& graph = mod.program.graph;
    const std::vector<NodeId> nodes = ir::reachable(graph, std::span(&mod.score, 1));
    std::vector<bool> is_wanted(graph.size());
    is_wanted[mod.score] = true;
    for (const NodeId id : nodes)
        if (!tabulated_grid(mod, forms, id))
            for (const NodeId operand : graph[id].operands)
                is_wanted[operand] = true;
    std::vector<DifferenceValue> values;
    for (const NodeId id : nodes) {
        if (!is_wanted[id] || graph[id].type != ir::Type::real) continue;
        auto grid = tabulated_grid(mod, forms, id);
        if (!grid) continue;
        DifferenceValue value{.node = id, .grid = *std::move(grid), .reads = {}};
        for (const NodeId part : ir::reachable(graph, std::span(&id, 1)))
            if (graph[part].op == Op::read) value.reads.push_back(part);
        values.push_back(std::move(value));
    }
    return values;
}

} // namespace

const ReadPiece& CapturedRead::decisive() const {
    return *std::ranges::find(pieces, read_class, &ReadPiece::read_class);
}

void find_captured_reads(Mod& mod) {
    IndexForms forms(mod.program.graph, mod.ranges);
    std::vector<NodeId> roots = mod.order;
    roots.push_back(mod.score);
    forms.find(roots);
    mod.captured_reads.clear();
    Reader reader(mod, forms);
    for (const NodeId id : mod.order)
        if (mod.program.graph[id].op == Op::read) mod.captured_reads.push_back(reader.find(id));
    mod.difference_values = difference_values(mod, forms);
}

bool has_own_addresses(const CapturedRead& read) {
    return std::ranges::all_of(read.pieces, [](const ReadPiece& piece) {
        return piece.read_class == ReadClass::dense_bias ||
               (piece.read_class == ReadClass::shifted &&
                std::ranges::none_of(piece.shifts, &ShiftedIndex::is_clamped));
    });
}

bool has_offset_of_elements(const Mod& mod, NodeId read, int key_width) {
    if (mod.place[read] != Place::element || mod.counters[read] != kNoNode) return false;
    const CapturedRead* captured = captured_read(mod, read);
    if (captured == nullptr || mod.of_distance[read]) return false;
    switch (captured->read_class) {
    case ReadClass::constant:
    case ReadClass::row:
    case ReadClass::column:
    case ReadClass::dense_bias: return false;
    case ReadClass::distance_1d:
    case ReadClass::grid_distance:
    case ReadClass::shifted:
    case ReadClass::pair_of_kinds:
    case ReadClass::small_table:
    case ReadClass::large_table: break;
    }
    if (key_width == 0) return true;
    const analysis::KeyUse use = mod.key_uses[read].with(key_width);
    return use != analysis::KeyUse::quotient && use != analysis::KeyUse::remainder;
}

const CapturedRead* captured_read(const Mod& mod, NodeId read) {
    // Sorted by id, as mod.order lists operands first.
    const auto found = std::ranges::lower_bound(mod.captured_reads, read, {}, &CapturedRead::read);
    return found == mod.captured_reads.end() || found->read != read ? nullptr : &*found;
}

bool is_table(const CapturedRead& read) {
    const auto is_length = [](std::uint32_t size) {
        return size == ir::kQLen || size == ir::kKvLen;
    };
    return std::ranges::none_of(read.decisive().entries.sizes, is_length) &&
           (read.read_class == ReadClass::grid_distance ||
            read.read_class == ReadClass::pair_of_kinds ||
            read.read_class == ReadClass::small_table);
}

std::string_view name(ReadClass read_class) {
    constexpr std::array<std::string_view, 10> kNames = {
        "constant",   "row",     "column",        "distance_1d", "grid_distance",
        "dense_bias", "shifted", "pair_of_kinds", "small_table", "large_table"};
    return kNames[static_cast<std::size_t>(read_class)];
}

ReadClass class_before(ReadClass read_class) {
    switch (read_class) {
    case ReadClass::shifted: // the two are alternatives
    case ReadClass::dense_bias: return ReadClass::grid_distance;
    case ReadClass::constant: return ReadClass::constant;
    default: return static_cast<ReadClass>(static_cast<int>(read_class) - 1);
    }
}

} // namespace flexc::passes
