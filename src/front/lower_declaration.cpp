#include <algorithm>
#include <charconv>
#include <cmath>

#include "front/lower.h"
#include "front/names.h"
#include "support/amounts.h"
#include "support/usual_types.h"

namespace flexc::front {

using dsl::Item;
using dsl::ItemKind;
using ir::Type;

namespace {

// A const that reads a const takes more of the stack than an expression inside an expression.
constexpr int kEvaluationDepth = 3;
constexpr std::string_view kBufferTypes = "f64 f32 f16 bf16 i64 i32 i16 i8 u8 bool";
constexpr std::string_view kParamTypes = "f32, i32 and bool";

bool is_name(std::string_view text) {
    if (text.empty() || (text[0] >= '0' && text[0] <= '9')) return false;
    return std::all_of(text.begin(), text.end(), [](char c) {
        return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
               (c >= '0' && c <= '9');
    });
}

std::optional<Type> param_type(std::string_view name) {
    if (name == "f32") return Type::real;
    if (name == "i32" || name == "i64" || name == "int") return Type::integer;
    if (name == "bool") return Type::boolean;
    return std::nullopt;
}

std::string reserved_advice(const std::string& name, bool is_function) {
    if (standard_size_of(name))
        return "every program has it, as the tensors are: leave the line out, or use another name";
    if (is_function && (name == "score_mod" || name == "mask_mod"))
        return name == "score_mod" ? "a def of this name has five parameters: score, b, h, q_idx, "
                                     "kv_idx"
                                   : "a def of this name has four parameters: b, h, q_idx, kv_idx";
    return "use another name";
}

// PyTorch programs often call a mod what it is; it needs no name of its own then.
bool is_named_after_its_kind(const Item& item) {
    const std::size_t required = required_parameters(item);
    return item.python && ((item.name == "score_mod" && required == kScoreParameters) ||
                           (item.name == "mask_mod" && required == kMaskParameters));
}

double as_number(Type type, const Constant& value) {
    return type == Type::real      ? value.real
           : type == Type::integer ? static_cast<double>(value.integer)
                                   : static_cast<double>(value.boolean);
}

} // namespace

// Consts come first, since dims may use them wherever they stand; then sizes appear in text order.
void Lowering::declare_all() {
    for (const Item& item : main_.ast.items) {
        if (item.kind == ItemKind::function) {
            if (is_named_after_its_kind(item) ||
                declare(item.name, {SymbolKind::function, 0, item.name_span}))
                main_.functions.emplace(item.name, &item);
        } else if (item.kind == ItemKind::constant || &item == sink_constant_) {
            const auto index = static_cast<std::uint32_t>(constants_.size());
            if (declare(item.name, {SymbolKind::constant, index, item.name_span}))
                constants_.push_back({.item = &item});
        }
    }
    for (const Item& item : main_.ast.items) {
        if (item.kind == ItemKind::param) declare_param(item);
        if (item.kind == ItemKind::buffer) declare_buffer(item);
    }
    declare_option_buffers();
    declare_option_params();
    const auto check_count = [&](const auto& declared, std::size_t most, const char* what) {
        if (declared.size() > most)
            report_.error(declared[most].span, "the program has " +
                                                   std::to_string(declared.size()) + " " + what +
                                                   "; the limit is " + std::to_string(most));
    };
    check_count(program_.buffers, ir::kMaxBuffers, "buffers");
    check_count(program_.params, ir::kMaxParams, "params");
    for (std::uint32_t i = 0; i < constants_.size(); ++i)
        named_constant(i);
}

bool Lowering::declare(const std::string& name, Symbol symbol) {
    if (is_reserved(name)) {
        report_.error(symbol.span,
                      "'" + name + "' is a name of the language and cannot be declared",
                      reserved_advice(name, symbol.kind == SymbolKind::function));
        return false;
    }
    const auto [found, is_new] = symbols_.emplace(name, symbol);
    if (is_new) return true;
    // Kinds are declared in turns: the message is about the one further down in the text.
    if (symbol.span.end > 0 && symbol.span.begin < found->second.span.begin)
        std::swap(symbol.span, found->second.span);
    std::vector<dsl::Note> notes;
    const dsl::Span first = found->second.span;
    const bool size = found->second.kind == SymbolKind::size && symbol.kind != SymbolKind::size;
    if (first.end > 0)
        notes.push_back(
            {first, size ? "it is the size of a dimension here" : "first declared here"});
    report_.error(
        symbol.span,
        "'" + name + "' is declared twice" +
            (symbol.span.end == 0 && first.end > 0 ? ": in the text and in the options" : ""),
        "", std::move(notes));
    return false;
}

void Lowering::declare_buffer(const Item& item) {
    ir::Buffer buffer;
    buffer.name = item.name;
    buffer.grad = item.grad;
    buffer.span = item.span;
    if (!parse_dtype(item.type, buffer.dtype) || !ir::may_be_buffer(buffer.dtype)) {
        const std::string_view usual = support::usual_type(item.type);
        report_.error(item.type_span, "unknown type '" + item.type + "'",
                      usual.empty() ? "the types are " + std::string(kBufferTypes)
                                    : "did you mean '" + std::string(usual) + "'?");
    } else if (item.grad && ir::type_of(buffer.dtype) != Type::real) {
        report_.error(item.grad_span,
                      "'" + item.name + "' holds " + item.type + ", which has no gradient",
                      "remove 'grad', or use a float type");
    }
    if (item.dims.size() > static_cast<std::size_t>(kMaxDims)) {
        report_.error(item.span, "'" + item.name + "' has " + std::to_string(item.dims.size()) +
                                     " dimensions; the limit is 8");
        return;
    }
    for (const dsl::ExprId dim : item.dims)
        buffer.dims.push_back(dim_of(dim));
    check_elements(buffer, item.span);
    const auto index = static_cast<std::uint32_t>(program_.buffers.size());
    if (declare(item.name, {SymbolKind::buffer, index, item.name_span}))
        program_.buffers.push_back(std::move(buffer));
}

void Lowering::check_elements(const ir::Buffer& buffer, dsl::Span span) {
    std::int64_t elements = 1;
    for (const ir::Dim& dim : buffer.dims)
        if (dim.is_constant()) elements = support::times(elements, dim.constant);
    if (elements > kMaxTensorElements)
        report_.error(span, "'" + buffer.name + "' has more than 2^48 elements");
}

// A number, a size, or a new name that the passed tensor binds.
ir::Dim Lowering::dim_of(dsl::ExprId id) {
    const dsl::Expr& expr = expr_of(id);
    const bool is_constant =
        symbols_.contains(expr.name) && symbols_.at(expr.name).kind == SymbolKind::constant;
    if (expr.kind == dsl::ExprKind::name && !expr.qualified && !is_constant)
        return named_dim(expr.name, expr.span);
    Type type = Type::integer;
    Constant value;
    if (!evaluate(id, "a dimension", "dimensions are integers, consts, sizes or new names", type,
                  value))
        return {.constant = 1};
    if (type != Type::integer) {
        report_.error(expr.span, "a dimension must be an integer");
        return {.constant = 1};
    }
    if (value.integer < 1) {
        report_.error(expr.span,
                      "a dimension must be at least 1, not " + std::to_string(value.integer));
        return {.constant = 1};
    }
    return {.constant = value.integer};
}

ir::Dim Lowering::named_dim(const std::string& name, dsl::Span span) {
    if (const auto size = standard_size_of(name)) return {.size = *size};
    if (const auto found = symbols_.find(name); found != symbols_.end()) {
        if (found->second.kind == SymbolKind::size) return {.size = found->second.index};
        if (found->second.kind == SymbolKind::constant) {
            const NamedConstant& constant = named_constant(found->second.index);
            if (constant.state != NamedConstant::State::known) return {.constant = 1};
            if (constant.type == Type::integer && constant.value.integer > 0)
                return {.constant = constant.value.integer};
            report_.error(span,
                          "'" + name + "' must be an integer of at least 1 to be a dimension");
            return {.constant = 1};
        }
    }
    const auto index = static_cast<std::uint32_t>(program_.sizes.size());
    if (!declare(name, {SymbolKind::size, index, span})) return {.constant = 1};
    program_.sizes.push_back(name);
    return {.size = index};
}

void Lowering::declare_param(const Item& item) {
    ir::Param param;
    param.name = item.name;
    param.span = item.span;
    const auto type = param_type(item.type);
    if (!type) {
        const std::string_view usual = support::usual_type(item.type);
        report_.error(item.type_span, "unknown type '" + item.type + "' for a param",
                      param_type(usual) ? "did you mean '" + std::string(usual) + "'?"
                                        : "params are " + std::string(kParamTypes));
    } else {
        param.type = *type;
    }
    param.has_default = item.value != dsl::kNoExpr;
    if (param.has_default) {
        Type given = Type::integer;
        Constant value;
        if (evaluate(item.value, "the default of a param", "", given, value)) {
            if (type && given > *type)
                report_.error(expr_of(item.value).span,
                              "the default is " + std::string(name(given)) + ", but '" + item.name +
                                  "' is " + std::string(name(*type)));
            param.default_value = as_number(given, value);
        }
    }
    const auto index = static_cast<std::uint32_t>(program_.params.size());
    if (declare(item.name, {SymbolKind::param, index, item.name_span}))
        program_.params.push_back(std::move(param));
}

void Lowering::declare_option_buffers() {
    for (const BufferDeclaration& given : input_.buffers) {
        const std::string what = "buffer '" + given.name + "' of the options: ";
        ir::Buffer buffer{
            .name = given.name, .dtype = given.type, .dims = {}, .grad = given.grad, .span = {}};
        if (!is_name(given.name)) report_.error({}, what + "this is not a name");
        if (!ir::may_be_buffer(given.type))
            report_.error({}, what + "buffers are not of type " + std::string(name(given.type)) +
                                  "; the types are " + std::string(kBufferTypes));
        if (given.grad && ir::type_of(given.type) != Type::real)
            report_.error({}, what + std::string(name(given.type)) + " has no gradient");
        if (given.dims.size() > static_cast<std::size_t>(kMaxDims))
            report_.error({}, what + "more than 8 dimensions");
        for (const std::string& dim : given.dims) {
            std::int64_t number = 0;
            const auto [end, code] = std::from_chars(dim.data(), dim.data() + dim.size(), number);
            if (code == std::errc{} && end == dim.data() + dim.size() && number > 0)
                buffer.dims.push_back({.constant = number});
            else if (is_name(dim))
                buffer.dims.push_back(named_dim(dim, {}));
            else
                report_.error({}, std::string(what).append("'").append(dim).append(
                                      "' is neither a size of at least 1 nor a name"));
        }
        check_elements(buffer, {});
        const auto index = static_cast<std::uint32_t>(program_.buffers.size());
        if (declare(given.name, {SymbolKind::buffer, index, {}}))
            program_.buffers.push_back(std::move(buffer));
    }
}

void Lowering::declare_option_params() {
    for (const ParamDeclaration& given : input_.params) {
        const std::string what = "param '" + given.name + "' of the options: ";
        if (!is_name(given.name)) report_.error({}, what + "this is not a name");
        const auto type = param_type(name(given.type));
        if (!type) report_.error({}, what + "params are " + std::string(kParamTypes));
        if (type && *type != Type::real && given.value != std::trunc(given.value))
            report_.error({}, what + "the default is not an integer");
        ir::Param param{.name = given.name,
                        .type = type.value_or(Type::real),
                        .default_value = given.value,
                        .has_default = true,
                        .span = {}};
        const auto index = static_cast<std::uint32_t>(program_.params.size());
        if (declare(given.name, {SymbolKind::param, index, {}}))
            program_.params.push_back(std::move(param));
    }
}

bool Lowering::evaluate(dsl::ExprId id, const std::string& what, const std::string& hint,
                        Type& type, Constant& value, bool* is_function) {
    const std::size_t errors_before = report_.errors();
    ir::Graph graph;
    Builder apart(graph, report_);
    Builder* const outer_builder = build_;
    Scope scope{.module = &main_, .body = nullptr, .locals = {}};
    Scope* const outer_scope = scope_;
    build_ = &apart;
    scope_ = &scope;
    depth_ += kEvaluationDepth;
    const Value lowered = lower(id);
    const bool found_function = is_function != nullptr && lowered.function != nullptr;
    if (is_function != nullptr) *is_function = found_function;
    const Operand result = found_function ? Operand{} : number_of(lowered, main_.ast[id].span);
    const auto known = apart.constant(result.node);
    if (result.node != ir::kNoNode) type = apart.type(result.node);
    depth_ -= kEvaluationDepth;
    build_ = outer_builder;
    scope_ = outer_scope;
    if (report_.errors() != errors_before) return false;
    if (found_function) return true;
    if (result.node == ir::kNoNode || !known) {
        report_.error(main_.ast[id].span, what + " must be known at compile time", hint);
        return false;
    }
    value = *known;
    return true;
}

Lowering::NamedConstant& Lowering::named_constant(std::uint32_t index) {
    using State = NamedConstant::State;
    NamedConstant& constant = constants_[index];
    if (constant.state == State::busy) {
        report_.error(constant.item->name_span,
                      "'" + constant.item->name + "' is defined by itself");
        constant.state = State::wrong;
    }
    if (constant.state != State::unknown) return constant;
    constant.state = State::busy;
    const Item& item = *constant.item;
    bool is_function = false;
    const bool good =
        evaluate(item.value, "'" + item.name + "'",
                 &item == sink_constant_
                     ? "something reads the name, which makes it a constant: write a function that "
                       "both call"
                 : item.bare ? "outside a body only constants can be named: move the line "
                               "into score_mod { ... }, or write fn " +
                                   item.name + "() = ..."
                             : "write fn " + item.name + "() = ..., or a param",
                 constant.type, constant.value, &is_function);
    if (constant.state == State::busy)
        constant.state = !good ? State::wrong : is_function ? State::function : State::known;
    return constant;
}

} // namespace flexc::front
