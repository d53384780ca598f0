// The flexc command.
#include <exception>

#include "flexc/command.h"
#include "flexc/flexc.h"
#include "support/text.h"

namespace {

int fail_with(int exit_code, std::string_view message) {
    while (!message.empty() && message.back() == '\n') {
        message.remove_suffix(1);
    }
    // Messages about a program start with its place and say "error:" themselves.
    const auto first_line = message.substr(0, message.find('\n'));
    const bool has_place = first_line.find(": error: ") != std::string_view::npos;
    flexc::print(stderr, "{}{}\n", has_place ? "" : "flexc: error: ", message);
    return exit_code;
}

int run_command(int argc, char** argv) {
    using namespace flexc::cli;
    return run_program(
        {.name = "flexc",
         .summary = "Fused attention kernels from a line of text.",
         .version = std::string(flexc::version()),
         .footer = "`flexc COMMAND --help` shows the options of a command and an "
                   "example.",
         .commands = {add_run, add_check, add_explain, add_compile, add_bench, add_tune, add_mask,
                      add_list, add_show, add_cache, add_doctor}},
        argc, argv);
}

} // namespace

int main(int argc, char** argv) {
    try {
        return run_command(argc, argv);
    } catch (const flexc::cli::CommandError& error) {
        return fail_with(error.exit_code(), error.what());
    } catch (const std::bad_alloc&) {
        return fail_with(flexc::cli::kExitFailure, "out of memory");
    } catch (const std::exception& error) {
        return fail_with(flexc::cli::kExitFailure, error.what());
    }
}
