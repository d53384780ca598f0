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
#include "passes/dense_bias.h"
#include "passes/gradient_factor.h"
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

std::int64_t value_of(const analysis::Product& product, const Point& at) {
    std::int64_t value = product.constant;
    for (const NodeId factor : product.factors)
        value *= at.integer(factor);
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
                            const std::int64_t start = value_of(axis.start, point);
                            std::optional<std::int64_t> end;
                            if (axis.end) end = value_of(*axis.end, point);
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
                        for (const auto& index : split.indices) {
                            fibre.push_back(point.integer(index.parts.query));
                            fibre.push_back(point.integer(index.parts.key));
                        }
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

// Of the read of t, after a look at all reads.
CapturedRead read_in(const std::string& text, const Sizes& sizes = {}) {
    const passes::Mod mod = test::lowered(text);
    CAPTURE(text);
    for (const CapturedRead& read : mod.captured_reads)
        check_read(mod, read, sizes, 1);
    return read_of(mod, "t");
}

ReadClass class_of(const std::string& text, const Sizes& sizes = {}) {
    return read_in(text, sizes).read_class;
}

// Of t with these dims, read at this index.
ReadClass class_at(const std::string& dims, const std::string& index, const Sizes& sizes = {}) {
    return class_of("buffer t: f32[" + dims +
                        "] grad\nbuffer of_query: i32[Q_LEN]\nbuffer of_key: i32[KV_LEN]\n"
                        "buffer kind: u8[KV_LEN]\nbuffer pair: i32[B, Q_LEN, KV_LEN]\n"
                        "param W: i32 = 3\nscore_mod = score + t[" +
                        index + "]",
                    sizes);
}

} // namespace

TEST_CASE("Swin: a table by the two axes of a window") {
    const Sizes window{.q = 49, .kv = 49, .b = 1, .h = 2, .more = {}};
    CHECK(class_at("H, 13, 13", "h, q_idx // 7 - kv_idx // 7 + 6, q_idx % 7 - kv_idx % 7 + 6",
                   window) == ReadClass::grid_distance);
    const CapturedRead flat = read_in("buffer t: f32[169, H] grad\nscore_mod {\n"
                                      "down = q_idx // 7 - kv_idx // 7 + 6\n"
                                      "across = q_idx % 7 - kv_idx % 7 + 6\n"
                                      "score + t[down * 13 + across, h]\n}",
                                      window);
    REQUIRE(flat.read_class == ReadClass::grid_distance);
    REQUIRE(flat.pieces[0].grid.axes.size() == 2);
    CHECK(flat.pieces[0].grid.axes[0].start.is(1));
    CHECK(flat.pieces[0].grid.axes[0].end->is(7));
    CHECK(flat.pieces[0].grid.axes[1].start.is(7));
    CHECK(!flat.pieces[0].grid.axes[1].end);
    CHECK(flat.pieces[0].entries == passes::Count{169, {}});
    CHECK(flat.positive.empty());
    // The width as a parameter has to be at least 1 when a kernel starts.
    const CapturedRead by_param =
        read_in("buffer t: f32[H, N, N] grad\nparam W: i32 = 7\nscore_mod = score + "
                "t[h, q_idx // W - kv_idx // W + W - 1, q_idx % W - kv_idx % W + W - 1]",
                window);
    CHECK(by_param.read_class == ReadClass::grid_distance);
    CHECK(by_param.positive.size() == 1);
    CHECK(by_param.pieces[0].entries.sizes.size() == 2);
}

TEST_CASE("BEiT: a class token before an image, with entries of its own") {
    const Sizes image{.q = 26, .kv = 26, .b = 1, .h = 2, .more = {{"N", 84}}};
    const CapturedRead read =
        read_in("buffer t: f32[N, H] grad\nscore_mod {\n"
                "across = (q_idx - 1) % 5 - (kv_idx - 1) % 5 + 4\n"
                "down = (q_idx - 1) // 5 - (kv_idx - 1) // 5 + 4\n"
                "i = where(q_idx == 0 and kv_idx == 0, N - 1, where(q_idx == 0, N - 3,\n"
                "  where(kv_idx == 0, N - 2, down * 9 + across)))\n"
                "score + t[i, h]\n}",
                image);
    REQUIRE(read.read_class == ReadClass::grid_distance);
    CHECK(read.pieces.size() == 3); // all keys of the class token are one column
    CHECK(read.decisive().where.size() == 2);
    CHECK(read.decisive().grid.q_offset.constant == -1);
    CHECK(read.decisive().grid.kv_offset.constant == -1);
    // The same with coordinates that conditions on one position choose.
    CHECK(class_of("buffer t: f32[H, N, N] grad\nparam W: i32 = 5\n"
                   "fn row(x) = where(x > 0, (x - 1) // W, 0)\n"
                   "fn column(x) = where(x > 0, (x - 1) % W, 0)\n"
                   "score_mod = score + t[h, row(q_idx) - row(kv_idx) + W, "
                   "column(q_idx) - column(kv_idx) + W]",
                   image) == ReadClass::grid_distance);
    CHECK(class_at("H, N", "h, where(q_idx < 4, 0, where(kv_idx < 4, 1, q_idx - kv_idx))") ==
          ReadClass::distance_1d);
}

TEST_CASE("elements of a head have addresses of their own") {
    for (const char* index :
         {"h, q_idx, kv_idx", "h, kv_idx + 2, q_idx", "h, q_idx, q_idx - kv_idx + KV_LEN"})
        CHECK(passes::has_own_addresses(
            read_in(formatted("buffer t: f32[H, N, N] grad\nscore_mod = score + t[{}]", index))));
    for (const char* index : {"h, q_idx, clamp(q_idx - kv_idx, -3, 3) + 3", "h, q_idx, 0",
                              "h, 1, q_idx - kv_idx + KV_LEN", "h, q_idx // 2, kv_idx"})
        CHECK_FALSE(passes::has_own_addresses(
            read_in(formatted("buffer t: f32[H, N, N] grad\nscore_mod = score + t[{}]", index))));
}

TEST_CASE("distances along axes: alone, absolute, clamped, in other orders") {
    for (const char* index :
         {"min(abs(q_idx // 4 - kv_idx // 4), 3), h", "q_idx % 4 - kv_idx % 4 + 3, h",
          "clamp(q_idx // 4 - kv_idx // 4, -2, 2) + 2, h",
          "abs(q_idx // 4 - kv_idx // 4) * 4 + abs(q_idx % 4 - kv_idx % 4), h",
          "(q_idx // 4 - kv_idx // 4) ** 2 + (q_idx % 4 - kv_idx % 4) ** 2, h",
          "int(sqrt((q_idx // 4 - kv_idx // 4) ** 2 + (q_idx % 4 - kv_idx % 4) ** 2)), h",
          "q_idx - q_idx // 4 * 4 - kv_idx % 4 + 3, h", "(q_idx >> 2) - (kv_idx >> 2), h",
          "(q_idx & 3) - (kv_idx & 3), h", "q_idx // 2 // 2 - kv_idx // 4, h",
          "where(q_idx % 4 < kv_idx % 4, 0, 1), h",
          "(q_idx - kv_idx) * 5 + q_idx // W - kv_idx // W, h",
          "q_idx // (W * 4) - kv_idx // (4 * W), h", "kv_idx // 4 - (q_idx + 4) // 4, h",
          "q_idx % 12 // 4 - kv_idx // 4 % 3 + h, h"}) {
        CAPTURE(index);
        CHECK(class_at("N, H", index) == ReadClass::grid_distance);
    }
    for (const char* index :
         {"q_idx - kv_idx", "abs(q_idx - kv_idx) * W", "(q_idx - kv_idx + h) % 5",
          "(q_idx + b) * W - (kv_idx - 3) * W", "where(q_idx >= kv_idx, 0, 1)",
          "q_idx // 4 * 4 + q_idx % 4 - kv_idx // 4 * 4 - kv_idx % 4 + 0 * h"}) {
        CAPTURE(index);
        const ReadClass found = class_at("N", index);
        CHECK((found == ReadClass::distance_1d || found == ReadClass::grid_distance));
    }
}

TEST_CASE("Video Swin: a table by three axes") {
    const Sizes window{.q = 36, .kv = 36, .b = 1, .h = 1, .more = {}};
    const CapturedRead read = read_in("buffer t: f32[H, N] grad\nscore_mod {\n"
                                      "d = q_idx // 12 - kv_idx // 12 + 2\n"
                                      "y = q_idx // 4 % 3 - kv_idx // 4 % 3 + 2\n"
                                      "x = q_idx % 4 - kv_idx % 4 + 3\n"
                                      "score + t[h, d * 35 + y * 7 + x]\n}",
                                      window);
    CHECK(read.read_class == ReadClass::grid_distance);
    CHECK(read.pieces[0].grid.axes.size() == 3);
    CHECK(class_of("buffer t: f32[H, D0, R, C] grad\nscore_mod = score + "
                   "t[h, q_idx // (R * C) - kv_idx // (R * C), q_idx // C % R - kv_idx // C % R, "
                   "q_idx % C - kv_idx % C]",
                   {.q = 24, .kv = 24, .b = 1, .h = 1, .more = {{"R", 3}, {"C", 4}}}) ==
          ReadClass::grid_distance);
}

TEST_CASE("small tables by stored numbers") {
    // Graphormer
    const CapturedRead graph = read_in("buffer t: f32[H, N] grad\nbuffer d: i32[B, Q_LEN, KV_LEN]\n"
                                       "score_mod = score + t[h, d[b, q_idx, kv_idx]]");
    CHECK(graph.read_class == ReadClass::small_table);
    CHECK(graph.pieces[0].entries.sizes.size() == 1);
    const CapturedRead bytes = read_in("buffer t: f32[N, H] grad\nbuffer d: u8[Q_LEN, KV_LEN]\n"
                                       "score_mod = score + t[d[q_idx, kv_idx], h]");
    CHECK(bytes.pieces[0].entries == passes::Count{256, {}});
    CHECK(bytes.pieces[0].slice[0].is_inside);
    // A flat table: which head's part it is selects the slice.
    const CapturedRead flat = read_in("buffer t: f32[N] grad\nbuffer d: u8[Q_LEN, KV_LEN]\n"
                                      "score_mod = score + t[h * 256 + d[q_idx, kv_idx]]");
    CHECK(flat.read_class == ReadClass::small_table);
    CHECK(flat.pieces[0].slice[0].has_base);
    CHECK(flat.pieces[0].entries == passes::Count{256, {}});
    // HSTU
    const CapturedRead hstu =
        read_in("buffer t: f32[129, H] grad\nbuffer time: i64[B, KV_LEN]\nscore_mod {\n"
                "d = abs(time[b, q_idx] - time[b, kv_idx])\n"
                "i = clamp(int(log(max(d, 1)) / 0.301), 0, 128)\n"
                "score + t[i, h]\n}");
    CHECK(hstu.read_class == ReadClass::small_table);
    CHECK(hstu.pieces[0].entries == passes::Count{129, {}});
    CHECK(class_at("N", "int(score)") == ReadClass::small_table);
}

TEST_CASE("kinds of queries and keys") {
    const CapturedRead kinds = read_in("buffer t: f32[K, K, H] grad\nbuffer kind: i32[KV_LEN]\n"
                                       "score_mod = score + t[kind[q_idx], kind[kv_idx], h]");
    CHECK(kinds.read_class == ReadClass::pair_of_kinds);
    CHECK(kinds.pieces[0].query_kinds == kinds.pieces[0].key_kinds);
    CHECK(class_at("N, N", "where(q_idx < 5, 0, 1), where(kv_idx < 5, 0, 1)") ==
          ReadClass::pair_of_kinds);
    CHECK(class_at("H, N", "h, kind[q_idx] * 256 + kind[kv_idx]") == ReadClass::small_table);
    CHECK(class_at("H, N", "h, kind[q_idx] * 16 + kind[kv_idx] % 16") == ReadClass::pair_of_kinds);
    // How many kinds there are is known of neither.
    CHECK(class_at("N", "of_query[q_idx] + of_key[kv_idx]") == ReadClass::small_table);
    CHECK(class_at("Q_LEN, KV_LEN", "of_query[q_idx], of_key[kv_idx]") == ReadClass::large_table);
    // A slice for each query: SAM's slabs.
    CHECK(class_at("H, Q_LEN, N", "h, q_idx, kv_idx // W") == ReadClass::pair_of_kinds);
    CHECK(class_at("N, KV_LEN", "of_query[q_idx], kv_idx") == ReadClass::pair_of_kinds);
    CHECK(class_at("4, 4", "of_query[q_idx], pair[b, q_idx, kv_idx]") == ReadClass::small_table);
    CHECK(class_at("400, 400", "of_query[q_idx], pair[b, q_idx, kv_idx]") ==
          ReadClass::large_table);
}

TEST_CASE("affine addresses") {
    // Transformer-XL, DeBERTa's two
    CHECK(class_at("B, H, Q_LEN, N", "b, h, q_idx, kv_idx - q_idx + KV_LEN") == ReadClass::shifted);
    const CapturedRead c2p = read_in("buffer t: f32[B, H, Q_LEN, 8] grad\nscore_mod = score + "
                                     "t[b, h, q_idx, clamp(q_idx - kv_idx + 4, 0, 7)]");
    REQUIRE(c2p.read_class == ReadClass::shifted);
    CHECK(c2p.pieces[0].shifts[3].is_clamped());
    CHECK(c2p.pieces[0].shifts[3].q.is(1));
    CHECK(c2p.pieces[0].shifts[3].kv.is(-1));
    CHECK(class_at("H, KV_LEN, 9", "h, kv_idx, clamp(kv_idx - q_idx, -4, 4) + 4") ==
          ReadClass::shifted);
    CHECK(class_at("H, N, M", "h, 2 * q_idx + kv_idx, kv_idx") == ReadClass::shifted);
    CHECK(class_at("H, N, M", "h, 4 - q_idx, kv_idx") == ReadClass::shifted);
    CHECK(class_at("H, N", "h, q_idx * KV_LEN + kv_idx") == ReadClass::shifted);
    // Entries at one address, or both ends in one run.
    CHECK(class_at("H, N, M", "h, q_idx + kv_idx, 2 * q_idx + 2 * kv_idx") != ReadClass::shifted);
    CHECK(class_at("N", "q_idx * 5 + kv_idx") == ReadClass::small_table);
    CHECK(class_at("Q_LEN, N", "q_idx, max(kv_idx, 3)") == ReadClass::shifted);
    CHECK(class_at("N, M", "q_idx + kv_idx, min(q_idx, 3)") != ReadClass::shifted);

    // AlphaFold's pair bias
    const CapturedRead pair = read_in("buffer t: f32[H, Q_LEN, KV_LEN] grad\n"
                                      "score_mod = score + t[h, q_idx, kv_idx]");
    CHECK(pair.read_class == ReadClass::dense_bias);
    CHECK(!pair.uses.has(analysis::Dependence::b));
    for (const char* index : {"kv_idx, h, q_idx", "q_idx + 2 * b, h, kv_idx - 1"})
        CHECK(class_at("N, H, M", index) == ReadClass::dense_bias);
}

TEST_CASE("the first classes") {
    CHECK(class_at("B, H", "b, h") == ReadClass::constant);
    CHECK(class_at("H, N", "h, of_query[q_idx] // 2") == ReadClass::row);
    CHECK(class_at("H, N", "h, kv_idx % 5") == ReadClass::column);
    CHECK(class_at("H, 9", "h, clamp(q_idx - kv_idx, -4, 4) + 4") == ReadClass::distance_1d);
    CHECK(class_of("buffer t: f32[B, KV_LEN, N]\nscore_mod = score + "
                   "sum(i in 0..N: t[b, kv_idx, i] * q_idx)") == ReadClass::large_table);
}

TEST_CASE("what is just outside of a class is in none that claims more") {
    CHECK(class_at("N, H", "q_idx // 4 - kv_idx // 5, h") == ReadClass::small_table);
    CHECK(class_at("N, H", "q_idx // 4 + kv_idx // 4, h") == ReadClass::small_table);
    CHECK(class_at("N, M", "q_idx % 4 - kv_idx % 4, q_idx // 5 - kv_idx // 5") ==
          ReadClass::small_table);
    CHECK(class_at("N, M", "q_idx % 4 - kv_idx % 4 + 3, (q_idx + 1) // 4 - (kv_idx + 1) // 4") ==
          ReadClass::small_table);
    CHECK(class_at("N", "max(q_idx // 4, kv_idx // 4)") == ReadClass::small_table);
    CHECK(class_at("N", "2 * q_idx - kv_idx") == ReadClass::small_table);
    CHECK(class_at("N", "q_idx // (KV_LEN // 20) - kv_idx // (KV_LEN // 20)") ==
          ReadClass::small_table);
}

TEST_CASE("functions of distance that no read supplies, and their gradients") {
    passes::Mod mod = test::lowered(
        "buffer a: f32[H] grad\nbuffer p: f32[H] grad\n"
        "score_mod = 5 * tanh((score - a[h] * log(1 + p[h] * abs(q_idx - kv_idx))) / 5)");
    REQUIRE(mod.difference_values.size() == 1);
    CHECK(mod.difference_values[0].reads.size() == 2);
    CHECK(mod.difference_values[0].grid.axes.size() == 1);
    REQUIRE(mod.gradients.size() == 2);
    for (const passes::ReadGradient& gradient : mod.gradients) {
        const ir::NodeId factor = passes::gradient_factor(mod, gradient);
        REQUIRE(factor != ir::kNoNode);
        const std::array roots = {factor, gradient.partial, mod.d_score};
        test::Instance instance(mod.program, 3);
        for (int i = 0; i < 20; ++i) {
            instance.move();
            const auto values = ir::evaluate<double>(mod.program, roots, instance.environment());
            const double partial = values[gradient.partial].real;
            if (partial == partial)
                CHECK(values[factor].real * values[mod.d_score].real ==
                      doctest::Approx(partial).epsilon(1e-6));
        }
    }
    mod = test::lowered("buffer s: f32[H] grad\nbuffer p: f32[H] grad\nscore_mod = "
                        "score * s[h] + exp(-p[h] * abs(q_idx - kv_idx))");
    REQUIRE(mod.gradients.size() == 2);
    for (const passes::ReadGradient& gradient : mod.gradients)
        CHECK(passes::gradient_factor(mod, gradient) == ir::kNoNode);
    mod = test::lowered("buffer s: f32[H] grad\nparam w: i32 = 8\n"
                        "score_mod = score - s[h] * sqrt((q_idx % w - kv_idx % w) ** 2 + "
                        "(q_idx // w - kv_idx // w) ** 2) + q_idx * s[0] * kv_idx");
    REQUIRE(mod.difference_values.size() == 1);
    CHECK(mod.difference_values[0].grid.axes.size() == 2);
    CHECK(test::lowered("score + q_idx * kv_idx").difference_values.empty());
}

namespace {

// Texts of indices of one class.
class Member {
  public:
    explicit Member(std::uint64_t seed) : random_(seed) {
        width_ = random_.integer(2, 4);
        period_ = random_.integer(2, 3);
    }

    std::string preamble() const {
        return formatted("param W: i32 = {}\nparam P: i32 = {}\nbuffer of_query: i32[Q_LEN]\n"
                         "buffer of_key: i32[KV_LEN]\nbuffer pair: u8[B, Q_LEN, KV_LEN]\n"
                         "buffer sized: f32[SW, SP]\n",
                         width_, period_);
    }
    Sizes sizes() const {
        return {.q = 13, .kv = 14, .b = 1, .h = 2, .more = {{"SW", width_}, {"SP", period_}}};
    }

    std::string distance() { return function(signed_("q_idx - kv_idx")); }

    // Of one to three axes, in one number or several.
    std::vector<std::string> grid() {
        q_offset_ = random_.chance(30) ? random_.integer(-3, 3) : 0;
        kv_offset_ = random_.chance(50) ? q_offset_ : random_.integer(-3, 3);
        width_text_ = number(width_, "W", "SW");
        period_text_ = number(period_, "P", "SP");
        std::vector<int> places = random_.chance(50) ? std::vector{0, 1} : std::vector{0, 1, 2};
        if (random_.chance(15)) places = {static_cast<int>(random_.integer(0, 2))};
        const bool has_period = places.size() == 3 || places[0] == 2;
        std::vector<std::string> axes;
        for (const int place : places)
            axes.push_back(function(signed_(digit("q_idx", q_offset_, place, has_period) + " - " +
                                            digit("kv_idx", kv_offset_, place, has_period))));
        if (axes.size() > 1 && random_.chance(40)) {
            std::string joint = axes[0];
            for (std::size_t i = 1; i < axes.size(); ++i)
                joint =
                    formatted("({}) * {} + ({})", joint, random_.chance(30) ? "W" : "13", axes[i]);
            axes = {function(joint)};
        }
        if (random_.chance(30)) axes.push_back(random_.chance(50) ? "h" : "b * 2 + 1");
        shuffle(axes);
        return axes;
    }

    std::vector<std::string> shifted() {
        std::string inside = random_.chance(50) ? "kv_idx - q_idx" : "q_idx - kv_idx";
        if (random_.chance(30)) inside = "3 * kv_idx - 2 * q_idx";
        std::vector<std::string> indices = {random_.chance(50) ? "q_idx" : "kv_idx",
                                            formatted("{} + {}", inside, constant())};
        switch (random_.integer(0, 3)) {
        case 0: indices[1] = formatted("clamp({}, -3, 4)", indices[1]); break;
        case 1: indices[1] = formatted("5 - max({}, h)", indices[1]); break;
        case 2: indices[1] = formatted("min({}, SW) + SW", indices[1]); break;
        default: break;
        }
        if (random_.chance(50)) indices.push_back("h");
        shuffle(indices);
        return indices;
    }

    std::vector<std::string> kinds() {
        const auto kind = [&](const std::string& read, const std::string& position) {
            switch (random_.integer(0, 3)) {
            case 0: return formatted("{} % 3", read);
            case 1: return formatted("where({} < {}, 0, 1)", position, random_.integer(2, 9));
            case 2: return formatted("clamp({}, 0, 3)", read);
            default: return formatted("min(abs({}), {})", read, random_.integer(1, 4));
            }
        };
        const std::string q = kind("of_query[q_idx]", "q_idx"),
                          kv = kind("of_key[kv_idx]", "kv_idx");
        std::vector<std::string> indices = {q, kv};
        if (random_.chance(40)) indices = {formatted("({}) * 5 + ({})", q, kv)};
        if (random_.chance(40)) indices.push_back("h");
        shuffle(indices);
        return indices;
    }

    std::vector<std::string> small() {
        std::vector<std::string> indices = {"pair[b, q_idx, kv_idx]"};
        switch (random_.integer(0, 3)) {
        case 0: indices[0] += " % 5 + of_query[q_idx] % 3"; break;
        case 1: indices[0] = "clamp(of_query[q_idx] * of_key[kv_idx], 0, 15)"; break;
        case 2: indices[0] = formatted("h * 260 + {} + {}", indices[0], constant()); break;
        default: indices.emplace_back("of_query[q_idx] % 4"); break;
        }
        shuffle(indices);
        return indices;
    }

    // Chosen by conditions on rows and columns, the index last.
    std::vector<std::string> with_token(std::vector<std::string> indices) {
        const std::string first = random_.chance(50) ? "q_idx == 0" : "kv_idx < 2";
        const std::string second = random_.chance(50) ? "kv_idx == 0" : "q_idx >= 11";
        for (std::string& index : indices)
            index = random_.chance(50)
                        ? formatted("where({}, 0, where({}, 1, {}))", first, second, index)
                        : formatted("where({} or {}, h, {})", first, second, index);
        return indices;
    }

    // Any integer, of any class.
    std::string anything(int depth) {
        if (depth == 0 || random_.chance(10)) {
            constexpr std::array kLeaves = {"q_idx", "kv_idx", "q_idx", "kv_idx",
                                            "h",     "W",      "3",     "of_query[q_idx]",
                                            "SW",    "P",      "1",     "of_key[kv_idx]"};
            return random_.pick(kLeaves);
        }
        const auto part = [&] { return anything(depth - 1); };
        switch (random_.integer(0, 11)) {
        case 0:
        case 1: return formatted("({} + {})", part(), part());
        case 2:
        case 3:
        case 4: return formatted("({} - {})", part(), part());
        case 5: return formatted("({} * {})", part(), random_.chance(70) ? constant() : part());
        case 6: return formatted("({} // {})", part(), random_.chance(50) ? "W" : "4");
        case 7: return formatted("({} % {})", part(), random_.chance(50) ? "P" : "12");
        case 8: return formatted("abs({})", part());
        case 9: return formatted("min({}, {})", part(), part());
        case 10: return formatted("max({}, {})", part(), constant());
        default:
            return formatted("where({} {} {}, {}, {})", part(),
                             random_.chance(50) ? "<" : "==", part(), part(), part());
        }
    }

    std::string buffer(std::size_t dims) {
        std::string text = "buffer t: f32[";
        // One long dim at most: the test fills the whole buffer.
        const std::int64_t long_dim = random_.chance(50) ? random_.integer(0, 2) : -1;
        for (std::size_t i = 0; i < dims; ++i)
            text += (i == 0 ? "" : ", ") + (static_cast<std::int64_t>(i) == long_dim
                                                ? std::string("70000")
                                                : formatted("N{}", i));
        return text + "] grad\n";
    }

  private:
    std::string constant() {
        constexpr std::array kConstants = {"0", "1", "7", "W", "SW", "h", "-2"};
        return random_.pick(kConstants);
    }
    std::string number(std::int64_t value, const char* param, const char* size) {
        switch (random_.integer(0, 2)) {
        case 0: return param;
        case 1: return size;
        default: return std::to_string(value);
        }
    }
    std::string signed_(const std::string& difference) {
        return random_.chance(30) ? formatted("-({})", difference) : formatted("({})", difference);
    }
    std::string function(const std::string& x) {
        switch (random_.integer(0, 8)) {
        case 0: return formatted("abs({})", x);
        case 1: return formatted("clamp({}, -2, 2) + 2", x);
        case 2: return formatted("min(abs({}), W) + h", x);
        case 3: return formatted("where({} < 0, 0, {} * 2)", x, x);
        case 4: return formatted("int(log(max(abs({}), 1)) * 3)", x);
        case 5: return formatted("{} * h + {}", x, constant());
        default: return formatted("{} + {}", x, constant());
        }
    }
    std::string digit(const std::string& position, std::int64_t offset, int place,
                      bool has_period) {
        const std::string x = offset == 0 ? position : formatted("({} + {})", position, offset);
        const std::string &w = width_text_, &p = period_text_;
        if (place == 0)
            return random_.chance(70) ? formatted("{} % {}", x, w)
                                      : formatted("({} - {} // {} * {})", x, x, w, w);
        if (place == 1 && has_period)
            return random_.chance(50) ? formatted("{} // {} % {}", x, w, p)
                                      : formatted("{} % ({} * {}) // {}", x, w, p, w);
        if (place == 1) return formatted("{} // {}", x, w);
        return random_.chance(50) ? formatted("{} // ({} * {})", x, w, p)
                                  : formatted("{} // {} // {}", x, w, p);
    }
    void shuffle(std::vector<std::string>& indices) {
        for (std::size_t i = indices.size(); i > 1; --i)
            std::swap(indices[i - 1], indices[static_cast<std::size_t>(
                                          random_.integer(0, static_cast<std::int64_t>(i) - 1))]);
    }

    test::Random random_;
    std::int64_t width_ = 0, period_ = 0, q_offset_ = 0, kv_offset_ = 0;
    std::string width_text_, period_text_;
};

std::string joined(const std::vector<std::string>& indices) {
    std::string text;
    for (const std::string& index : indices)
        text += (text.empty() ? "" : ", ") + index;
    return text;
}

ReadClass class_of_member(Member& member, const std::vector<std::string>& indices) {
    return class_of(member.preamble() + member.buffer(indices.size()) + "score_mod = score + t[" +
                        joined(indices) + "]",
                    member.sizes());
}

void check_member(Member& member, const std::vector<std::string>& indices, ReadClass expected) {
    CAPTURE(joined(indices));
    CHECK(name(class_of_member(member, indices)) == name(expected));
}

} // namespace

TEST_CASE("random members of each class are of it, and their addresses are the interpreter's") {
    for (const std::uint64_t seed : test::seeds(20)) {
        CAPTURE(seed);
        Member member(seed);
        check_member(member, {member.distance(), "h"}, ReadClass::distance_1d);
        check_member(member, member.grid(), ReadClass::grid_distance);
        check_member(member, member.shifted(), ReadClass::shifted);
        check_member(member, member.kinds(), ReadClass::pair_of_kinds);
        check_member(member, member.small(), ReadClass::small_table);
        check_member(member, member.with_token(member.grid()), ReadClass::grid_distance);
        check_member(member, member.with_token(member.shifted()), ReadClass::shifted);
    }
}

TEST_CASE("what kernels of today take for distances and dense biases is of these classes") {
    int count = 0;
    for (const std::uint64_t seed : test::seeds(300)) {
        CAPTURE(seed);
        auto lowered = passes::lower(test::random_program(seed), {});
        REQUIRE(lowered.has_value());
        for (const CapturedRead& read : lowered->captured_reads) {
            const bool is_free = lowered->counters[read.read] == kNoNode;
            if (!is_free || lowered->place[read.read] != passes::Place::element) continue;
            if (lowered->of_distance[read.read])
                CHECK(name(read.read_class) == name(ReadClass::distance_1d));
            if (passes::is_dense_bias(*lowered, read.read))
                CHECK(name(read.read_class) == name(ReadClass::dense_bias));
            ++count;
        }
    }
    CHECK(count > test::trials(300) / 30);
}

TEST_CASE("whatever the index, its class claims nothing that is not so") {
    std::map<ReadClass, int> found;
    // As many under sanitizers too: fewer would not come by the rarer classes.
    const std::uint64_t first = test::first_seed();
    for (std::uint64_t seed = first; seed < first + 1000; ++seed) {
        CAPTURE(seed);
        Member member(seed);
        std::vector<std::string> indices = {member.anything(3)};
        if (seed % 2 == 0) indices.push_back(member.anything(2));
        if (seed % 3 == 0) indices.emplace_back("h");
        ++found[class_of_member(member, indices)];
    }
    std::string text;
    for (const auto& [read_class, count] : found)
        text += formatted("{} {}, ", name(read_class), count);
    MESSAGE(text);
    CHECK(found.size() >= 8);
}
