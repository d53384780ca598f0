#include "cuda/names.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "passes/gradient_order.h"
#include "support/text.h"

namespace flexc::cuda {

std::string_view element_type(DType dtype) {
    switch (dtype) {
    case DType::f64: return "double";
    case DType::f32: return "float";
    case DType::f16: return "flexc_f16";
    case DType::bf16: return "flexc_bf16";
    case DType::i64: return "long long";
    case DType::i32: return "int";
    case DType::i16: return "short";
    case DType::i8: return "signed char";
    case DType::u8: return "unsigned char";
    case DType::boolean: return "bool";
    case DType::e4m3: return "flexc_e4m3";
    case DType::e5m2: return "flexc_e5m2";
    }
    return "float";
}

namespace {

using Kind = passes::ArgumentSlot::Kind;

const char* param_type(ir::Type type) {
    switch (type) {
    case ir::Type::real: return "float";
    case ir::Type::integer: return "long long";
    case ir::Type::boolean: return "bool";
    }
    return "float";
}

bool is_exact(const passes::Mod& mod, std::uint32_t buffer) {
    return mod.deterministic && !passes::is_dense_gradient(mod, buffer);
}

std::string type_of(const passes::ArgumentSlot& slot, const passes::Mod& mod) {
    const ir::Program& program = mod.program;
    switch (slot.kind) {
    case Kind::buffer_data:
        return formatted("const {}*", element_type(program.buffers[slot.index].dtype));
    case Kind::gradient_data: return is_exact(mod, slot.index) ? "exact::Sum*" : "float*";
    case Kind::param: return param_type(program.params[slot.index].type);
    case Kind::out_of_range: return "int*";
    case Kind::sequences: return "const Sequence*";
    case Kind::key_numbers: return "const int*";
    case Kind::reciprocal: return "Reciprocal";
    case Kind::divisor_sign: return "int";
    case Kind::buffer_extent:
    case Kind::buffer_stride:
    case Kind::gradient_stride:
    case Kind::first_kv_head:
    case Kind::key_table_size:
    case Kind::size: return "long long";
    }
    return "long long";
}

} // namespace

std::string sanitized(const std::string& name) {
    std::string result = name;
    std::replace_if(
        result.begin(), result.end(),
        [](unsigned char c) { return c >= 128 || (std::isalnum(c) == 0 && c != '_'); }, '_');
    if (result.empty() || std::isdigit(static_cast<unsigned char>(result[0])) != 0)
        result.insert(0, "_");
    return result;
}

std::vector<ArgumentField> argument_fields(const passes::Mod& mod) {
    std::vector<ArgumentField> fields;
    std::set<std::string> taken;
    for (const passes::ArgumentSlot& slot : passes::argument_slots(mod)) {
        const std::string stem = sanitized(passes::slot_name(slot, mod.program));
        ArgumentField field{slot, stem, type_of(slot, mod)};
        for (int copy = 2; !taken.insert(field.name).second; ++copy)
            field.name = stem + "_" + std::to_string(copy);
        fields.push_back(std::move(field));
    }
    return fields;
}

std::string value_name(const ir::Program& program, ir::NodeId node) {
    const ir::Node& value = program.graph[node];
    const std::string id = std::to_string(node);
    if (value.op == ir::Op::read) return sanitized(program.buffers[value.symbol].name) + "_" + id;
    return "v" + id;
}

} // namespace flexc::cuda
