// The flexc command.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>

#include <fcntl.h>
#include <unistd.h>

#include "flexc/command.h"
#include "flexc/flexc.h"
#include "support/env.h"
#include "support/text.h"

namespace {

using namespace flexc::cli;

int fail_with(const CommandError& error, bool as_json) {
    print_error(error, as_json);
    return error.exit_code();
}

// A file that is opened while one of these is closed would get its number, and what is printed.
void hold_standard_descriptors() {
    for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        if (::fcntl(descriptor, F_GETFD) < 0) {
            // In the wrong direction, so that it fails like a closed one. It takes the lowest free
            // number, which is this one.
            (void)::open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY);
        }
    }
}

// What was printed may still be in memory, and a full disk is only heard of when it leaves.
void require_output() {
    errno = 0;
    std::cout.flush();
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || !std::cout) {
        fail({flexc::ErrorCode::io,
              flexc::formatted("stdout: not all could be written{}{}", errno != 0 ? ": " : "",
                               errno != 0 ? std::strerror(errno) : "")});
    }
}

// The library takes a value that it does not know for none. A command is called by somebody who
// meant something by it; doctor is there to tell what is wrong.
void require_environment(std::string_view command) {
    const auto problems = flexc::support::environment_problems();
    if (!problems.empty() && command != "doctor") {
        fail_usage(flexc::joined(problems, "\n"));
    }
}

std::vector<std::string> mod_names() {
    std::vector<std::string> names;
    for (auto& entry : flexc::library()) {
        names.push_back(std::move(entry.name));
    }
    return names;
}

int run_command(int argc, char** argv) {
    const int exit_code =
        run_program({.name = "flexc",
                     .summary = "Fused attention kernels from a line of text.",
                     .version = std::string(flexc::version()),
                     .footer = "`flexc COMMAND --help` shows the options of a command and an "
                               "example.",
                     .before_run = require_environment,
                     .mods = mod_names,
                     .commands = {add_run, add_check, add_explain, add_compile, add_bench, add_tune,
                                  add_mask, add_list, add_show, add_cache, add_doctor}},
                    argc, argv);
    require_output();
    return exit_code;
}

} // namespace

int main(int argc, char** argv) {
    hold_standard_descriptors();
    // Before the words are understood: what cannot be understood is said in the same way.
    const bool as_json = std::any_of(argv + std::min(argc, 1), argv + argc, [](const char* word) {
        return std::string_view(word) == "--json";
    });
    try {
        return run_command(argc, argv);
    } catch (const CommandError& error) {
        const int exit_code = fail_with(error, as_json);
        // A compiler that was given up may still run: nothing that it uses may be destroyed.
        if (error.code() == name(flexc::ErrorCode::limit)) {
            std::fflush(nullptr);
            std::_Exit(exit_code);
        }
        return exit_code;
    } catch (const std::bad_alloc&) {
        return fail_with({kExitFailure, name(flexc::ErrorCode::limit), "out of memory"}, as_json);
    } catch (const std::exception& error) {
        return fail_with({kExitFailure, name(flexc::ErrorCode::internal), error.what()}, as_json);
    }
}
