// Programs written in the language, for tests of what comes after the front end.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <utility>

#include "front/compile_text.h"
#include "passes/pipeline.h"

namespace flexc::test {

inline ir::Program program_of(std::string text) {
    front::Output output = front::compile_text({.source = dsl::Source("<test>", std::move(text))});
    REQUIRE_MESSAGE(output.program.has_value(), output.rendered);
    return std::move(*output.program);
}

inline passes::Mod lowered(std::string text, const passes::PipelineOptions& options = {}) {
    auto mod = passes::lower(program_of(std::move(text)), options);
    REQUIRE_MESSAGE(mod.has_value(), (mod ? "" : mod.error().message));
    return std::move(*mod);
}

} // namespace flexc::test
