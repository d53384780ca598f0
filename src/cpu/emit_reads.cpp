// Captured buffers: addresses, bounds, loads.
#include <algorithm>

#include "cpu/emit_values.h"
#include "support/text.h"

namespace flexc::cpu {

namespace {

using ir::NodeId;
using Kind = passes::ArgumentSlot::Kind;

} // namespace

// The sum of index * stride, starting with what is constant in the innermost loop. The condition is
// that every index that is not proven to be inside is.
Values::Offset Values::offset(NodeId read, Block block, bool gradient, const std::string& prefix,
                              std::string& out) {
    const ir::Node& node = mod_.program.graph[read];
    const std::vector<bool>& proven = mod_.ranges.in_range[read];
    const int moving = moving_dim(mod_, node);
    std::vector<std::uint32_t> dims(node.operands.size());
    for (std::uint32_t dim = 0; dim < dims.size(); ++dim)
        dims[dim] = dim;
    std::ranges::stable_sort(dims, {},
                             [&](std::uint32_t dim) { return mod_.place[node.operands[dim]]; });
    Offset result{"0", ""};
    int step = 0;
    auto define = [&](std::string_view text) {
        std::string defined = formatted("{}{}", prefix, step++);
        out += formatted("  {} = {}\n", defined, text);
        return defined;
    };
    for (std::uint32_t dim : dims) {
        const NodeId index = node.operands[dim];
        if (!proven[dim]) {
            const std::string extent = word(slot(Kind::buffer_extent, node.symbol, dim));
            const int bits = width(index);
            std::string bound = extent;
            if (bits == 32 && !is_literal(index)) {
                // Compared as unsigned, 2^31 accepts every index that is not negative.
                const std::string cut =
                    define(formatted("call i64 @llvm.umin.i64(i64 {}, i64 2147483648)", extent));
                bound = define(formatted("trunc i64 {} to i32", cut));
            }
            const int compared = is_literal(index) ? 64 : bits;
            const std::string inside = define(formatted(
                "icmp ult i{} {}, {}", compared, integer(index, compared, block, out), bound));
            result.condition = result.condition.empty()
                                   ? inside
                                   : define(formatted("and i1 {}, {}", result.condition, inside));
        }
        const std::string wide = integer(index, 64, block, out);
        const int stride_slot =
            slot(gradient ? Kind::gradient_stride : Kind::buffer_stride, node.symbol, dim);
        std::string term = wide;
        const bool moves = static_cast<int>(dim) == moving && is_in_row(block);
        if (moves && std::ranges::find(dense_slots_, stride_slot) == dense_slots_.end())
            dense_slots_.push_back(stride_slot);
        if (!(moves && dense_))
            term = define(formatted("mul nsw i64 {}, {}", wide, word(stride_slot)));
        result.offset = result.offset == "0"
                            ? term
                            : define(formatted("add nsw i64 {}, {}", result.offset, term));
    }
    return result;
}

void Values::emit_read(NodeId id, Block block, std::string& out) {
    const ir::Node& node = mod_.program.graph[id];
    const std::string result = name(id, block);
    Offset place = offset(id, block, false, result + "o", out);
    if (!place.condition.empty()) {
        out += formatted("  {0}i = select i1 {1}, i64 {2}, i64 0\n", result, place.condition,
                         place.offset);
        place.offset = result + "i";
    }
    constexpr std::array<std::string_view, 10> kMemoryTypes = {
        "double", "float", "half", "i16", "i64", "i32", "i16", "i8", "i8", "i8"};
    const DType dtype = mod_.program.buffers[node.symbol].dtype;
    out += formatted("  {}a = getelementptr {}, ptr {}, i64 {}\n", result,
                     kMemoryTypes[static_cast<std::size_t>(dtype)], base(id), place.offset);
    emit_load(id, result + "a", block, out);
    if (!place.condition.empty())
        out += formatted("  {0} = select i1 {1}, {2} {0}l, {2} {3}\n", result, place.condition,
                         type(id),
                         type(id) == "float" ? literal(0)
                         : type(id) == "i1"  ? std::string("false")
                                             : std::string("0"));
    else if (type(id) == "float")
        out += formatted("  {0} = fadd float {0}l, {1}\n", result, literal(-0.0));
    else
        out += formatted("  {0} = or {1} {0}l, {2}\n", result, type(id),
                         type(id) == "i1" ? "false" : "0");
}

// The value is in <name>l afterwards.
void Values::emit_load(NodeId id, const std::string& address, Block block, std::string& out) {
    const std::string v = name(id, block) + "l";
    // Callers' arrays need not be aligned.
    auto load = [&](std::string_view suffix, std::string_view memory_type) {
        out += formatted("  {}{} = load {}, ptr {}, align 1{}\n", v, suffix, memory_type, address,
                         group(block));
    };
    auto convert = [&](std::string_view operation, std::string_view from, std::string_view to) {
        out += formatted("  {0} = {1} {2} {0}m to {3}\n", v, operation, from, to);
    };
    switch (mod_.program.buffers[mod_.program.graph[id].symbol].dtype) {
    case DType::f32: return load("", "float");
    case DType::i32: return load("", "i32");
    case DType::i64: return load("", "i64");
    case DType::f64: load("m", "double"); return convert("fptrunc", "double", "float");
    case DType::f16: load("m", "half"); return convert("fpext", "half", "float");
    case DType::i16: load("m", "i16"); return convert("sext", "i16", "i32");
    case DType::i8: load("m", "i8"); return convert("sext", "i8", "i32");
    case DType::u8: load("m", "i8"); return convert("zext", "i8", "i32");
    case DType::boolean:
        load("m", "i8");
        out += formatted("  {0} = icmp ne i8 {0}m, 0\n", v);
        return;
    case DType::e4m3: // of no buffer
    case DType::e5m2:
    case DType::bf16: break;
    }
    load("m", "i16");
    out += formatted("  {0}w = zext i16 {0}m to i32\n"
                     "  {0}s = shl i32 {0}w, 16\n"
                     "  {0} = bitcast i32 {0}s to float\n",
                     v);
}

Values::Address Values::gradient_address(NodeId read, Block block, std::string& out) {
    const std::string prefix = formatted("%g{}", read);
    const Offset place = offset(read, block, true, prefix + "o", out);
    Address address{prefix + "a", place.condition, place.offset};
    const std::string data = gradient_base(read);
    if (place.condition.empty()) {
        out += formatted("  {} = getelementptr float, ptr {}, i64 {}\n", address.pointer, data,
                         place.offset);
        return address;
    }
    // An index outside adds nothing, not even zero to some element of the buffer: another thread
    // may be adding to it.
    out += formatted("  {0}i = select i1 {1}, i64 {2}, i64 0\n"
                     "  {0}e = getelementptr float, ptr {3}, i64 {0}i\n"
                     "  {0}a = select i1 {1}, ptr {0}e, ptr %nowhere\n",
                     prefix, place.condition, place.offset, data);
    address.offset = prefix + "i";
    return address;
}

std::string Values::gradient_base(NodeId read) {
    return pointer(slot(Kind::gradient_data, mod_.program.graph[read].symbol));
}

// The array of a read. An empty one may have no address; other memory stands in for it.
std::string Values::base(NodeId read) {
    const ir::Node& node = mod_.program.graph[read];
    std::string data = pointer(slot(Kind::buffer_data, node.symbol));
    std::string guarded = formatted("{}g{}", data, read);
    std::string empty = "false";
    for (std::uint32_t dim = 0; dim < node.operands.size(); ++dim) {
        if (mod_.ranges.in_range[read][dim]) continue;
        const std::string extent = word(slot(Kind::buffer_extent, node.symbol, dim));
        const std::string next = formatted("{}e{}", guarded, dim);
        if (!guarded_.contains(guarded))
            texts_[0] += formatted("  {0}n = icmp eq i64 {1}, 0\n  {0} = or i1 {2}, {0}n\n", next,
                                   extent, empty);
        empty = next;
    }
    if (empty == "false") return data;
    if (guarded_.insert(guarded).second)
        texts_[0] +=
            formatted("  {} = select i1 {}, ptr @flexc_zero, ptr {}\n", guarded, empty, data);
    return guarded;
}

} // namespace flexc::cpu
