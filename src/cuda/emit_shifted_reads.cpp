#include "cuda/emit_shifted_reads.h"

#include <algorithm>

#include "cuda/names.h"
#include "cuda/policy.h"
#include "passes/gradient_order.h"
#include "passes/table_gradient.h"
#include "support/text.h"

namespace flexc::cuda {

using ir::kNoNode;
using ir::NodeId;
using passes::Place;
using passes::ShiftedRead;
using Kind = passes::ArgumentSlot::Kind;

namespace {

// Writes the policy of one shifted read, or of its gradient.
class ShiftedReadEmitter {
  public:
    ShiftedReadEmitter(const SymbolTable& symbols, const ShiftedRead& read,
                       bool is_gradient = false)
        : symbols_(symbols), read_(read), is_gradient_(is_gradient), node_(symbols.node(read.read)),
          last_(static_cast<std::uint32_t>(node_.operands.size() - 1)) {}

    // more: members that come before those that both kinds have.
    std::string text(std::size_t number, const std::string& more) const {
        const ir::Buffer& buffer = symbols_.mod().program.buffers[node_.symbol];
        const ir::Dim& extent = buffer.dims[last_];
        return formatted("template <> struct Shifted{}<{}> {{\n"
                         "    static constexpr bool kByKey = {};\n"
                         "    static constexpr int kQueryStep = {}, kKeyStep = {};\n"
                         "    static constexpr bool kHasLeast = {}, kHasMost = {};\n",
                         is_gradient_ ? "Gradient" : "Read", number, read_.by_key, read_.query_step,
                         read_.key_step, read_.least != kNoNode, read_.most != kNoNode) +
               more +
               function(is_gradient_ ? "float* line(const At& at)"
                                     : "const Element* address(const At& at)",
                        [&](Body& body) { return address(body); }) +
               integer("index", read_.index, "") + integer("least", read_.least, "0") +
               function("long long most(const At& at)",
                        [&](Body& body) {
                            if (read_.most != kNoNode) return value(body, read_.most);
                            return extent.is_constant()
                                       ? integer_literal(extent.constant - 1, CType::wide)
                                       : body.argument({Kind::buffer_extent, node_.symbol, last_}) +
                                             " - 1";
                        }) +
               "};\n";
    }
    // Members that only reads have, not gradients: the element type and the stride along a line.
    std::string element() const {
        const ir::Buffer& buffer = symbols_.mod().program.buffers[node_.symbol];
        return formatted("    using Element = {};\n", element_type(buffer.dtype)) +
               function("long long step(const At& at)",
                        [&](Body& body) { return body.argument({stride(), node_.symbol, last_}); });
    }

  private:
    template <typename Write> std::string function(std::string_view signature, Write write) const {
        Body body(symbols_, Place::element, "at.");
        const std::string result = unbracketed(write(body));
        body.line("return " + result + ";");
        return member_function(signature, body);
    }
    static std::string value(Body& body, NodeId id) {
        body.compute({id});
        return body.text_as(id, CType::wide);
    }
    std::string integer(std::string_view called, NodeId id, std::string_view otherwise) const {
        return function(formatted("long long {}(const At& at)", called), [&](Body& body) {
            return id == kNoNode ? std::string(otherwise) : value(body, id);
        });
    }
    // Address of the element that the unclamped index names. For a gradient, the start of its line:
    // the elements of a gradient's line are contiguous.
    std::string address(Body& body) const {
        std::vector<NodeId> indices = node_.operands;
        indices[last_] = read_.index;
        if (is_gradient_) indices.pop_back();
        body.compute(indices);
        std::string text =
            body.argument({is_gradient_ ? Kind::gradient_data : Kind::buffer_data, node_.symbol});
        for (std::uint32_t dim = 0; dim < indices.size(); ++dim)
            text += " + " + body.text_as(indices[dim], CType::wide) + " * " +
                    body.argument({stride(), node_.symbol, dim});
        return text;
    }

    Kind stride() const { return is_gradient_ ? Kind::gradient_stride : Kind::buffer_stride; }

    const SymbolTable& symbols_;
    const ShiftedRead& read_;
    bool is_gradient_;
    const ir::Node& node_;
    std::uint32_t last_;
};

} // namespace

std::vector<NodeId> shifted_roots(const std::vector<ShiftedRead>& reads) {
    std::vector<NodeId> roots;
    for (const ShiftedRead& read : reads)
        for (const NodeId id : {read.index, read.least, read.most})
            if (id != kNoNode) roots.push_back(id);
    return roots;
}

std::string emit_shifted_reads(const SymbolTable& symbols, const std::vector<ShiftedRead>& reads,
                               NodeId addend) {
    if (reads.empty()) return "";
    const std::vector<double> factors =
        passes::factors_of_shifts(symbols.mod().program.graph, reads, addend);
    Policy policy("ShiftedReads");
    policy.constant("kCount", static_cast<int>(reads.size()));
    policy.constant("kAreSum", !factors.empty());
    std::string text = policy.text() + "template <int kRead> struct ShiftedRead;\n";
    for (std::size_t i = 0; i < reads.size(); ++i) {
        const ShiftedReadEmitter emitter(symbols, reads[i]);
        const double factor = factors.empty() ? 1 : factors[i];
        text += emitter.text(
            i, formatted("    static constexpr float kFactor = {};\n", real_literal(factor)) +
                   emitter.element());
    }
    return text + "\n";
}

std::string emit_shifted_gradients(const SymbolTable& symbols,
                                   const std::vector<passes::ReadGradient>& gradients,
                                   passes::TileSums tile) {
    const std::vector<ShiftedRead>& reads = symbols.mod().shifted_reads;
    std::string text;
    int count = 0;
    for (const passes::ReadGradient& gradient : gradients)
        if (passes::gradient_sum(symbols.mod(), gradient, tile) == passes::GradientSum::shifted)
            text += ShiftedReadEmitter(
                        symbols, *std::ranges::find(reads, gradient.read, &ShiftedRead::read), true)
                        .text(count++,
                              formatted("    static constexpr float kFactor = {};\n"
                                        "    static constexpr bool kIsApart = {};\n",
                                        real_literal(passes::table_factor(symbols.mod(), gradient)),
                                        passes::are_apart(symbols.mod(), gradient)));
    if (count == 0) return "";
    Policy policy("ShiftedGradients");
    policy.constant("kCount", count);
    return policy.text() + "template <int kGradient> struct ShiftedGradient;\n" + text + "\n";
}

} // namespace flexc::cuda
