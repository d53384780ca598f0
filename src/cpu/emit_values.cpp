#include "cpu/emit_values.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "cpu/tile.h"
#include "support/key_layout.h"
#include "support/text.h"

namespace flexc::cpu {

namespace {

using ir::NodeId;
using ir::Op;
using passes::Place;
using Kind = passes::ArgumentSlot::Kind;

std::size_t at(Block block) { return static_cast<std::size_t>(block); }

// Functions of angles have a faster version for angles that are known to be below this.
constexpr double kBoundedAngle = 0x1p50;

std::string_view spelling(const passes::Mod& mod, const ir::Node& node) {
    if (node.operands.size() == 1 && mod.ranges.magnitude[node.operands[0]] < kBoundedAngle) {
        if (node.op == Op::sin) return "call float @flexc_bounded_sin(float $x)";
        if (node.op == Op::cos) return "call float @flexc_bounded_cos(float $x)";
        if (node.op == Op::tan) return "call float @flexc_bounded_tan(float $x)";
    }
    return ir::info(node.op).llvm;
}

// Whether an operator costs no more than reading its value from an array.
bool is_cheap(Op op) {
    const std::string_view text = ir::info(op).llvm;
    return text.find("@flexc_") == std::string_view::npos && op != Op::read && op != Op::sum &&
           op != Op::sqrt && op != Op::fdiv;
}

} // namespace

std::string literal(double value) {
    const auto narrowed = static_cast<double>(static_cast<float>(value));
    return formatted("0x{:016X}", std::bit_cast<std::uint64_t>(narrowed));
}

Values::Values(const passes::Mod& mod, bool dense, int first_scratch_array,
               const LoopMetadata& metadata)
    : mod_(mod), dense_(dense), slots_(passes::argument_slots(mod)),
      needed_(kBlocks, std::vector<bool>(mod.program.graph.size())),
      next_array_(first_scratch_array), texts_(kBlocks), metadata_(metadata) {
    const ir::Graph& graph = mod.program.graph;
    costly_.assign(graph.size(), false);
    kept_.assign(graph.size(), false);
    for (NodeId id = 0; id < graph.size(); ++id) {
        if (mod.place[id] != Place::column && mod.place[id] != Place::element) continue;
        costly_[id] = !is_cheap(graph[id].op) || graph[id].op == Op::score;
        for (NodeId operand : graph[id].operands)
            costly_[id] = costly_[id] || costly_[operand];
    }
    find_loops();
}

bool Values::is_literal(NodeId id) const {
    const Op op = mod_.program.graph[id].op;
    return op == Op::const_bool || op == Op::const_int || op == Op::const_real;
}

Block Values::home(NodeId id, Block user) const {
    if (mod_.counters[id] != ir::kNoNode) return user;
    switch (mod_.place[id]) {
    case Place::launch:
    case Place::head: return Block::entry;
    case Place::row: return Block::row;
    case Place::column: return user;
    case Place::element: break;
    }
    return loop(user) != nullptr ? user : Block::element;
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
    case Op::kv_idx:
    case Op::q_len:
    case Op::kv_len: return 32;
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
    std::string plain = value(id, block);
    if (is_literal(id) || width(id) == bits) return plain;
    const std::string converted = formatted("%{}{}x{}", letter(block), plain.substr(1), bits);
    if (widened_.insert(converted).second) {
        out += formatted("  {} = {} i{} {} to i{}\n", converted, bits == 64 ? "sext" : "trunc",
                         bits == 64 ? 32 : 64, plain, bits);
    }
    return converted;
}

int Values::slot(Kind kind, std::uint32_t index, std::uint32_t dim) const {
    return static_cast<int>(passes::word_of(slots_, {kind, index, dim}));
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

std::string Values::field(int field, std::string_view type) {
    const std::string name = formatted("%t{}", field);
    if (fields_.insert(field).second)
        texts_[at(Block::entry)] += formatted("  {0}p = getelementptr i64, ptr %tile, i64 {1}\n"
                                              "  {0} = load {2}, ptr {0}p\n",
                                              name, field, type);
    return name;
}

bool Values::is_in_row(Block block) const {
    const Loop* const of_terms = loop(block);
    return block == Block::element ||
           (of_terms != nullptr && of_terms->over_columns && of_terms->outer == Block::row);
}

// Whether the block reads the node's value from an array instead of computing it. Costly column
// values come from an array that the column loop fills, sums over columns from one that their own
// loop fills; the loops for gradients, which come last, read what the loop over elements computed.
bool Values::fetches(NodeId id, Block block) const {
    const Place place = mod_.place[id];
    if (mod_.counters[id] != ir::kNoNode) return false;
    if (mod_.program.graph[id].op == Op::sum)
        return place == Place::column || place == Place::element;
    const Loop* const of_terms = loop(block);
    if (place == Place::element)
        return of_terms != nullptr && of_terms->sum == ir::kNoNode && costly_[id];
    return is_in_row(block) && place == Place::column && costly_[id];
}

void Values::emit() {
    const NodeId size = mod_.program.graph.size();
    for (NodeId id = size; id-- > 0;) {
        for (std::size_t index = needed_.size(); index-- > 0;) {
            const Block block = static_cast<Block>(index);
            if (!needed_[index][id]) continue;
            if (mod_.program.graph[id].op == Op::sum) {
                need_sum(id);
            } else if (fetches(id, block)) {
                kept_[id] = true;
                needed_[at(mod_.place[id] == Place::column ? Block::column : Block::element)][id] =
                    true;
            } else if (mod_.program.graph[id].op != Op::counter) {
                for (NodeId operand : mod_.program.graph[id].operands)
                    need(operand, block);
            }
        }
    }
    emit_nodes(Block::entry);
    entry_sums_ = column_sums(Block::entry);
    emit_nodes(Block::column);
    emit_nodes(Block::row);
    row_sums_ = column_sums(Block::row);
    emit_nodes(Block::element);
    for (std::size_t index = 0; index < loops_.size(); ++index)
        if (loops_[index].sum == ir::kNoNode) emit_nodes(static_cast<Block>(kBlocks + index));
}

void Values::emit_nodes(Block block) {
    for (NodeId id = 0; id < mod_.program.graph.size(); ++id) {
        if (!needed_[at(block)][id]) continue;
        if (fetches(id, block)) {
            fetch_column(id, block);
            continue;
        }
        emit_node(id, block);
        const bool of_column = mod_.place[id] == Place::column;
        if (kept_[id] && block == (of_column ? Block::column : Block::element))
            keep_column(id, block);
    }
}

std::string Values::group(Block block) const {
    if (block == Block::column) return metadata_.access(VectorLoop::columns);
    if (block == Block::element) return metadata_.access(VectorLoop::elements);
    const Loop* const of_terms = loop(block);
    return of_terms != nullptr && of_terms->over_columns ? metadata_.access(VectorLoop::terms) : "";
}

int Values::array_of(NodeId id) {
    const auto [entry, is_new] = arrays_.try_emplace(id, next_array_);
    if (is_new)
        texts_[at(Block::entry)] +=
            formatted("  %array{} = getelementptr i8, ptr %scratch, i64 {}\n", next_array_,
                      next_array_ * kArrayBytes);
    if (is_new) ++next_array_;
    return entry->second;
}

void Values::keep_column(NodeId id, Block block) {
    const int array = array_of(id);
    std::string& out = texts_[at(block)];
    const std::string value = name(id, block);
    std::string stored = value, stored_type = type(id);
    if (stored_type == "i1") {
        out += formatted("  {0}k = zext i1 {0} to i32\n", stored);
        stored += "k";
        stored_type = "i32";
    }
    out += formatted("  {0}at = getelementptr {1}, ptr %array{2}, i32 {5}\n"
                     "  store {1} {3}, ptr {0}at{4}\n",
                     value, stored_type, array, stored, group(block), column(block));
}

void Values::fetch_column(NodeId id, Block block) {
    const std::string loaded = type(id), result = name(id, block);
    const bool boolean = loaded == "i1";
    texts_[at(block)] += formatted("  {0}at = getelementptr {1}, ptr %array{2}, i32 {5}\n"
                                   "  {0}{3} = load {1}, ptr {0}at{4}\n",
                                   result, boolean ? "i32" : loaded, array_of(id),
                                   boolean ? "k" : "", group(block), column(block));
    if (boolean) texts_[at(block)] += formatted("  {0} = icmp ne i32 {0}k, 0\n", result);
}

void Values::emit_node(NodeId id, Block block) {
    std::string out;
    const Op op = mod_.program.graph[id].op;
    if (op == Op::counter) return; // its loop defines it
    if (op == Op::read)
        emit_read(id, block, out);
    else if (op == Op::sum)
        emit_scalar_sum(id, out);
    else if (ir::info(op).is_leaf())
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
        if (block == Block::element)
            out += formatted("  {} = fadd float %score, {}\n", result, literal(-0.0));
        else
            out += formatted("  {0}r = getelementptr float, ptr %scores, i64 %row_offset\n"
                             "  {0}p = getelementptr float, ptr {0}r, i32 {1}\n"
                             "  {0}l = load float, ptr {0}p{2}\n"
                             "  {0} = fmul float {0}l, %scale\n",
                             result, column(block), group(block));
        return;
    case Op::b: return index("%b", "0");
    case Op::h: return index("%h", "0");
    case Op::h_kv: return index("%h_kv", "0");
    case Op::q_idx: return index("%q_begin", "%row");
    case Op::kv_idx: return index("%kv_begin", column(block));
    case Op::q_len:
    case Op::kv_len:
        out += formatted("  {} = trunc i64 {} to i32\n", result,
                         field(node.op == Op::q_len ? kTileQLen : kTileKvLen, "i64"));
        return;
    case Op::q_row:
        out += formatted("  {0}x = sext i32 %row to i64\n  {0} = add nsw i64 {1}, {0}x\n", result,
                         field(kTileQRow, "i64"));
        return;
    case Op::kv_row:
        if (!support::key_layout(mod_.program.key_layout).is_in_order)
            out += formatted("  {0}p = getelementptr i64, ptr {1}, i32 {2}\n"
                             "  {0} = load i64, ptr {0}p{3}\n",
                             result, field(kTileKvRows, "ptr"), column(block), group(block));
        else
            out += formatted("  {0}x = sext i32 {2} to i64\n  {0} = add nsw i64 {1}, {0}x\n",
                             result, field(kTileKvRow, "i64"), column(block));
        return;
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
    const std::string_view pattern = spelling(mod_, node);
    for (std::size_t i = 0; i < pattern.size(); ++i) {
        if (pattern[i] != '$') {
            text += pattern[i];
            continue;
        }
        const char hole = pattern[++i];
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
