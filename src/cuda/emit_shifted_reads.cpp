#include "cuda/emit_shifted_reads.h"

#include "cuda/names.h"
#include "support/text.h"

namespace flexc::cuda {

using ir::kNoNode;
using ir::NodeId;
using passes::Place;
using passes::ShiftedRead;
using Kind = passes::ArgumentSlot::Kind;

namespace {

class ShiftedReadEmitter {
  public:
    ShiftedReadEmitter(const Layout& layout, const ShiftedRead& read)
        : layout_(layout), read_(read), node_(layout.node(read.read)),
          last_(static_cast<std::uint32_t>(node_.operands.size() - 1)) {}

    std::string text(std::size_t number) const {
        const ir::Buffer& buffer = layout_.mod().program.buffers[node_.symbol];
        const ir::Dim& extent = buffer.dims[last_];
        return formatted("template <> struct ShiftedRead<{}> {{\n"
                         "    using Element = {};\n"
                         "    static constexpr bool kByKey = {};\n"
                         "    static constexpr int kQueryStep = {}, kKeyStep = {};\n"
                         "    static constexpr bool kHasLeast = {}, kHasMost = {};\n",
                         number, element_type(buffer.dtype), read_.by_key, read_.query_step,
                         read_.key_step, read_.least != kNoNode, read_.most != kNoNode) +
               function("const Element* address(const At& at)",
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
               function("long long step(const At& at)",
                        [&](Body& body) {
                            return body.argument({Kind::buffer_stride, node_.symbol, last_});
                        }) +
               "};\n";
    }

  private:
    template <typename Write> std::string function(std::string_view signature, Write write) const {
        Body body(layout_, Place::element, "at.");
        const std::string result = unbracketed(write(body));
        body.line("return " + result + ";");
        std::string text = formatted("    static __device__ {} {{\n", signature);
        for (std::string_view rest = body.statements(); !rest.empty();) {
            const std::size_t end = rest.find('\n') + 1;
            text += "    " + std::string(rest.substr(0, end));
            rest.remove_prefix(end);
        }
        return text + "    }\n";
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
    // Of the element, without the clamp.
    std::string address(Body& body) const {
        std::vector<NodeId> indices = node_.operands;
        indices[last_] = read_.index;
        body.compute(indices);
        std::string text = body.argument({Kind::buffer_data, node_.symbol});
        for (std::uint32_t dim = 0; dim <= last_; ++dim)
            text += " + " + body.text_as(indices[dim], CType::wide) + " * " +
                    body.argument({Kind::buffer_stride, node_.symbol, dim});
        return text;
    }

    const Layout& layout_;
    const ShiftedRead& read_;
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

std::string emit_shifted_reads(const Layout& layout, const std::vector<ShiftedRead>& reads) {
    std::string text =
        formatted("constexpr int kShiftedReads = {};\ntemplate <int kRead> struct ShiftedRead;\n",
                  reads.size());
    for (std::size_t i = 0; i < reads.size(); ++i)
        text += ShiftedReadEmitter(layout, reads[i]).text(i);
    return text + "\n";
}

} // namespace flexc::cuda
