#include "cuda/emit_table_gradients.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "cuda/emit_derivative.h"
#include "cuda/policy.h"
#include "passes/table_gradient.h"
#include "support/text.h"

namespace flexc::cuda {

using ir::NodeId;
using passes::Place;
using Kind = passes::ArgumentSlot::Kind;

namespace {

class TableEmitter {
  public:
    TableEmitter(const SymbolTable& symbols, const passes::ReadGradient& gradient,
                 const plan::BackwardStorage& storage)
        : symbols_(symbols), gradient_(gradient), storage_(storage),
          node_(symbols.node(gradient.read)),
          dims_(passes::varying_dims(symbols.mod(), gradient.read)) {
        for (const std::uint32_t dim : dims_)
            indices_.push_back(node_.operands[dim]);
    }

    std::string text(int number) const {
        return formatted("template <> struct TableGradient<{}> {{\n"
                         "    static constexpr bool kIsSeparable = {};\n"
                         "    static constexpr int kDims = {};\n{}",
                         number, gradient_.is_separable, dims_.size(), entries()) +
               kinds() + factor() + (gradient_.is_separable ? indices() : indices_by_parts()) +
               of_dims("int", Kind::buffer_extent) + of_dims("long long", Kind::gradient_stride) +
               slice() + "};\n";
    }

  private:
    Body body() const { return {symbols_, Place::element, "at."}; }
    bool varies(std::uint32_t dim) const { return std::ranges::find(dims_, dim) != dims_.end(); }
    std::string extent(const Body& body, std::uint32_t dim) const {
        const ir::Dim& extent = symbols_.mod().program.buffers[node_.symbol].dims[dim];
        return extent.is_constant() ? integer_literal(extent.constant, CType::wide)
                                    : body.argument({Kind::buffer_extent, node_.symbol, dim});
    }

    // A kernel with copies of all entries takes tables of few alone.
    std::string narrow_extent(const Body& body, std::uint32_t dim) const {
        const std::string wide = extent(body, dim);
        return storage_.entries_are_bound
                   ? formatted("static_cast<int>({})", wide)
                   : formatted("static_cast<int>(flexc_min({}, 0x7fffffffll))", wide);
    }

    std::string entries() const {
        if (storage_.entries == 0 || storage_.entries_are_bound) return "";
        return formatted("    static constexpr int kEntries = {};\n",
                         passes::table_entries(symbols_.mod(), gradient_).known);
    }

    std::string kinds() const {
        const auto kinds = passes::kind_dims(symbols_.mod(), gradient_);
        if (!kinds) return "";
        return formatted(
            "    static constexpr int kQueryDim = {}, kQueryKinds = {}, kKeyKinds = {};\n",
            kinds->query_dim, kinds->query_kinds, kinds->key_kinds);
    }

    // An index clamped to 32 bits. Clamped ones are outside every buffer that these kernels accept.
    std::string in_32_bits(const Body& body, NodeId index) const {
        if (symbols_.type(index) == CType::narrow) return body.text(index);
        return formatted("static_cast<int>(flexc_max(flexc_min({}, 0x7fffffffll), -0x7fffffffll))",
                         unbracketed(body.text_as(index, CType::wide)));
    }

    std::string indices_in(Body& body) const {
        body.compute(indices_);
        for (std::size_t i = 0; i < indices_.size(); ++i)
            body.line(formatted("values[{}] = {};", i, unbracketed(in_32_bits(body, indices_[i]))));
        return body.statements();
    }

    std::string indices() const {
        Body body = this->body();
        return member_function("void indices(const At& at, int (&values)[kDims])",
                               indices_in(body));
    }

    std::string indices_by_parts() const {
        const NodeId choice = passes::table_choice(symbols_.mod(), gradient_);
        std::vector<NodeId> roots = indices_;
        if (choice != ir::kNoNode) roots.push_back(choice);
        const passes::PositionParts parts = passes::position_parts(symbols_.mod(), roots);
        Body body = this->body();
        const std::string of_query = this->parts(parts.query, "Query", "of_query", body),
                          of_key = this->parts(parts.key, "Key", "of_key", body);
        std::string proven;
        const std::vector<bool>& in_range = symbols_.mod().ranges.in_range[gradient_.read];
        for (std::size_t i = 0; i < dims_.size(); ++i)
            if (dims_[i] < in_range.size() && in_range[dims_[i]])
                proven += formatted("dim == {} || ", i);
        const std::string applies =
            choice == ir::kNoNode ? "    return true;\n" : is_not_zero(choice, body);
        return of_query + of_key +
               member_function("constexpr bool is_inside(int dim)",
                               formatted("    return {}false;\n", proven)) +
               member_function("bool applies(const At& at, const QueryParts& of_query, const "
                               "KeyParts& of_key)",
                               applies) +
               member_function("void indices(const At& at, const QueryParts& of_query, const "
                               "KeyParts& of_key, int (&values)[kDims])",
                               indices_in(body));
    }
    static std::string is_not_zero(NodeId real, Body body) {
        body.compute({real});
        body.line(formatted("return {} != 0;", body.text(real)));
        return body.statements();
    }

    // Emits a struct of these nodes and a function that computes it; `user` takes their values from
    // the struct.
    std::string parts(const std::vector<NodeId>& nodes, std::string_view of, std::string_view name,
                      Body& user) const {
        Body body = this->body();
        body.compute(nodes);
        std::string fields, values;
        for (const NodeId node : nodes) {
            const CType type = symbols_.type(node);
            const std::string field = value_name(symbols_.mod().program, node);
            // Whole words, so that lanes can exchange them.
            fields += formatted(" {} {};", spelling(type == CType::boolean ? CType::narrow : type),
                                field);
            values += (values.empty() ? "" : ", ") + unbracketed(body.text(node));
            user.provide(node, formatted("{}.{}", name, field));
        }
        body.line(formatted("return {{{}}};", values));
        return formatted("    struct {}Parts {{{} }};\n", of, fields) +
               member_function(formatted("{}Parts {}(const At& at)", of, name), body.statements());
    }

    // Extents, or strides of the gradient, of the dimensions whose index varies within a head.
    std::string of_dims(std::string_view type, Kind kind) const {
        Body body = this->body();
        for (std::size_t i = 0; i < dims_.size(); ++i)
            body.line(formatted("values[{}] = {};", i,
                                kind == Kind::buffer_extent
                                    ? narrow_extent(body, dims_[i])
                                    : body.argument({kind, node_.symbol, dims_[i]})));
        return member_function(formatted("void {}(const At& at, {} (&values)[kDims])",
                                         kind == Kind::buffer_extent ? "extents" : "strides", type),
                               body.statements());
    }

    // The number that sums of dS are multiplied by.
    std::string factor() const {
        Body body = this->body();
        std::string value = real_literal(passes::table_factor(symbols_.mod(), gradient_));
        if (gradient_.sum_factor != ir::kNoNode) {
            body.compute({gradient_.sum_factor});
            value = unbracketed(body.text(gradient_.sum_factor));
        }
        body.line("return " + value + ";");
        return member_function("float factor(const At& at)", body.statements());
    }

    // Address of a head's first entry; null if that is outside the buffer.
    std::string slice() const {
        Body body = this->body();
        std::vector<NodeId> of_head;
        for (std::uint32_t dim = 0; dim < node_.operands.size(); ++dim)
            if (!varies(dim)) of_head.push_back(node_.operands[dim]);
        body.compute(of_head);
        std::string offset, inside;
        for (std::uint32_t dim = 0; dim < node_.operands.size(); ++dim) {
            if (varies(dim)) continue;
            const std::string at = body.text_as(node_.operands[dim], CType::wide);
            inside += formatted("{}flexc_inside({}, {})", inside.empty() ? "" : " && ",
                                unbracketed(at), extent(body, dim));
            offset += formatted(" + {} * {}", at,
                                body.argument({Kind::gradient_stride, node_.symbol, dim}));
        }
        const std::string data = body.argument({Kind::gradient_data, node_.symbol});
        body.line(inside.empty() ? formatted("return {}{};", data, offset)
                                 : formatted("return {} ? {}{} : nullptr;", inside, data, offset));
        return member_function("float* slice(const At& at)", body.statements());
    }

    const SymbolTable& symbols_;
    const passes::ReadGradient& gradient_;
    const plan::BackwardStorage& storage_;
    const ir::Node& node_;
    std::vector<std::uint32_t> dims_;
    std::vector<NodeId> indices_;
};

} // namespace

std::string emit_table_gradients(const SymbolTable& symbols, const plan::KernelConfig& config,
                                 const std::vector<passes::ReadGradient>& gradients) {
    std::string tables, weighted, sharing;
    int count = 0, of_kinds = -1, weighted_partial = -1;
    std::map<std::size_t, int> numbers;                            // of tables, by gradient
    std::vector<std::pair<std::size_t, std::size_t>> of_same_sums; // a gradient and the first
    const std::vector<std::size_t> first_of = passes::first_of_same_sums(symbols.mod(), gradients);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
        const passes::ReadGradient& gradient = gradients[i];
        if (passes::gradient_sum(symbols.mod(), gradient, config.sums) !=
            passes::GradientSum::table)
            continue;
        if (config.sums.sums_few_entries && first_of[i] != i) {
            of_same_sums.emplace_back(i, first_of[i]);
            continue;
        }
        numbers[i] = count;
        if (gradient.read == passes::read_by_kinds(symbols.mod())) of_kinds = count;
        if (config.sums.sums_few_entries && gradient.is_weighted) {
            weighted += formatted("table == {} || ", count);
            weighted_partial = static_cast<int>(i);
        }
        tables += TableEmitter(symbols, gradient, config.storage).text(count++);
    }
    int last = count;
    for (const auto& [i, first] : of_same_sums) {
        sharing += formatted("table == {} ? {} : ", last, numbers[first]);
        tables += TableEmitter(symbols, gradients[i], config.storage).text(last++);
    }
    Policy policy("TableGradients");
    policy.constant("kCount", count);
    policy.constant("kSharing", last - count);
    if (!sharing.empty())
        policy.member(formatted("    static constexpr __device__ int sums_of(int table) {{\n"
                                "        return {}table;\n    }}\n",
                                sharing));
    policy.constant("kWords", config.storage.table_words);
    if (!weighted.empty()) {
        policy.constant("kWeightedPartial", weighted_partial, -1);
        policy.member(formatted("    static constexpr __device__ bool is_weighted(int table) {{\n"
                                "        return {}false;\n    }}\n",
                                weighted));
    }
    policy.constant("kEntries", config.storage.entries);
    policy.constant("kCopyShift", config.storage.entry_copy_shift);
    policy.constant("kEntriesAreBound", config.storage.entries_are_bound);
    policy.constant("kOfKinds", count == 1 || config.storage.kind_words > 0 ? of_kinds : -1, -1);
    policy.constant("kKindWords", config.storage.kind_words);
    return policy.text() +
           (count > 0 ? "template <int kTable> struct TableGradient;\n" + tables + "\n" : "");
}

} // namespace flexc::cuda
