// Classes of captured reads, against the addresses that the interpreter computes.
#include <array>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "analysis/dependence.h"
#include "ir/interp.h"
#include "passes/address_split.h"
#include "passes/captured_read.h"
#include "program_of.h"
#include "random.h"
#include "random_program.h"
#include "support/text.h"

using namespace flexc;
using ir::kNoNode;
using ir::NodeId;
using passes::CapturedRead;
using passes::ReadClass;
using passes::ReadPiece;

namespace {

// Of the only read of this buffer.
const CapturedRead& read_of(const passes::Mod& mod, const std::string& buffer) {
    for (const CapturedRead& read : mod.captured_reads)
        if (mod.program.buffers[mod.program.graph[read.read].symbol].name == buffer) return read;
    FAIL("no read of " << buffer);
    return mod.captured_reads[0];
}

// One point of a program, and values of nodes there.
class Point {
  public:
    Point(const passes::Mod& mod, std::vector<NodeId> roots, std::uint64_t seed)
        : mod_(mod), order_(ir::reachable(mod.program.graph, roots)), instance_(mod.program, seed),
          values_(mod.program.graph.size()) {}

    ir::Environment& at() { return instance_.environment(); }
    void find() { ir::evaluate_nodes(mod_.program, order_, at(), values_); }
    std::int64_t integer(NodeId id) const { return id == kNoNode ? 0 : values_[id].integer; }
    bool boolean(NodeId id) const { return values_[id].boolean; }

  private:
    const passes::Mod& mod_;
    std::vector<NodeId> order_;
    test::Instance instance_;
    std::vector<ir::Value<double>> values_;
};

std::int64_t value_of(const passes::Mod& mod, const analysis::Product& product, const Point& at) {
    std::int64_t value = product.constant;
    for (const NodeId factor : product.factors)
        value *= at.integer(factor);
    static_cast<void>(mod);
    return value;
}

std::int64_t value_of(const analysis::AffineForm& form, const Point& at) {
    std::int64_t value = form.constant;
    for (const auto& term : form.rest)
        value += term.coefficient * at.integer(term.node);
    return value;
}

std::int64_t floor_divide(std::int64_t x, std::int64_t y) {
    return x / y - ((x % y != 0 && (x < 0) != (y < 0)) ? 1 : 0);
}

std::int64_t digit(std::int64_t x, std::int64_t start, std::optional<std::int64_t> end) {
    x = floor_divide(x, start);
    return end ? x - floor_divide(x, *end / start) * (*end / start) : x;
}

void add_roots(std::vector<NodeId>& roots, const analysis::Product& product) {
    roots.insert(roots.end(), product.factors.begin(), product.factors.end());
}
void add_roots(std::vector<NodeId>& roots, const analysis::AffineForm& form) {
    for (const auto& term : form.rest)
        roots.push_back(term.node);
}
void add_root(std::vector<NodeId>& roots, NodeId id) {
    if (id != kNoNode) roots.push_back(id);
}

struct Sizes {
    std::int64_t q = 12, kv = 13, b = 2, h = 2;
    std::map<std::string, std::int64_t> more;
};

// Every claim about a piece of a read, at every element.
void check_piece(passes::Mod mod, const CapturedRead& read, const ReadPiece& piece,
                 const Sizes& sizes, std::uint64_t seed) {
    const passes::AddressSplit split = passes::split_address(mod, read, piece);
    const ir::Graph& graph = mod.program.graph;
    const std::vector<NodeId> indices = graph[read.read].operands;
    const auto uses = analysis::dependences(graph);
    const auto uses_no = [&](NodeId id, unsigned bits) {
        return id == kNoNode || (uses[id].bits & bits) == 0;
    };
    using analysis::Dependence;
    std::vector<NodeId> roots = indices;
    const auto add_parts = [&](const passes::AddressParts& parts) {
        for (const NodeId part : {parts.query, parts.key, parts.rest})
            add_root(roots, part);
        CHECK(uses_no(parts.query, Dependence::kv | Dependence::score));
        CHECK(uses_no(parts.key, Dependence::q | Dependence::score));
    };
    for (const auto& index : split.indices) {
        roots.push_back(index.first);
        roots.push_back(index.entries);
        CHECK(uses_no(index.first, analysis::kInsideHead));
        CHECK(uses[index.entries] == Dependence{});
        add_parts(index.parts);
    }
    add_parts(split.parts);
    roots.push_back(split.place);
    roots.push_back(split.count);
    for (const auto& [condition, holds] : piece.where)
        roots.push_back(condition);
    for (const auto& axis : piece.grid.axes) {
        add_roots(roots, axis.start);
        if (axis.end) add_roots(roots, *axis.end);
    }
    add_roots(roots, piece.grid.q_offset);
    add_roots(roots, piece.grid.kv_offset);
    for (const auto& shift : piece.shifts) {
        add_root(roots, shift.inside);
        roots.insert(roots.end(), shift.least.begin(), shift.least.end());
        roots.insert(roots.end(), shift.most.begin(), shift.most.end());
        add_roots(roots, shift.q);
        add_roots(roots, shift.kv);
    }

    Point point(mod, roots, seed);
    ir::Environment& at = point.at();
    at.sizes[ir::kQLen] = sizes.q;
    at.sizes[ir::kKvLen] = sizes.kv;
    at.sizes[ir::kH] = at.sizes[ir::kHKv] = sizes.h;
    at.sizes[ir::kB] = sizes.b;
    for (const auto& [name, value] : sizes.more)
        for (std::size_t i = 0; i < mod.program.sizes.size(); ++i)
            if (mod.program.sizes[i] == name) at.sizes[i] = value;
    for (std::size_t i = 0; i < mod.program.params.size(); ++i)
        at.params[i].integer = static_cast<std::int64_t>(mod.program.params[i].default_value);

    using Address = std::vector<std::int64_t>;
    for (at.b = 0; at.b < sizes.b; ++at.b)
        for (at.h = 0; at.h < sizes.h; ++at.h) {
            std::map<std::vector<std::int64_t>, Address> by_fibre;
            std::set<Address> met;
            for (at.q_idx = 0; at.q_idx < sizes.q; ++at.q_idx)
                for (at.kv_idx = 0; at.kv_idx < sizes.kv; ++at.kv_idx) {
                    at.h_kv = at.h;
                    at.score = static_cast<double>((at.q_idx * 7 + at.kv_idx * 3) % 11);
                    point.find();
                    bool holds = true;
                    for (const auto& [condition, value] : piece.where)
                        holds &= point.boolean(condition) == value;
                    if (!holds) continue;
                    // The split is the address.
                    Address address;
                    std::int64_t place = 0;
                    bool is_inside = true;
                    for (std::size_t i = 0; i < indices.size(); ++i) {
                        const auto& index = split.indices[i];
                        const std::int64_t inner = point.integer(index.parts.query) +
                                                   point.integer(index.parts.key) +
                                                   point.integer(index.parts.rest);
                        const std::int64_t entries = point.integer(index.entries);
                        REQUIRE(point.integer(index.first) + inner == point.integer(indices[i]));
                        if (piece.slice[i].is_inside) REQUIRE((0 <= inner && inner < entries));
                        is_inside &= 0 <= inner && inner < entries;
                        place = place * entries + inner;
                        address.push_back(point.integer(indices[i]));
                    }
                    REQUIRE(place == point.integer(split.place));
                    REQUIRE(place == point.integer(split.parts.query) +
                                         point.integer(split.parts.key) +
                                         point.integer(split.parts.rest));
                    if (is_inside) REQUIRE((0 <= place && place < point.integer(split.count)));

                    // The class says which elements share an address.
                    std::vector<std::int64_t> fibre;
                    const auto position = [&](bool query) {
                        return (query ? at.q_idx : at.kv_idx) +
                               value_of(query ? piece.grid.q_offset : piece.grid.kv_offset, point);
                    };
                    switch (piece.read_class) {
                    case ReadClass::constant: break;
                    case ReadClass::row: fibre = {at.q_idx}; break;
                    case ReadClass::column: fibre = {at.kv_idx}; break;
                    case ReadClass::distance_1d: fibre = {at.q_idx - at.kv_idx}; break;
                    case ReadClass::grid_distance:
                        for (const auto& axis : piece.grid.axes) {
                            const std::int64_t start = value_of(mod, axis.start, point);
                            std::optional<std::int64_t> end;
                            if (axis.end) end = value_of(mod, *axis.end, point);
                            fibre.push_back(digit(position(true), start, end) -
                                            digit(position(false), start, end));
                        }
                        break;
                    case ReadClass::dense_bias:
                    case ReadClass::shifted: {
                        bool is_clamped = false;
                        for (std::size_t i = 0; i < indices.size(); ++i) {
                            const auto& shift = piece.shifts[i];
                            for (const NodeId least : shift.least)
                                is_clamped |= point.integer(shift.inside) < point.integer(least);
                            for (const NodeId most : shift.most)
                                is_clamped |= point.integer(shift.inside) > point.integer(most);
                        }
                        if (!is_clamped) REQUIRE(met.insert(address).second);
                        fibre = {at.q_idx, at.kv_idx};
                        break;
                    }
                    case ReadClass::pair_of_kinds:
                        REQUIRE(split.parts.rest == kNoNode);
                        fibre = {point.integer(split.parts.query), point.integer(split.parts.key)};
                        break;
                    case ReadClass::small_table:
                    case ReadClass::large_table: fibre = address; break;
                    }
                    const auto [first, is_new] = by_fibre.try_emplace(fibre, address);
                    if (!is_new) REQUIRE(first->second == address);
                }
        }
}

void check_read(const passes::Mod& mod, const CapturedRead& read, const Sizes& sizes,
                std::uint64_t seed) {
    for (const ReadPiece& piece : read.pieces) {
        CHECK(piece.read_class <= read.read_class);
        CAPTURE(name(piece.read_class));
        check_piece(mod, read, piece, sizes, seed);
    }
}

// Of the read of t.
ReadClass class_of(const std::string& text, const Sizes& sizes = {}) {
    const passes::Mod mod = test::lowered(text);
    const CapturedRead& read = read_of(mod, "t");
    CAPTURE(text);
    for (const CapturedRead& other : mod.captured_reads)
        check_read(mod, other, sizes, 1);
    return read.read_class;
}

} // namespace

TEST_CASE("learned biases as published models write them") {
    const std::string swin = "buffer t: f32[H, 13, 13] grad\n"
                             "score_mod = score + t[h, q_idx // 7 - kv_idx // 7 + 6, "
                             "q_idx % 7 - kv_idx % 7 + 6]";
    CHECK(class_of(swin, {.q = 49, .kv = 49, .b = 1, .h = 2, .more = {}}) ==
          ReadClass::grid_distance);
    // BEiT: a class token before the grid, entries of its own at the table's end.
    CHECK(
        class_of("buffer t: f32[N, H] grad\nscore_mod {\n"
                 "across = (q_idx - 1) % 5 - (kv_idx - 1) % 5 + 4\n"
                 "down = (q_idx - 1) // 5 - (kv_idx - 1) // 5 + 4\n"
                 "rel = down * 9 + across\n"
                 "i = where(q_idx == 0, where(kv_idx == 0, 83, 81), where(kv_idx == 0, 82, rel))\n"
                 "score + t[i, h]\n}",
                 {.q = 26, .kv = 26, .b = 1, .h = 2, .more = {{"N", 84}}}) ==
        ReadClass::grid_distance);
}
