#include "flexc/command_line.h"

#include <charconv>

#include <CLI/CLI.hpp>

#include "flexc/command.h"
#include "support/text.h"

namespace flexc::cli {
namespace {

CLI::Validator whole_number() {
    const auto check = [](const std::string& text) -> std::string {
        std::int64_t value = 0;
        const char* end = text.data() + text.size();
        const auto [stop, problem] = std::from_chars(text.data(), end, value);
        const bool accepted = problem == std::errc() && stop == end && value > 0;
        return accepted ? "" : formatted("'{}' is no whole number from 1", text);
    };
    return {check, "FROM 1"};
}

template <typename Value>
void add(CLI::App& app, const std::string& names, Value& value, const std::string& help,
         const Accepts& accepts) {
    CLI::Option* option = app.add_option(names, value, help);
    option->required(accepts.required);
    if (accepts.separator != '\0') {
        option->delimiter(accepts.separator);
    }
    if (accepts.count > 0) {
        option->expected(accepts.count);
    } else if (names.front() == '-') {
        option->allow_extra_args(false);
    }
    if (accepts.most > 0) {
        option->check(CLI::Range(1, accepts.most));
    } else if (accepts.positive) {
        option->check(whole_number());
    }
    if (!accepts.among.empty()) {
        option->check(CLI::IsMember(accepts.among));
    }
}

} // namespace

CommandLine CommandLine::command(const std::string& name, const std::string& summary,
                                 const std::string& example) {
    CLI::App* command = app_->add_subcommand(name, summary);
    command->footer("\nexample:\n  " + example);
    return CommandLine(*command);
}

void CommandLine::require_command() { app_->require_subcommand(1); }
void CommandLine::on_run(std::function<void()> work) { app_->callback(std::move(work)); }

void CommandLine::flag(const std::string& names, bool& value, const std::string& help) {
    app_->add_flag(names, value, help);
}
void CommandLine::json_flag(bool& value) { flag("--json", value, "One line of JSON on stdout"); }

void CommandLine::option(const std::string& names, std::string& value, const std::string& help,
                         const Accepts& accepts) {
    add(*app_, names, value, help, accepts);
}
void CommandLine::option(const std::string& names, std::vector<std::string>& value,
                         const std::string& help, const Accepts& accepts) {
    add(*app_, names, value, help, accepts);
}
void CommandLine::option(const std::string& names, int& value, const std::string& help,
                         const Accepts& accepts) {
    add(*app_, names, value, help, accepts);
}
void CommandLine::option(const std::string& names, std::int64_t& value, const std::string& help,
                         const Accepts& accepts) {
    add(*app_, names, value, help, accepts);
}
void CommandLine::option(const std::string& names, std::optional<std::int64_t>& value,
                         const std::string& help, const Accepts& accepts) {
    add(*app_, names, value, help, accepts);
}
void CommandLine::option(const std::string& names, std::vector<std::int64_t>& value,
                         const std::string& help, const Accepts& accepts) {
    add(*app_, names, value, help, accepts);
}
void CommandLine::option(const std::string& names, std::optional<double>& value,
                         const std::string& help, const Accepts& accepts) {
    add(*app_, names, value, help, accepts);
}

int run_program(const Program& program, int argc, const char* const* argv) {
    CLI::App app{program.summary, program.name};
    app.require_subcommand(1);
    app.set_version_flag("--version", program.name + " " + program.version);
    app.footer("\n" + program.footer);
    for (const auto add_command : program.commands) {
        add_command(CommandLine(app));
    }
    try {
        app.parse(argc, argv);
    } catch (const CLI::Success& wanted) {
        return app.exit(wanted); // --help, --version
    } catch (const CLI::ParseError& error) {
        const auto chosen = app.get_subcommands();
        const auto of = chosen.empty() ? std::string() : " " + chosen.front()->get_name();
        fail_usage(
            formatted("{}\n`{}{} --help` shows what is accepted", error.what(), program.name, of));
    }
    return 0;
}

} // namespace flexc::cli
