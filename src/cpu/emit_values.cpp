#include "cpu/emit_values.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "cpu/tile.h"
#include "support/text.h"

namespace flexc::cpu {

namespace {

using ir::NodeId;
using ir::Op;
using passes::Place;
using Kind = passes::ArgumentSlot::Kind;

std::size_t at(Block block) { return static_cast<std::size_t>(block); }
char letter(Block block) { return "ncre"[at(block)]; }

// Operators that cost no more than reading an array would.
bool is_cheap(Op op) {
    const std::string_view text = ir::info(op).llvm;
    return text.find("@flexc_") == std::string_view::npos && op != Op::read && op != Op::sqrt &&
           op != Op::fdiv;
}

} // namespace

std::string literal(double value) {
    const auto narrowed = static_cast<double>(static_cast<float>(value));
    return formatted("0x{:016X}", std::bit_cast<std::uint64_t>(narrowed));
}

Values::Values(const passes::Mod& mod, const KvSlopes& slopes, bool dense, int first_scratch_array)
    : mod_(mod), slopes_(slopes), dense_(dense), slots_(passes::argument_slots(mod)),
      next_array_(first_scratch_array) {
    const ir::Graph& graph = mod.program.graph;
    costly_.assign(graph.size(), false);
    kept_.assign(graph.size(), false);
    for (auto& block : needed_)
        block.assign(graph.size(), false);
    for (NodeId id = 0; id < graph.size(); ++id) {
        if (mod.place[id] != Place::column) continue;
        costly_[id] = !is_cheap(graph[id].op);
        for (NodeId operand : graph[id].operands)
            costly_[id] = costly_[id] || costly_[operand];
    }
}

bool Values::is_literal(NodeId id) const {
    const Op op = mod_.program.graph[id].op;
    return op == Op::const_bool || op == Op::const_int || op == Op::const_real;
}

Block Values::home(NodeId id, Block user) const {
    switch (mod_.place[id]) {
    case Place::launch:
    case Place::head: return Block::entry;
    case Place::row: return Block::row;
    case Place::column: return user;
    case Place::element: break;
    }
    return Block::element;
}

void Values::need(NodeId id, Block block) {
    if (!is_literal(id)) needed_[at(home(id, block))][id] = true;
}

void Values::need_indices(NodeId read, Block block) {
    for (NodeId index : mod_.program.graph[read].operands)
        need(index, block);
}

int Values::width(NodeId id) const {
    const ir::Node& node = mod_.program.graph[id];
    switch (node.op) {
    case Op::b:
    case Op::h:
    case Op::h_kv:
    case Op::q_idx:
    case Op::kv_idx: return 32;
    case Op::const_int: return node.integer == static_cast<std::int32_t>(node.integer) ? 32 : 64;
    case Op::read: return mod_.program.buffers[node.symbol].dtype == DType::i64 ? 64 : 32;
    default: return mod_.ranges.narrow[id] ? 32 : 64;
    }
}

std::string Values::type(NodeId id) const {
    switch (mod_.program.graph[id].type) {
    case ir::Type::boolean: return "i1";
    case ir::Type::real: return "float";
    case ir::Type::integer: break;
    }
    return width(id) == 32 ? "i32" : "i64";
}

std::string Values::name(NodeId id, Block block) const {
    return formatted("%{}{}", letter(home(id, block)), id);
}

std::string Values::value(NodeId id, Block block) const {
    const ir::Node& node = mod_.program.graph[id];
    if (node.op == Op::const_bool) return node.integer != 0 ? "true" : "false";
    if (node.op == Op::const_int) return std::to_string(node.integer);
    if (node.op == Op::const_real) return literal(node.real);
    return name(id, block);
}

std::string Values::integer(NodeId id, int bits, Block block, std::string& out) {
    const std::string plain = value(id, block);
    if (is_literal(id) || width(id) == bits) return plain;
    const std::string converted = formatted("%{}{}x{}", letter(block), plain.substr(1), bits);
    if (widened_.insert(converted).second) {
        out += formatted("  {} = {} i{} {} to i{}\n", converted, bits == 64 ? "sext" : "trunc",
                         bits == 64 ? 32 : 64, plain, bits);
    }
    return converted;
}

int Values::slot(Kind kind, std::uint32_t index, std::uint32_t dim) const {
    const passes::ArgumentSlot wanted{kind, index, dim};
    return static_cast<int>(std::ranges::find(slots_, wanted) - slots_.begin());
}

std::string Values::word(int slot) {
    auto [entry, is_new] = words_.try_emplace(slot, formatted("%w{}", slot));
    if (is_new)
        texts_[at(Block::entry)] += formatted("  %w{0}p = getelementptr i64, ptr %args, i64 {0}\n"
                                              "  %w{0} = load i64, ptr %w{0}p\n",
                                              slot);
    return entry->second;
}

std::string Values::pointer(int slot) {
    auto [entry, is_new] = words_.try_emplace(slot, formatted("%w{}", slot));
    if (is_new)
        texts_[at(Block::entry)] += formatted("  %w{0}p = getelementptr ptr, ptr %args, i64 {0}\n"
                                              "  %w{0} = load ptr, ptr %w{0}p\n",
                                              slot);
    return entry->second;
}

void Values::emit(std::string_view column_group, std::string_view element_group) {
    column_group_ = column_group;
    element_group_ = element_group;
    const NodeId size = mod_.program.graph.size();
    // A costly column value that the element loop wants is read from an array that the column loop
    // fills; everything else is computed where it is wanted.
    for (NodeId id = size; id-- > 0;) {
        for (Block block : {Block::element, Block::row, Block::column, Block::entry}) {
            if (!needed_[at(block)][id]) continue;
            if (block == Block::element && mod_.place[id] == Place::column && costly_[id]) {
                kept_[id] = true;
                needed_[at(Block::column)][id] = true;
                continue;
            }
            for (NodeId operand : mod_.program.graph[id].operands)
                need(operand, block);
        }
    }
    for (Block block : {Block::entry, Block::column, Block::row, Block::element})
        for (NodeId id = 0; id < size; ++id) {
            if (!needed_[at(block)][id]) continue;
            if (block == Block::element && kept_[id]) {
                fetch_column(id);
                continue;
            }
            emit_node(id, block);
            if (block == Block::column && kept_[id]) keep_column(id);
        }
}

std::string Values::group(Block block) const {
    if (block == Block::column) return ", !llvm.access.group " + column_group_;
    if (block == Block::element) return ", !llvm.access.group " + element_group_;
    return "";
}

void Values::keep_column(NodeId id) {
    const int array = arrays_.try_emplace(id, next_array_).first->second;
    if (array == next_array_) ++next_array_;
    texts_[at(Block::entry)] += formatted("  %array{} = getelementptr i8, ptr %scratch, i64 {}\n",
                                          array, array * 8 * kMaxColumns);
    std::string& out = texts_[at(Block::column)];
    std::string stored = name(id, Block::column), stored_type = type(id);
    if (stored_type == "i1") {
        out += formatted("  {0}k = zext i1 {0} to i32\n", stored);
        stored += "k";
        stored_type = "i32";
    }
    out += formatted("  %c{0}at = getelementptr {1}, ptr %array{2}, i32 %j_column\n"
                     "  store {1} {3}, ptr %c{0}at{4}\n",
                     id, stored_type, array, stored, group(Block::column));
}

void Values::fetch_column(NodeId id) {
    const std::string loaded = type(id);
    const bool boolean = loaded == "i1";
    texts_[at(Block::element)] += formatted(
        "  %e{0}at = getelementptr {1}, ptr %array{2}, i32 %j_element\n"
        "  %e{0}{3} = load {1}, ptr %e{0}at{4}\n",
        id, boolean ? "i32" : loaded, arrays_[id], boolean ? "k" : "", group(Block::element));
    if (boolean) texts_[at(Block::element)] += formatted("  %e{0} = icmp ne i32 %e{0}k, 0\n", id);
}

void Values::emit_node(NodeId id, Block block) {
    std::string out;
    if (mod_.program.graph[id].op == Op::read)
        emit_read(id, block, out);
    else if (ir::info(mod_.program.graph[id].op).is_leaf())
        emit_leaf(id, block, out);
    else
        emit_operator(id, block, out);
    // Words that the node loads come first: they are appended to the entry block while it is made.
    texts_[at(block)] += out;
}

void Values::emit_leaf(NodeId id, Block block, std::string& out) {
    const ir::Node& node = mod_.program.graph[id];
    const std::string result = name(id, block);
    auto index = [&](std::string_view begin, std::string_view step) {
        out += formatted("  {} = add nsw i32 {}, {}\n", result, begin, step);
    };
    switch (node.op) {
    case Op::score:
        out += formatted("  {} = fadd float %score, {}\n", result, literal(-0.0));
        return;
    case Op::b: return index("%b", "0");
    case Op::h: return index("%h", "0");
    case Op::h_kv: return index("%h_kv", "0");
    case Op::q_idx: return index("%q_begin", "%row");
    case Op::kv_idx: return index("%kv_begin", block == Block::column ? "%j_column" : "%j_element");
    default: break;
    }
    const bool is_size = node.op == Op::size;
    const std::string loaded = word(slot(is_size ? Kind::size : Kind::param, node.symbol));
    const std::string wanted = type(id);
    if (wanted == "i64")
        out += formatted("  {} = add i64 {}, 0\n", result, loaded);
    else if (wanted == "i1")
        out += formatted("  {} = icmp ne i64 {}, 0\n", result, loaded);
    else if (wanted == "i32")
        out += formatted("  {} = trunc i64 {} to i32\n", result, loaded);
    else
        out += formatted("  {0}b = trunc i64 {1} to i32\n  {0} = bitcast i32 {0}b to float\n",
                         result, loaded);
}

bool Values::emit_division(NodeId id, Block block, std::string& out) {
    const ir::Node& node = mod_.program.graph[id];
    if (node.op != Op::ifloordiv && node.op != Op::imod) return false;
    const ir::Node& divisor = mod_.program.graph[node.operands[1]];
    if (divisor.op != Op::const_int || divisor.integer <= 0) return false;
    const int bits = width(id);
    const std::string result = name(id, block), x = integer(node.operands[0], bits, block, out);
    const std::int64_t c = divisor.integer;
    const bool quotient = node.op == Op::ifloordiv;
    const auto power = std::has_single_bit(static_cast<std::uint64_t>(c));
    if (power && quotient) {
        out += formatted("  {} = ashr i{} {}, {}\n", result, bits, x,
                         std::countr_zero(static_cast<std::uint64_t>(c)));
    } else if (power) {
        out += formatted("  {} = and i{} {}, {}\n", result, bits, x, c - 1);
    } else if (mod_.ranges.of_node[node.operands[0]].low >= 0) {
        out += formatted("  {} = {} i{} {}, {}\n", result, quotient ? "udiv" : "urem", bits, x, c);
    } else {
        // Truncating division, then one step down where the remainder is negative.
        out += formatted("  {0}q = sdiv i{1} {2}, {3}\n"
                         "  {0}p = mul i{1} {0}q, {3}\n"
                         "  {0}m = sub i{1} {2}, {0}p\n"
                         "  {0}s = ashr i{1} {0}m, {4}\n",
                         result, bits, x, c, bits - 1);
        if (quotient)
            out += formatted("  {0} = add i{1} {0}q, {0}s\n", result, bits);
        else
            out += formatted("  {0}c = and i{1} {0}s, {2}\n  {0} = add i{1} {0}m, {0}c\n", result,
                             bits, c);
    }
    return true;
}

void Values::emit_operator(NodeId id, Block block, std::string& out) {
    if (emit_division(id, block, out)) return;
    const ir::Node& node = mod_.program.graph[id];
    const ir::OpInfo& info = ir::info(node.op);
    int bits = node.type == ir::Type::integer ? width(id) : 32;
    if (node.type != ir::Type::integer)
        for (NodeId operand : node.operands)
            if (mod_.program.graph[operand].type == ir::Type::integer)
                bits = std::max(bits, width(operand));
    std::array<std::string, 3> operands;
    for (std::size_t i = 0; i < node.operands.size(); ++i)
        operands[i] = info.signature[i] == 'i' ? integer(node.operands[i], bits, block, out)
                                               : value(node.operands[i], block);
    std::string text;
    for (std::size_t i = 0; i < info.llvm.size(); ++i) {
        if (info.llvm[i] != '$') {
            text += info.llvm[i];
            continue;
        }
        const char hole = info.llvm[++i];
        text +=
            hole == 'i' ? formatted("i{}", bits) : operands[static_cast<std::size_t>(hole - 'x')];
    }
    // Range analysis proved that the result fits, and addresses are then seen to be linear.
    const bool exact =
        bits == 32 && (node.op == Op::iadd || node.op == Op::isub || node.op == Op::imul);
    if (exact) text.insert(3, " nsw");
    out += formatted("  {} = {}\n", name(id, block), text);
}

} // namespace flexc::cpu
