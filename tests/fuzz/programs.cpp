// Text through everything that needs no compiler: tokens, tree, program, passes, CUDA and LLVM
// text.
#include "api/backend.h"
#include "cpu/emit_llvm.h"
#include "dsl/lexer.h"
#include "dsl/parser.h"
#include "dsl/same_tree.h"
#include "front/compile_text.h"
#include "fuzz.h"
#include "ir/print.h"
#include "ir/read.h"
#include "ir/verify.h"
#include "passes/describe.h"

namespace flexc::fuzz {

namespace {

constexpr const char* kName = "fuzz.flex";

void require_inside(const dsl::Source& source, dsl::Span span) {
    require(span.begin <= span.end && span.end <= source.text().size(),
            "a diagnostic names a place outside the text");
}

void check_diagnostics(const dsl::Source& source, const front::Output& output) {
    require(output.program.has_value() == !dsl::has_errors(output.diagnostics),
            "there is a program with errors, or neither");
    require(output.rendered.empty() == output.diagnostics.empty(), "an error is not shown");
    for (const dsl::Diagnostic& diagnostic : output.diagnostics) {
        require(!diagnostic.message.empty(), "a diagnostic says nothing");
        require_inside(source, diagnostic.span);
        for (const dsl::Note& note : diagnostic.notes)
            require_inside(source, note.span);
    }
}

// What is printed reads back as the same tree, unless parentheses made it too long or too deep.
void check_tree(const dsl::Source& source) {
    (void)dsl::print_tokens(source);
    const dsl::Parsed parsed = dsl::parse(source);
    for (const dsl::Diagnostic& diagnostic : parsed.diagnostics)
        require_inside(source, diagnostic.span);
    if (dsl::has_errors(parsed.diagnostics)) return;
    const std::string printed = dsl::print_ast(parsed.ast);
    const dsl::Parsed again = dsl::parse(dsl::Source("printed", printed));
    if (dsl::has_errors(again.diagnostics)) {
        const std::string& message = again.diagnostics[0].message;
        require(message.find("limit") != std::string::npos ||
                    message.find("levels") != std::string::npos,
                "the printed tree is refused: " + message);
        return;
    }
    require(dsl::same_tree(parsed.ast, again.ast), "the printed tree is another tree");
    require(dsl::print_ast(again.ast) == printed, "the printed tree prints otherwise");
}

void check_ir(const ir::Program& program) {
    const std::string wrong = ir::verify(program);
    require(wrong.empty(), "the front end made a program that is wrong: " + wrong);
    const std::string printed = ir::print(program);
    const auto again = ir::read(printed);
    require(again.has_value(), "the printed program is refused");
    require(ir::print(again->program) == printed, "the printed program prints otherwise");
}

// All errors are expected ones.
template <typename T> void check_result(const Result<T>& result) {
    if (result) return;
    require(result.error().code != ErrorCode::internal, "internal: " + result.error().message);
    require(!result.error().message.empty(), "an error says nothing");
}

CompileOptions text_options(Random& random) {
    CompileOptions options;
    options.dtype = random.pick(std::array{DType::bf16, DType::f16, DType::f32});
    options.head_dim = random.pick(std::array{64, 128, 16, 72, 256, 1});
    options.backward = random.chance(80);
    options.deterministic = random.chance(20);
    options.report_out_of_range = random.chance(20);
    options.tile_source =
        random.pick(std::array{TileSource::automatic, TileSource::ranges, TileSource::block_mask});
    options.device = random.chance(50) ? Device::cpu() : Device::cuda();
    return options;
}

void run_programs(std::string_view input) {
    const dsl::Source source(kName, std::string(input));
    check_tree(source);
    front::Output output = front::compile_text({.source = source});
    check_diagnostics(source, output);
    if (!output.program) return;
    check_ir(*output.program);

    Random random(seed_of(input));
    const auto options = api::complete(text_options(random));
    require(options.has_value(), "options are refused");
    const auto mod = api::lower_program({source, std::move(*output.program), {}}, *options);
    check_result(mod);
    if (!mod) return;
    count_accepted();
    (void)passes::describe_ir(*mod);
    (void)passes::describe_gradient(*mod);
    (void)passes::describe_dependence(*mod);
    (void)passes::describe_mask(*mod);
    if (options->device.kind == Device::Kind::cpu) {
        (void)cpu::emit_llvm(*mod);
        return;
    }
    const char* arch = random.chance(70) ? "sm_90a" : "sm_80";
    check_result(api::explain_cuda(*mod, *options, arch));
    check_result(api::explain_plan(*mod, *options, arch));
}

} // namespace

const Target kPrograms = {.name = "programs",
                          .meaning = "text to CUDA and LLVM text",
                          .cpu_seconds = 2,
                          .corpus = program_corpus,
                          .mutate = mutate_text,
                          .run = run_programs};

} // namespace flexc::fuzz
