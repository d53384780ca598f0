// Sums over a counter. A sum that uses no key is a loop over its terms. Any other is a loop over
// terms around a loop over the tile's columns, which is vectorized; the totals of all columns are
// in an array.
#include "cpu/emit_values.h"
#include "cpu/tile.h"
#include "support/text.h"

namespace flexc::cpu {

using ir::NodeId;
using passes::Place;

void Values::find_loops() {
    const ir::Graph& graph = mod_.program.graph;
    for (NodeId id : mod_.order) {
        if (graph[id].op != ir::Op::sum) continue;
        const Place place = mod_.place[id];
        const bool of_row = place == Place::row || place == Place::element;
        add_loop({.sum = id,
                  .counter = graph[id].operands[0],
                  .outer = of_row ? Block::row : Block::entry,
                  .over_columns = place == Place::column || place == Place::element});
        loop_of_[id] = static_cast<Block>(kBlocks + loops_.size() - 1);
    }
}

void Values::add_loop(Loop loop) {
    loops_.push_back(loop);
    texts_.emplace_back();
    needed_.emplace_back(mod_.program.graph.size(), false);
}

Block Values::gradient_loop(NodeId counter) {
    add_loop({.sum = ir::kNoNode, .counter = counter, .outer = Block::row, .over_columns = true});
    need_range(counter);
    return static_cast<Block>(kBlocks + loops_.size() - 1);
}

const Values::Loop* Values::loop(Block block) const {
    const auto index = static_cast<std::size_t>(block);
    return index < kBlocks ? nullptr : &loops_[index - kBlocks];
}

std::string Values::letter(Block block) const {
    const auto index = static_cast<std::size_t>(block);
    return index < kBlocks ? std::string(1, "ncre"[index]) : formatted("l{}_", index - kBlocks);
}

std::string Values::column(Block block) const {
    if (block == Block::column) return "%j_column";
    return block == Block::element ? "%j_element" : formatted("%{}j", letter(block));
}

void Values::need_range(NodeId counter) {
    for (NodeId end : mod_.program.graph[counter].operands)
        need(end, Block::entry);
}

void Values::need_sum(NodeId sum) {
    const Loop& loop = *this->loop(loop_of_.at(sum));
    need_range(loop.counter);
    need(mod_.program.graph[sum].operands[1], loop_of_.at(sum));
    if (loop.over_columns) array_of(sum);
}

// The blocks of a loop over terms: <letter>begin, _term (once a term), _next, _latch, _end.
std::string Values::loop_text(Block block, const LoopParts& parts) {
    const Loop& loop = *this->loop(block);
    const auto& range = mod_.program.graph[loop.counter].operands;
    const int bits = width(loop.counter);
    const std::string first = integer(range[0], bits, Block::entry, texts_[0]);
    const std::string end = integer(range[1], bits, Block::entry, texts_[0]);
    const std::string l = letter(block);
    std::string text = formatted("  br label %{0}begin\n{0}begin:\n"
                                 "  %{0}some = icmp slt i{1} {2}, {3}\n"
                                 "  br i1 %{0}some, label %{0}term, label %{0}end\n"
                                 "{0}term:\n"
                                 "  {4} = phi i{1} [ {2}, %{0}begin ], [ %{0}after, %{0}latch ]\n",
                                 l, bits, first, end, name(loop.counter, block));
    text += parts.phis;
    if (loop.over_columns)
        text += formatted("  br label %{0}loop\n{0}loop:\n"
                          "  %{0}j = phi i32 [ 0, %{0}term ], [ %{0}j_next, %{0}loop ]\n",
                          l);
    text += parts.column_phis + this->text(block) + parts.each;
    if (loop.over_columns)
        text += formatted("  %{0}j_next = add nuw nsw i32 %{0}j, 1\n"
                          "  %{0}columns_done = icmp eq i32 %{0}j_next, %columns\n"
                          "  br i1 %{0}columns_done, label %{0}next, label %{0}loop{1}\n"
                          "{0}next:\n",
                          l, metadata_.latch(VectorLoop::terms));
    text += parts.after;
    text += formatted("  br label %{0}latch\n{0}latch:\n"
                      "  %{0}after = add nsw i{1} {2}, 1\n"
                      "  %{0}more = icmp slt i{1} %{0}after, {3}\n"
                      "  br i1 %{0}more, label %{0}term, label %{0}end{4}\n{0}end:\n",
                      l, bits, name(loop.counter, block), end,
                      loop.over_columns ? metadata_.outer_latch() : "");
    return text;
}

// The total is under the sum's name afterwards.
void Values::emit_scalar_sum(NodeId sum, std::string& out) {
    const Block block = loop_of_.at(sum), home = loop(block)->outer;
    emit_nodes(block);
    const std::string l = letter(block), total_type = type(sum);
    const bool real = total_type == "float";
    const std::string zero = real ? literal(0) : "0";
    std::string each;
    const std::string term = term_of(sum, each);
    each += formatted("  %{0}sum = {1} {2} %{0}total, {3}\n", l, real ? "fadd" : "add", total_type,
                      term);
    const std::string phis = formatted(
        "  %{0}total = phi {1} [ {2}, %{0}begin ], [ %{0}sum, %{0}latch ]\n", l, total_type, zero);
    out += loop_text(block, {.phis = phis, .each = each});
    out += formatted("  {0} = phi {1} [ {2}, %{3}begin ], [ %{3}sum, %{3}latch ]\n",
                     name(sum, home), total_type, zero, l);
}

// The totals are in the sum's array afterwards.
std::string Values::column_sum(NodeId sum) {
    const Block block = loop_of_.at(sum);
    emit_nodes(block);
    const std::string l = letter(block), total_type = type(sum), group = this->group(block);
    const bool real = total_type == "float";
    std::string each;
    const std::string term = term_of(sum, each);
    each += formatted("  %{0}to = getelementptr {1}, ptr %array{2}, i32 %{0}j\n"
                      "  %{0}so_far = load {1}, ptr %{0}to{3}\n"
                      "  %{0}sum = {4} {1} %{0}so_far, {5}\n"
                      "  store {1} %{0}sum, ptr %{0}to{3}\n",
                      l, total_type, array_of(sum), group, real ? "fadd" : "add", term);
    return formatted("  %{0}count = zext i32 %columns to i64\n"
                     "  %{0}bytes = mul i64 %{0}count, {1}\n"
                     "  call void @llvm.memset.p0.i64(ptr %array{2}, i8 0, i64 %{0}bytes, "
                     "i1 false)\n",
                     l, total_type == "i64" ? 8 : 4, array_of(sum)) +
           loop_text(block, {.each = each});
}

std::string Values::term_of(NodeId sum, std::string& out) {
    const NodeId term = mod_.program.graph[sum].operands[1];
    const Block block = loop_of_.at(sum);
    if (mod_.program.graph[sum].type == ir::Type::real) return value(term, block);
    return integer(term, width(sum), block, out);
}

std::string Values::column_sums(Block outer) {
    std::string text;
    for (const Loop& one : loops_)
        if (one.sum != ir::kNoNode && one.outer == outer && one.over_columns &&
            arrays_.contains(one.sum))
            text += column_sum(one.sum);
    return text;
}

} // namespace flexc::cpu
