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
    Lowering lowering(input, reporter); // keeps texts that the reporter speaks of
    if (!reporter.failed()) output.program = lowering.run(std::move(parsed.ast));
    output.diagnostics = reporter.diagnostics();
    output.rendered = reporter.render();
    return output;
}

} // namespace flexc::front
