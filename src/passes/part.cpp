#include "passes/part.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "passes/one_sequence.h"
#include "support/text.h"

namespace flexc::passes {

namespace {

std::uint32_t add_param(ir::Program& program, std::string name) {
    program.params.push_back({.name = std::move(name), .type = ir::Type::integer});
    return static_cast<std::uint32_t>(program.params.size() - 1);
}
std::uint32_t add_size(ir::Program& program, std::string name) {
    program.sizes.push_back(std::move(name));
    return static_cast<std::uint32_t>(program.sizes.size() - 1);
}

// An index that is shifted by a param.
struct Shift {
    std::uint32_t buffer = 0;
    std::size_t dim = 0;
    ir::Op position = ir::Op::q_idx;
    std::uint32_t param = 0;
};

class Rewriter {
  public:
    Rewriter(ir::Program& program, bool has_requests)
        : program_(program), has_requests_(has_requests) {}

    Result<void> shard(const ShardedBuffer& sharded) {
        const auto invalid = [&](std::string_view reason) {
            return Error{ErrorCode::invalid_option, formatted("buffer '{}' sharded along {}: {}",
                                                              sharded.buffer, sharded.dim, reason)};
        };
        const bool is_query = sharded.dim == "Q_LEN";
        if (!is_query && sharded.dim != "KV_LEN")
            return invalid("buffers are sharded along Q_LEN or KV_LEN");
        if (!program_.is_dense() || has_requests_) return invalid("only dense layouts have shards");
        const auto buffer = std::ranges::find(program_.buffers, sharded.buffer, &ir::Buffer::name);
        if (buffer == program_.buffers.end()) return invalid("the program has no such buffer");
        const std::uint32_t size = is_query ? ir::kQLen : ir::kKvLen;
        const auto dim = std::ranges::find_if(buffer->dims,
                                              [&](const ir::Dim& one) { return one.size == size; });
        if (dim == buffer->dims.end()) return invalid("it has no such dim");
        const Shift shift{
            .buffer = static_cast<std::uint32_t>(buffer - program_.buffers.begin()),
            .dim = static_cast<std::size_t>(dim - buffer->dims.begin()),
            .position = is_query ? ir::Op::q_idx : ir::Op::kv_idx,
            .param = add_param(program_, formatted("{}.{}.shift", sharded.buffer, sharded.dim))};
        const ir::Graph& graph = program_.graph;
        for (const ir::NodeId id : reachable()) {
            const ir::Node& node = graph[id];
            if (node.op == ir::Op::read && node.symbol == shift.buffer &&
                graph[node.operands[shift.dim]].op != shift.position)
                return invalid(formatted("a read has another index there than {} itself: have it "
                                         "whole on every rank",
                                         is_query ? "q_idx" : "kv_idx"));
        }
        dim->size = add_size(program_, formatted("{}.{}", sharded.buffer, sharded.dim));
        shifts_.push_back(shift);
        return {};
    }

    void take_part_of_heads() {
        struct Axis {
            ir::Op position;
            std::uint32_t size;
            const HeadNames& names;
        };
        for (const Axis& axis :
             {Axis{ir::Op::h, ir::kH, kHeadNames}, Axis{ir::Op::h_kv, ir::kHKv, kKvHeadNames}}) {
            heads_.push_back({axis.position, axis.size, add_param(program_, axis.names.first),
                              add_param(program_, axis.names.whole)});
            std::uint32_t whole = ~0u;
            for (ir::Buffer& buffer : program_.buffers)
                for (ir::Dim& dim : buffer.dims)
                    if (dim.size == axis.size) {
                        if (whole == ~0u) whole = add_size(program_, axis.names.extent);
                        dim.size = whole;
                    }
        }
    }

    void run() {
        if (shifts_.empty() && heads_.empty()) return;
        ir::Graph fresh;
        std::vector<ir::NodeId> renamed(program_.graph.size());
        for (ir::NodeId id = 0; id < program_.graph.size(); ++id)
            renamed[id] = rewritten(fresh, program_.graph[id], renamed);
        for (ir::NodeId* root : {&program_.score, &program_.mask, &program_.sink})
            if (*root != ir::kNoNode) *root = renamed[*root];
        program_.graph = std::move(fresh);
    }

  private:
    struct Heads {
        ir::Op position;
        std::uint32_t size, first, whole;
    };

    std::vector<ir::NodeId> reachable() const {
        std::vector<ir::NodeId> roots = {program_.score, program_.mask};
        if (program_.sink != ir::kNoNode) roots.push_back(program_.sink);
        return ir::reachable(program_.graph, roots);
    }

    ir::NodeId rewritten(ir::Graph& to, const ir::Node& node,
                         std::span<const ir::NodeId> renamed) const {
        for (const Heads& heads : heads_) {
            if (node.op == heads.position)
                return to.apply(ir::Op::iadd,
                                {to.ambient(node.op, node.span),
                                 to.param(heads.first, ir::Type::integer, node.span)},
                                node.span);
            if (node.op == ir::Op::size && node.symbol == heads.size)
                return to.param(heads.whole, ir::Type::integer, node.span);
        }
        if (node.op == ir::Op::read) {
            std::vector<ir::NodeId> indices;
            for (const ir::NodeId operand : node.operands)
                indices.push_back(renamed[operand]);
            return read_shifted(to, node, std::move(indices));
        }
        return ir::copy_node(to, node, renamed);
    }

    ir::NodeId read_shifted(ir::Graph& to, const ir::Node& node,
                            std::vector<ir::NodeId> indices) const {
        for (const Shift& shift : shifts_)
            if (shift.buffer == node.symbol)
                indices[shift.dim] =
                    to.apply(ir::Op::iadd, {indices[shift.dim],
                                            to.param(shift.param, ir::Type::integer, node.span)});
        return to.read(node.symbol, node.type, std::move(indices), node.span);
    }

    ir::Program& program_;
    bool has_requests_; // whose positions are none of the sequence
    std::vector<Shift> shifts_;
    std::vector<Heads> heads_;
};

void use_sink(ir::Program& program, SinkUse use) {
    if (use == SinkUse::joins) return;
    ir::Graph& graph = program.graph;
    if (use == SinkUse::alone) {
        const ir::NodeId none = graph.real(-std::numeric_limits<double>::infinity());
        program.score = program.sink == ir::kNoNode ? none : program.sink;
        program.mask = graph.boolean(true);
    }
    program.sink = ir::kNoNode;
}

} // namespace

Result<void> make_part(ir::Program& program, const CompileOptions& options) {
    if (auto done = make_one_sequence(program, options.one_sequence); !done) return done;
    use_sink(program, options.sink_use);
    Rewriter rewriter(program, options.one_sequence != OneSequence::no);
    for (const ShardedBuffer& sharded : options.sharded)
        if (auto done = rewriter.shard(sharded); !done) return done;
    if (options.part_of_heads) rewriter.take_part_of_heads();
    rewriter.run();
    return {};
}

} // namespace flexc::passes
