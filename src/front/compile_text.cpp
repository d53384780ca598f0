#include "front/compile_text.h"

#include "dsl/parser.h"
#include "front/lower.h"
#include "front/reporter.h"

namespace flexc::front {

Output compile_text(const Input& input) {
    Reporter reporter(input.source);
    dsl::Parsed parsed = dsl::parse(input.source);
    reporter.add(parsed.diagnostics);
    Output output;
    if (!reporter.failed()) output.program = Lowering(input, reporter).run(std::move(parsed.ast));
    output.diagnostics = reporter.diagnostics();
    output.rendered = reporter.render();
    return output;
}

} // namespace flexc::front
