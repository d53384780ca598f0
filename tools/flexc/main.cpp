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
    CLI::App app{"Fused attention kernels from a line of text.", "flexc"};
    app.require_subcommand(1);
    app.set_version_flag("--version", "flexc " + std::string(flexc::version()));
    app.footer("\n`flexc COMMAND --help` shows the options of a command and an example.");
    flexc::cli::add_run(app);
    flexc::cli::add_check(app);
    flexc::cli::add_explain(app);
    flexc::cli::add_compile(app);
    flexc::cli::add_bench(app);
    flexc::cli::add_mask(app);
    flexc::cli::add_list(app);
    flexc::cli::add_show(app);
    flexc::cli::add_cache(app);
    flexc::cli::add_doctor(app);
    try {
        app.parse(argc, argv);
    } catch (const CLI::Success& wanted) {
        return app.exit(wanted); // --help, --version
    } catch (const CLI::ParseError& error) {
        const auto chosen = app.get_subcommands();
        const auto of = chosen.empty() ? std::string() : " " + chosen.front()->get_name();
        return fail_with(
            flexc::cli::kExitUsage,
            flexc::formatted("{}\n`flexc{} --help` shows what is accepted", error.what(), of));
    }
    return 0;
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
