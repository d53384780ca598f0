#include "passes/one_sequence.h"

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/text.h"

namespace flexc::passes {

namespace {

using ir::NodeId;
using ir::Op;

// Where the query and the key belong to one request, either can name it. Values that depend on keys
// alone use the key's request, so that they are read once for each key; all others use the query's.
class RequestRewriter {
  public:
    RequestRewriter(ir::Program& program, OneSequence lengths)
        : program_(program), lengths_(lengths), old_(std::move(program.graph)) {
        program_.graph = {};
        count_ = add_size(kRequestCount);
        of_query_ = add_buffer(kRequestBuffers.of_query, {{.size = ir::kQLen}});
        of_key_ = add_buffer(kRequestBuffers.of_key, {{.size = ir::kKvLen}});
        facts_ = add_buffer(kRequestBuffers.facts, {{.size = count_}, {.constant = kRequestFacts}});
    }

    // Renames the dims of the buffers that the program had at first, as sizes that no dim has are
    // not bound.
    void rename_dims(std::size_t buffers) {
        const auto rename = [&](std::uint32_t from, const char* name) {
            std::uint32_t to = ~0u;
            for (ir::Buffer& buffer : std::span(program_.buffers).first(buffers))
                for (ir::Dim& dim : buffer.dims) {
                    if (dim.size != from) continue;
                    if (to == ~0u) to = add_size(name);
                    dim.size = to;
                }
        };
        for (ir::Buffer& buffer : std::span(program_.buffers).first(buffers))
            for (ir::Dim& dim : buffer.dims)
                if (dim.size == ir::kB) dim.size = count_;
        rename(ir::kQLen, kLongestQueries);
        rename(ir::kKvLen, kLongestKeys);
    }

    void run() {
        for (NodeId id = 0; id < old_.size(); ++id) {
            const ir::Node& node = old_[id];
            const bool is_read = node.op == Op::read;
            by_query_.push_back({});
            by_key_.push_back({});
            rows_.push_back(rows_of(node));
            by_key_.back() = rewritten(node, by_key_, request(of_key_, Op::kv_idx, node.span));
            by_query_.back() =
                is_read && rows_.back() == kKeys
                    ? by_key_.back()
                    : rewritten(node, by_query_, request(of_query_, Op::q_idx, node.span));
        }
        for (NodeId* root : {&program_.score, &program_.mask, &program_.sink})
            if (*root != ir::kNoNode) *root = by_query_[*root];
        ir::Graph& graph = program_.graph;
        const NodeId of_query = request(of_query_, Op::q_idx, {});
        program_.mask = graph.apply(
            Op::band,
            {program_.mask, graph.apply(Op::ieq, {of_query, request(of_key_, Op::kv_idx, {})})});
        if (program_.sink != ir::kNoNode)
            program_.sink = graph.apply(
                Op::fselect, {graph.apply(Op::ieq, {of_query, graph.integer(kNoQuery)}),
                              graph.real(-std::numeric_limits<double>::infinity()), program_.sink});
    }

  private:
    // Which rows a value depends on.
    enum Rows : std::uint8_t { kNone = 0, kQueries = 1, kKeys = 2 };

    std::uint32_t add_size(const char* name) {
        program_.sizes.emplace_back(name);
        return static_cast<std::uint32_t>(program_.sizes.size() - 1);
    }
    std::uint32_t add_buffer(const char* name, std::vector<ir::Dim> dims) {
        program_.buffers.push_back({.name = name, .dtype = DType::i32, .dims = std::move(dims)});
        return static_cast<std::uint32_t>(program_.buffers.size() - 1);
    }

    std::uint8_t rows_of(const ir::Node& node) const {
        switch (node.op) {
        case Op::score: return kQueries | kKeys;
        case Op::q_idx:
        case Op::q_row: return kQueries;
        case Op::kv_idx:
        case Op::kv_row: return kKeys;
        default: break;
        }
        std::uint8_t rows = kNone;
        for (const NodeId operand : node.operands)
            rows |= rows_[operand];
        return rows;
    }

    NodeId request(std::uint32_t buffer, Op row, dsl::Span span) {
        return program_.graph.read(buffer, ir::Type::integer, {program_.graph.ambient(row, span)},
                                   span);
    }
    NodeId fact(NodeId request, RequestFact which, dsl::Span span) {
        return program_.graph.read(facts_, ir::Type::integer,
                                   {request, program_.graph.integer(which)}, span);
    }

    NodeId rewritten(const ir::Node& node, std::span<const NodeId> renamed, NodeId request) {
        ir::Graph& graph = program_.graph;
        const auto from = [&](Op row, RequestFact first) {
            return graph.apply(Op::isub,
                               {graph.ambient(row, node.span), fact(request, first, node.span)});
        };
        switch (node.op) {
        case Op::b: return request;
        case Op::q_row: return graph.ambient(Op::q_idx, node.span);
        case Op::kv_row: return graph.ambient(Op::kv_idx, node.span);
        // With equal lengths, q_idx and kv_idx use the same fact, so that q_idx - kv_idx is the
        // distance of rows.
        case Op::q_idx:
            return from(Op::q_idx,
                        lengths_ == OneSequence::of_same_lengths ? kFirstKey : kFirstQuery);
        case Op::kv_idx: return from(Op::kv_idx, kFirstKey);
        case Op::q_len: return fact(request, kQueryCount, node.span);
        case Op::kv_len: return fact(request, kKeyCount, node.span);
        case Op::size:
            if (node.symbol == ir::kB) return graph.size_of(count_, node.span);
            break;
        default: break;
        }
        return ir::copy_node(graph, node, renamed);
    }

    ir::Program& program_;
    OneSequence lengths_;
    ir::Graph old_;
    std::uint32_t count_ = 0, of_query_ = 0, of_key_ = 0, facts_ = 0;
    std::vector<NodeId> by_query_, by_key_; // of the old graph's nodes
    std::vector<std::uint8_t> rows_;
};

} // namespace

Result<void> make_one_sequence(ir::Program& program, OneSequence lengths) {
    if (lengths == OneSequence::no) return {};
    const std::size_t buffers = program.buffers.size();
    constexpr std::size_t kOwn = 3;
    if (buffers + kOwn > ir::kMaxBuffers)
        return Error{ErrorCode::limit,
                     formatted("{} buffers, and {} that say which rows are whose: at most {}",
                               buffers, kOwn, ir::kMaxBuffers)};
    RequestRewriter rewriter(program, lengths);
    rewriter.rename_dims(buffers);
    rewriter.run();
    program.query_layout = program.key_layout = Layout::dense;
    return {};
}

} // namespace flexc::passes
