// Emits the interval test of a tile: what queries and keys alone give is evaluated at each position
// of the tile, and from the least and greatest values follows what the mask can be.
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cpu/emit_frame.h"
#include "cpu/emit_function.h"
#include "cpu/emit_values.h"
#include "cpu/tile.h"
#include "support/text.h"

namespace flexc::cpu {

namespace {

using ir::NodeId;
using ir::Op;
using passes::Place;

// The least and greatest value as i64 operands; for i1: whether it is true everywhere, and
// somewhere.
struct Fact {
    std::string low, high;
};
// The sum of two fits into i64.
constexpr std::int64_t kMostOfTwo = (std::int64_t{1} << 62) - 1;
const Fact kAnyTruth = {"false", "true"};

// Finds nodes of both queries and keys that intervals may decide.
class Decidable {
  public:
    explicit Decidable(const passes::Mod& mod) : mod_(mod), known_(mod.program.graph.size()) {
        for (NodeId id : ir::reachable(mod.program.graph, std::span(&mod.mask, 1))) {
            has_sum_ = has_sum_ || mod.program.graph[id].op == Op::sum;
            known_[id] = find(id);
        }
    }
    bool mask() const { return known_[mod_.mask] && !has_sum_; }
    bool operator[](NodeId id) const { return known_[id]; }

  private:
    bool find(NodeId id) const {
        const ir::Node& node = mod_.program.graph[id];
        if (node.type == ir::Type::real) return false;
        if (mod_.place[id] != Place::element) return true;
        const auto known = [&](NodeId operand) { return known_[operand]; };
        // No result may exceed i64.
        const bool is_product = node.op == Op::imul;
        const auto fits = [&](NodeId operand) {
            const analysis::Interval range = mod_.ranges.of_node[operand];
            return mod_.program.graph[operand].type != ir::Type::integer ||
                   (is_product ? range.fits_32_bits()
                               : range.low >= -kMostOfTwo && range.high <= kMostOfTwo);
        };
        switch (node.op) {
        // One known operand can be enough to hide, or to show.
        case Op::band:
        case Op::bor: return std::ranges::any_of(node.operands, known);
        case Op::bnot:
        case Op::bxor:
        case Op::bselect:
        case Op::ilt:
        case Op::ile:
        case Op::ieq:
        case Op::ine: return std::ranges::all_of(node.operands, known);
        case Op::ifloordiv: {
            const ir::Node& divisor = mod_.program.graph[node.operands[1]];
            if (divisor.op != Op::const_int || divisor.integer <= 0) return false;
            break;
        }
        case Op::iadd:
        case Op::isub:
        case Op::imul:
        case Op::ineg:
        case Op::iabs:
        case Op::imin:
        case Op::imax:
        case Op::iselect:
        case Op::bool_to_int: break;
        default: return false;
        }
        return std::ranges::all_of(node.operands, known) &&
               std::ranges::all_of(node.operands, fits);
    }

    const passes::Mod& mod_;
    std::vector<bool> known_;
    bool has_sum_ = false;
};

class Intervals {
  public:
    Intervals(const passes::Mod& mod, bool dense, const LoopMetadata& metadata)
        : mod_(mod), graph_(mod.program.graph), decidable_(mod), values_(mod, dense, 0, metadata),
          metadata_(metadata), facts_(graph_.size()) {
        const std::vector<NodeId> order = ir::reachable(graph_, std::span(&mod.mask, 1));
        std::vector<bool> used(graph_.size());
        for (NodeId id : order) {
            if (mod.place[id] != Place::element) continue;
            elements_.push_back(id);
            for (NodeId operand : graph_[id].operands)
                if (decidable_[operand]) used[operand] = true;
        }
        for (NodeId id : order) {
            if (!used[id] || mod.place[id] == Place::element) continue;
            sides_.push_back(id);
            values_.need(id, block_of(id));
        }
        values_.emit();
    }

    FunctionText function(std::string_view name, std::string_view linkage) {
        const std::string columns = loop(Block::column), rows = loop(Block::row);
        std::string test;
        for (NodeId id : sides_)
            facts_[id] = fact_of_side(id, test);
        for (NodeId id : elements_)
            if (decidable_[id])
                facts_[id] = fact_of(id, test);
            else if (graph_[id].type == ir::Type::boolean)
                facts_[id] = kAnyTruth;
        const auto& [everywhere, somewhere] = facts_[mod_.mask];
        std::string text = formatted(
            "define {}void @{}(ptr %args, ptr %tile) nounwind {{\nentry:\n", linkage, name);
        text += load_fields();
        text += formatted("  %nowhere = getelementptr i8, ptr %scratch, i64 {}\n",
                          values_.scratch_arrays() * kArrayBytes);
        text += values_.text(Block::entry);
        text += columns + rows + test;
        text += formatted("  %shown = select i1 {}, i64 {}, i64 0\n"
                          "  %seen = select i1 {}, i64 %shown, i64 {}\n"
                          "  %seen_p = getelementptr i64, ptr %tile, i64 {}\n"
                          "  store i64 %seen, ptr %seen_p\n"
                          "  ret void\n}}\n",
                          everywhere, static_cast<int>(kSeenShown), somewhere,
                          static_cast<int>(kSeenMasked), static_cast<int>(kTileSeen));
        return {text + metadata_.definitions(), values_.scratch_arrays()};
    }

    const std::vector<int>& dense_slots() const { return values_.dense_slots(); }

  private:
    Block block_of(NodeId id) const {
        return mod_.place[id] == Place::row      ? Block::row
               : mod_.place[id] == Place::column ? Block::column
                                                 : Block::entry;
    }
    bool is_boolean(NodeId id) const { return graph_[id].type == ir::Type::boolean; }

    // A loop over the positions of one side that keeps the least and greatest of each value.
    std::string loop(Block block) {
        const bool of_rows = block == Block::row;
        const std::string_view side = of_rows ? "row" : "column";
        const std::string_view counter = of_rows ? "row" : "j_column";
        std::string phis, values, ends;
        for (NodeId id : sides_) {
            if (block_of(id) != block) continue;
            const bool boolean = is_boolean(id);
            const std::string value =
                boolean ? values_.value(id, block) : values_.wide_integer(id, block, values);
            const auto end = [&](std::string_view name, std::string_view first,
                                 std::string_view step) {
                phis += formatted("  %{0}{1} = phi {2} [ {3}, %{4}s_begin ], [ %{0}{1}_next, "
                                  "%{4}_loop ]\n",
                                  name, id, boolean ? "i1" : "i64", first, side);
                ends += boolean ? formatted("  %{0}{1}_next = {2} i1 %{0}{1}, {3}\n", name, id,
                                            step, value)
                                : formatted("  %{0}{1}_next = call i64 @llvm.{2}.i64(i64 %{0}{1}, "
                                            "i64 {3})\n",
                                            name, id, step, value);
            };
            end("least", boolean ? "true" : "9223372036854775807", boolean ? "and" : "smin");
            end("most", boolean ? "false" : "-9223372036854775808", boolean ? "or" : "smax");
        }
        return formatted("  br label %{0}s_begin\n{0}s_begin:\n  br label %{0}_loop\n{0}_loop:\n"
                         "  %{1} = phi i32 [ 0, %{0}s_begin ], [ %{1}_next, %{0}_loop ]\n",
                         side, counter) +
               phis + values_.text(block) + values + ends +
               formatted("  %{1}_next = add nuw nsw i32 %{1}, 1\n"
                         "  %{0}s_done = icmp eq i32 %{1}_next, %{0}s\n"
                         "  br i1 %{0}s_done, label %{0}s_end, label %{0}_loop{2}\n{0}s_end:\n",
                         side, counter,
                         of_rows ? std::string() : metadata_.latch(VectorLoop::columns));
    }

    Fact fact_of_side(NodeId id, std::string& out) {
        const Block block = block_of(id);
        if (block == Block::entry) {
            const std::string value =
                is_boolean(id) ? values_.value(id, block) : values_.wide_integer(id, block, out);
            return {value, value};
        }
        return {formatted("%least{}_next", id), formatted("%most{}_next", id)};
    }

    // Emits instructions that compute a node's fact from its operands'.
    Fact fact_of(NodeId id, std::string& out) {
        const ir::Node& node = graph_[id];
        std::array<Fact, 3> operands{};
        for (std::size_t i = 0; i < node.operands.size(); ++i)
            operands[i] = facts_[node.operands[i]];
        const Fact &x = operands[0], &y = operands[1], &z = operands[2];
        const auto make = [&](const std::string& instruction) {
            const std::string name = formatted("%test{}", next_++);
            out += formatted("  {} = {}\n", name, instruction);
            return name;
        };
        const auto both = [&](std::string_view op, const std::string& a, const std::string& b) {
            return make(formatted("{} {}, {}", op, a, b));
        };
        const auto call = [&](std::string_view function, const std::string& a,
                              const std::string& b) {
            return make(formatted("call i64 @llvm.{}.i64(i64 {}, i64 {})", function, a, b));
        };
        const auto isnt = [&](const std::string& a) { return both("xor i1", a, "true"); };
        const auto choose = [&](std::string_view type, const std::string& condition,
                                const std::string& a, const std::string& b) {
            return make(formatted("select i1 {0}, {1} {2}, {1} {3}", condition, type, a, b));
        };
        const auto are_equal = [&]() -> Fact {
            // True everywhere if both are the same single number; true somewhere if the intervals
            // meet.
            return {both("and i1", both("icmp eq i64", x.low, y.high),
                         both("icmp eq i64", x.high, y.low)),
                    both("and i1", both("icmp sle i64", x.low, y.high),
                         both("icmp sle i64", y.low, x.high))};
        };
        // Clamps to the node's range, outside of which it has no value.
        const auto in_range = [&](const std::string& low, const std::string& high) -> Fact {
            const analysis::Interval range = mod_.ranges.of_node[id];
            return {call("smax", low, std::to_string(range.low)),
                    call("smin", high, std::to_string(range.high))};
        };
        switch (node.op) {
        case Op::band: return {both("and i1", x.low, y.low), both("and i1", x.high, y.high)};
        case Op::bor: return {both("or i1", x.low, y.low), both("or i1", x.high, y.high)};
        case Op::bnot: return {isnt(x.high), isnt(x.low)};
        case Op::bxor: {
            const std::string is_known = both("and i1", both("icmp eq i1", x.low, x.high),
                                              both("icmp eq i1", y.low, y.high));
            const std::string differ = both("xor i1", x.low, y.low);
            return {choose("i1", is_known, differ, "false"),
                    choose("i1", is_known, differ, "true")};
        }
        case Op::bselect:
            return {choose("i1", x.low, y.low,
                           choose("i1", x.high, both("and i1", y.low, z.low), z.low)),
                    choose("i1", x.low, y.high,
                           choose("i1", x.high, both("or i1", y.high, z.high), z.high))};
        case Op::iselect:
            return in_range(choose("i64", x.low, y.low,
                                   choose("i64", x.high, call("smin", y.low, z.low), z.low)),
                            choose("i64", x.low, y.high,
                                   choose("i64", x.high, call("smax", y.high, z.high), z.high)));
        case Op::ilt:
            return {both("icmp slt i64", x.high, y.low), both("icmp slt i64", x.low, y.high)};
        case Op::ile:
            return {both("icmp sle i64", x.high, y.low), both("icmp sle i64", x.low, y.high)};
        case Op::ieq: return are_equal();
        case Op::ine: {
            const Fact equal = are_equal();
            return {isnt(equal.high), isnt(equal.low)};
        }
        case Op::iadd:
            return in_range(both("add i64", x.low, y.low), both("add i64", x.high, y.high));
        case Op::isub:
            return in_range(both("sub i64", x.low, y.high), both("sub i64", x.high, y.low));
        case Op::imul: {
            const std::array corners = {
                both("mul i64", x.low, y.low), both("mul i64", x.low, y.high),
                both("mul i64", x.high, y.low), both("mul i64", x.high, y.high)};
            const auto of_all = [&](std::string_view function) {
                return call(function, call(function, corners[0], corners[1]),
                            call(function, corners[2], corners[3]));
            };
            return in_range(of_all("smin"), of_all("smax"));
        }
        case Op::ineg: return in_range(both("sub i64", "0", x.high), both("sub i64", "0", x.low));
        case Op::iabs: {
            const std::string negative = both("sub i64", "0", x.high);
            return in_range(call("smax", call("smax", x.low, negative), "0"),
                            call("smax", x.high, both("sub i64", "0", x.low)));
        }
        case Op::imin: return in_range(call("smin", x.low, y.low), call("smin", x.high, y.high));
        case Op::imax: return in_range(call("smax", x.low, y.low), call("smax", x.high, y.high));
        case Op::ifloordiv: {
            const auto floor = [&](const std::string& dividend) {
                return make(
                    formatted("call i64 @flexc_floor_divide_i64(i64 {}, i64 {})", dividend, y.low));
            };
            return in_range(floor(x.low), floor(x.high));
        }
        default: // bool_to_int
            return {make(formatted("zext i1 {} to i64", x.low)),
                    make(formatted("zext i1 {} to i64", x.high))};
        }
    }

    const passes::Mod& mod_;
    const ir::Graph& graph_;
    Decidable decidable_;
    Values values_;
    LoopMetadata metadata_;
    std::vector<Fact> facts_;
    std::vector<NodeId> sides_, elements_;
    int next_ = 0;
};

} // namespace

bool has_intervals(const passes::Mod& mod) {
    return mod.place[mod.mask] == Place::element && Decidable(mod).mask();
}

FunctionText emit_intervals(const passes::Mod& mod, const FunctionRequest& request) {
    return versions(request, [&](std::string_view name, std::string_view linkage, bool dense,
                                 int first_metadata, std::vector<int>& stride_slots) {
        Intervals intervals(mod, dense, LoopMetadata(first_metadata));
        stride_slots = intervals.dense_slots();
        return intervals.function(name, linkage);
    });
}

} // namespace flexc::cpu
