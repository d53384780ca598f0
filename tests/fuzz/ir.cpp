// The text form of programs: what is read is right, and prints as what reads back the same.
#include "ir/read.h"

#include "front/compile_text.h"
#include "fuzz.h"
#include "ir/print.h"
#include "ir/verify.h"

namespace flexc::fuzz {

namespace {

Corpus ir_corpus() {
    Corpus result;
    for (const std::string& text : program_corpus())
        if (const auto output = front::compile_text({.source = dsl::Source("corpus", text)});
            output.program)
            result.push_back(ir::print(*output.program));
    return result;
}

void run_ir(std::string_view input) {
    const auto read = ir::read(input);
    if (!read) {
        require(!read.error().message.empty(), "an error says nothing");
        return;
    }
    count_accepted();
    const std::string printed = ir::print(read->program, read->roots);
    const auto again = ir::read(printed);
    require(again.has_value(), "the printed program is refused");
    require(ir::print(again->program, again->roots) == printed,
            "the printed program prints otherwise");
}

} // namespace

const Target kIr = {.name = "ir",
                    .meaning = "the text form of programs",
                    .cpu_seconds = 1,
                    .corpus = ir_corpus,
                    .mutate = mutate_text,
                    .run = run_ir};

} // namespace flexc::fuzz
