// Tree to graph: names, calls, reads. One object lowers one program.
//   lower.cpp             values: literals, names, operators, bodies
//   lower_names.cpp       what a name stands for, and what a wrong one was meant to be
//   lower_call.cpp        calls: built-in functions, and functions that are copied into the call
//   lower_function.cpp    functions as values: and_masks, generators, and mods that are functions
//   lower_index.cpp       reads of buffers
//   lower_sum.cpp         sums over a range
//   lower_declaration.cpp buffers, params, consts
//   lower_program.cpp     which bodies are the mods, and what is checked of the whole
//   check_names.cpp       names in functions that nothing calls
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "dsl/ast.h"
#include "front/builder.h"
#include "front/builtins.h"
#include "front/compile_text.h"

namespace flexc::front {

// One parsed text: the program, the mask_mod option, or a file of the library.
struct Module {
    const dsl::Source* source = nullptr;
    dsl::Ast ast;
    bool in_library = false;
    dsl::Source own_source = {}; // when nobody else keeps it
    std::unordered_map<std::string, const dsl::Item*> functions;
};

inline constexpr std::uint32_t kNoBuffer = ~0u;

// What makes a def a mod: the number of its parameters that have no default.
inline constexpr std::size_t kScoreParameters = 5; // score, b, h, q, kv
inline constexpr std::size_t kMaskParameters = 4;  // b, h, q, kv
std::size_t required_parameters(const dsl::Item& item);

struct Callable;

// A number, a buffer with the indices that it has been given so far, or a function.
struct Value {
    ir::NodeId node = ir::kNoNode;
    std::uint32_t buffer = kNoBuffer;
    std::vector<ir::NodeId> indices;
    const Callable* function = nullptr;

    bool is_buffer() const { return buffer != kNoBuffer; }
};

// Names that a body sees, inner ones first.
struct Scope {
    const Module* module;
    const dsl::Body* body = nullptr;
    std::unordered_map<std::string, Value> locals;
    const Scope* enclosing = nullptr; // of a function inside a body: that body's
    bool is_python = false;           // names hide those at the top, as in Python
};

// A function that is a value: one of the text, with the names that it sees where it stands inside a
// body, or the masks that and_masks or or_masks puts together.
struct Callable {
    const Module* module = nullptr;
    const dsl::Item* item = nullptr; // absent: parts
    const Scope* enclosing = nullptr;
    std::string name;
    ir::Op combine = ir::Op::band;
    std::vector<const Callable*> parts;
};

class Lowering {
  public:
    Lowering(const Input& input, Reporter& reporter);

    // Nothing when the reporter has an error.
    std::optional<ir::Program> run(dsl::Ast ast);

  private:
    enum class SymbolKind : std::uint8_t { buffer, param, constant, size, function };
    struct Symbol {
        SymbolKind kind;
        std::uint32_t index = 0; // in Program's buffers, params or sizes, or in constants_
        dsl::Span span;
    };
    struct NamedConstant {
        const dsl::Item* item;
        enum class State : std::uint8_t { unknown, busy, known, function, wrong };
        State state = State::unknown;
        ir::Type type = ir::Type::integer;
        Constant value;
        const Callable* function = nullptr; // once the program used it
    };
    struct Argument {
        Value value;
        dsl::Span span;
        bool given = false;
    };

    // --- values
    Value lower(dsl::ExprId id);
    Operand number(dsl::ExprId id);
    Operand number_of(const Value& value, dsl::Span span);
    ir::NodeId read(const Value& value, dsl::Span span); // with all indices
    ir::NodeId lower_binary_chain(dsl::ExprId id);
    ir::NodeId lower_comparisons(const dsl::Expr& expr);
    ir::NodeId lower_operand(const dsl::Expr& expr); // of an operator of one
    ir::NodeId lower_conditional(const dsl::Expr& expr);
    ir::NodeId lower_sum(const dsl::Expr& expr);
    struct SumBound {
        ir::NodeId node;
        std::optional<std::int64_t> value; // where it is known already
    };
    std::optional<SumBound> sum_bound(dsl::ExprId id);
    Operand sum_term(const dsl::Expr& expr, ir::NodeId counter);
    std::int64_t learned_reads(ir::NodeId total);
    ir::NodeId written_sum(const dsl::Expr& expr, std::int64_t first, std::int64_t end);
    Value lower_body(const dsl::Body& body);
    void assign(const dsl::Statement& statement);
    bool may_assign(const dsl::Statement& statement);

    // --- names
    Value lower_name(const dsl::Expr& expr);
    std::optional<Value> find_value(const dsl::Expr& expr);
    ir::Op in_layout(ir::Op op) const;
    bool names_function(const dsl::Expr& expr);
    void unknown_name(const dsl::Expr& expr, bool indexed);
    void unknown_function(const dsl::Expr& expr);
    std::vector<std::string> visible_values() const;
    std::vector<std::string> visible_functions() const;

    // --- calls
    Value lower_call(const dsl::Expr& expr);
    ir::NodeId call_builtin(const Builtin& builtin, const dsl::Expr& expr);
    Value call_function(const Callable& function, const dsl::Expr& expr);
    Value inline_function(const Callable& function, std::vector<Argument> arguments,
                          dsl::Span call);
    Value lower_combination(const dsl::Expr& expr, ir::Op combine);
    Value apply(const Callable& function, std::span<const Argument> arguments, bool is_ambient,
                dsl::Span span);
    Value apply_to_ambient(const Callable& function, bool is_mask, dsl::Span span);
    Operand as_mod(const Value& value, bool is_mask, dsl::Span span);
    const Callable& callable_of(const Module& module, const dsl::Item& item);
    const Callable* find_function(const dsl::Expr& expr);
    const Value* find_local(const std::string& name) const;
    void refuse_call(const dsl::Expr& callee, std::string_view what, std::string hint);
    void refuse_call_of_buffer(const dsl::Expr& callee, std::uint32_t buffer);
    void refuse_count(const dsl::Expr& expr, const std::string& name,
                      const std::vector<std::string>& parameters, std::size_t required,
                      bool open_ended);
    bool bind_arguments(const dsl::Expr& expr, const std::string& name,
                        const std::vector<std::string>& parameters, std::size_t required,
                        bool open_ended, std::vector<Argument>& bound);
    const Module* library_module(const std::string& name);

    // --- reads
    Value lower_index(const dsl::Expr& expr);
    ir::NodeId lower_one_index(dsl::ExprId id, const Value& base);
    std::string index_example(const Value& value) const;

    // --- declarations
    void declare_all();
    void declare_option_buffers();
    void declare_option_params();
    bool declare(const std::string& name, Symbol symbol);
    void declare_buffer(const dsl::Item& item);
    void declare_param(const dsl::Item& item);
    void check_elements(const ir::Buffer& buffer, dsl::Span span);
    ir::Dim dim_of(dsl::ExprId id);
    ir::Dim named_dim(const std::string& name, dsl::Span span);
    // Lowers apart from the program's graph. Nothing, and an error, when it is no constant.
    bool evaluate(dsl::ExprId id, const std::string& what, const std::string& hint, ir::Type& type,
                  Constant& value, bool* is_function = nullptr);
    NamedConstant& named_constant(std::uint32_t index);
    Value function_constant(std::uint32_t index);

    // --- the whole
    void find_sink();
    void find_mods();
    void lower_mods();
    void lower_expression_program(const dsl::Item& item);
    Operand lower_mod_item(const dsl::Item& item, bool is_mask);
    Operand lower_sink_item(const dsl::Item& item);
    // A mask_mod or a sink of the options: an expression, or the item.
    void lower_option(Module& option, const std::string& text, dsl::ItemKind kind);
    void set_score(Operand value);
    void set_mask(Operand value);
    void set_sink(Operand value);
    void check_gradients();
    void check_uncalled_functions();
    void check_names(const Module& module, const dsl::Item& item, const Scope* enclosing);

    Builder& build() { return *build_; }
    const dsl::Expr& expr_of(dsl::ExprId id) const { return scope_->module->ast[id]; }
    static Value value_of(ir::NodeId node) { return {.node = node}; }

    const Input& input_;
    Reporter& report_;
    ir::Program program_;
    Builder program_builder_;
    Builder* build_;
    Module main_;
    Module option_, option_sink_;
    std::map<std::string, std::unique_ptr<Module>> library_; // files that were used
    std::unordered_map<std::string, Symbol> symbols_;
    std::vector<NamedConstant> constants_;
    std::deque<Callable> callables_;
    std::unordered_map<const dsl::Item*, const Callable*> callable_of_; // outside bodies
    std::deque<Scope> kept_scopes_; // of bodies with functions, which may outlive them
    Scope* scope_ = nullptr;
    struct MaskRead {
        Reporter::Place place;
        dsl::Span span;
    };
    bool in_mask_ = false, in_sink_ = false;
    std::unordered_map<std::uint32_t, MaskRead> mask_reads_; // the first of each buffer
    bool is_in_sum_ = false;                                 // in the term of a loop
    int depth_ = 0;                                          // of lower(), over calls
    std::size_t steps_ = 0;                                  // expressions lowered, over calls
    std::vector<const dsl::Item*> active_;                   // functions that are being copied in
    std::unordered_set<const dsl::Item*> called_;

    const dsl::Item* score_item_ = nullptr;
    const dsl::Item* mask_item_ = nullptr;
    const dsl::Item* sink_item_ = nullptr;
    const dsl::Item* sink_constant_ = nullptr; // "sink = 4" of a program that reads the name
    const dsl::Item* expression_item_ = nullptr;
};

} // namespace flexc::front
