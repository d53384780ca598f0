#include "flexc/command_line.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <sstream>

#include <CLI/CLI.hpp>

#include "flexc/command.h"
#include "support/text.h"

namespace flexc::cli {
namespace {

// Beyond this sums of counts wrap; the library's own limits are far below.
constexpr const char* kFile = "FILE";

constexpr std::int64_t kMostCount = std::int64_t{1} << 62;

// Decimal, whole, with or without a sign.
template <typename Number> bool parses(std::string_view text, Number& value) {
    text.remove_prefix(text.starts_with('+') ? 1 : 0);
    const char* end = text.data() + text.size();
    const auto [stop, problem] = std::from_chars(text.data(), end, value);
    return problem == std::errc() && stop == end;
}

CLI::Validator whole_number(std::int64_t most) {
    const auto check = [most](const std::string& text) -> std::string {
        std::int64_t value = 0;
        // CLI11 takes what starts with 0 as octal.
        if (parses(text, value) && text.front() != '0' && value > 0 && value <= most) {
            return "";
        }
        return formatted("'{}' is no whole number from 1 to {}", text,
                         most == kMostCount ? "2^62" : std::to_string(most));
    };
    return {check, ""};
}

CLI::Validator finite_number() {
    const auto check = [](const std::string& text) -> std::string {
        double value = 0;
        const bool accepted = parses(text, value) && std::isfinite(value);
        return accepted ? "" : formatted("'{}' is no finite number", text);
    };
    return {check, ""};
}

// Tools that know "-" as stdin or stdout are many, and a file of that name is hard to remove.
CLI::Validator file_name() {
    const auto check = [](const std::string& text) -> std::string {
        return text == "-" ? "'-' is no file here: name one, such as /dev/stdout or ./-" : "";
    };
    return {check, ""};
}

CLI::Validator check_of(const std::string*, const Accepts& accepts) {
    return accepts.file ? file_name() : CLI::Validator();
}
CLI::Validator check_of(const std::vector<std::string>*, const Accepts&) { return {}; }
template <typename Integer> CLI::Validator check_of(const Integer*, const Accepts& accepts) {
    return whole_number(accepts.most > 0 ? accepts.most : kMostCount);
}
CLI::Validator check_of(const std::optional<double>*, const Accepts&) { return finite_number(); }

CLI::Validator one_of(const std::vector<std::string>& values) {
    const auto check = [values](const std::string& text) -> std::string {
        const bool accepted = std::ranges::find(values, text) != values.end();
        return accepted ? "" : formatted("'{}': expected one of {}", text, joined(values, ", "));
    };
    return {check, ""};
}

// An empty word and 0 say that there is none.
void show_default(CLI::Option& option, const std::string& value) { option.default_str(value); }
void show_default(CLI::Option& option, const std::vector<std::int64_t>& value) {
    option.default_str(joined(value, ","));
}
template <typename Value> void show_default(CLI::Option& option, const Value& value) {
    if constexpr (std::is_integral_v<Value>) {
        option.default_str(value == 0 ? "" : std::to_string(value));
    }
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
    option->check(check_of(&value, accepts));
    const auto& values = accepts.among.empty() ? accepts.usual : accepts.among;
    if (!values.empty()) {
        option->type_name(joined(values, "|"));
    } else if (accepts.file) {
        option->type_name(kFile);
    }
    show_default(*option, value);
    if (!accepts.among.empty()) {
        option->check(one_of(accepts.among));
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

namespace {

// The command whose words could not be taken: the innermost that was named.
const CLI::App& innermost(const CLI::App& app) {
    const auto chosen = app.get_subcommands();
    return chosen.empty() ? app : innermost(*chosen.front());
}

// "flexc cache stats"
std::string path_of(const CLI::App& app) {
    const auto* parent = app.get_parent();
    return parent == nullptr ? app.get_name() : path_of(*parent) + " " + app.get_name();
}

std::vector<std::string> command_names(const CLI::App& app) {
    std::vector<std::string> names;
    for (const auto* command : app.get_subcommands([](const CLI::App*) { return true; })) {
        names.push_back(command->get_name());
    }
    return names;
}

std::vector<std::string> option_names(const CLI::App& app) {
    std::vector<std::string> names;
    for (const auto* option : app.get_options()) {
        for (const auto& name : option->get_lnames()) {
            names.push_back("--" + name);
        }
    }
    return names;
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& names) {
    const auto nearest = nearest_name(word, names);
    return nearest.empty() ? "" : formatted(" (did you mean '{}'?)", nearest);
}

// What is wrong with the words, where CLI11 says little.
std::string explained(const CLI::ParseError& error, const CLI::App& at) {
    const auto words = at.remaining(true);
    const auto commands = command_names(at);
    if (!commands.empty()) {
        if (words.empty()) {
            return "a command is needed: " + joined(commands, ", ");
        }
        if (!words.front().starts_with('-')) {
            return formatted("there is no command '{}'{}", words.front(),
                             did_you_mean(words.front(), commands));
        }
    }
    if (words.empty()) {
        return error.what();
    }
    if (!words.front().starts_with('-')) {
        return formatted("'{}' was not expected", words.front());
    }
    const auto name = words.front().substr(0, words.front().find('='));
    return formatted("there is no option {}{}", name, did_you_mean(name, option_names(at)));
}

std::vector<std::string> values_of(const CLI::Option& option) {
    std::vector<std::string> values;
    const auto type = option.get_type_name();
    if (type.find('|') == std::string::npos) {
        return values;
    }
    std::stringstream stream(type);
    for (std::string value; std::getline(stream, value, '|');) {
        values.push_back(value);
    }
    return values;
}

CommandDescription describe(const CLI::App& app) {
    CommandDescription result{
        .path = path_of(app), .name = app.get_name(), .summary = app.get_description()};
    for (const auto* option : app.get_options()) {
        CommandDescription::Option described{.help = option->get_description(),
                                             .values = values_of(*option),
                                             .takes_value = option->get_items_expected_max() > 0,
                                             .names_file = option->get_type_name() == kFile};
        for (const auto& name : option->get_snames()) {
            described.names.push_back("-" + name);
        }
        for (const auto& name : option->get_lnames()) {
            described.names.push_back("--" + name);
        }
        const bool is_word = described.names.empty();
        if (is_word) {
            described.names.push_back(option->get_name());
        }
        (is_word ? result.words : result.options).push_back(std::move(described));
    }
    for (const auto* command : app.get_subcommands([](const CLI::App*) { return true; })) {
        result.commands.push_back(describe(*command));
    }
    return result;
}

void print_help(const CLI::App& app, const std::vector<std::string>& words) {
    const CLI::App* at = &app;
    for (const auto& word : words) {
        const auto known = command_names(*at);
        if (std::ranges::find(known, word) == known.end()) {
            fail_usage(formatted("there is no command '{}'{}", word, did_you_mean(word, known)));
        }
        at = at->get_subcommand(word);
    }
    // App::help() is that of the command which was called.
    print(stdout, "{}",
          app.get_formatter()->make_help(at, path_of(*at), CLI::AppFormatMode::Normal));
}

// What needs to know all of the program.
void add_help(CLI::App& app) {
    auto words = std::make_shared<std::vector<std::string>>();
    const auto commands = command_names(app);
    auto command = CommandLine(app).command("help", "The same as --help, of flexc or of a command",
                                            "flexc help run");
    command.option("COMMAND", *words, "Of which command", {.usual = commands});
    command.on_run([&app, words] { print_help(app, *words); });
}

void add_completion(CLI::App& app, std::vector<std::string> (*mods)()) {
    auto shell = std::make_shared<std::string>();
    auto command = CommandLine(app).command(
        "completion", "Print a script that completes words in bash, zsh or fish",
        "source <(flexc completion bash)");
    command.option("SHELL", *shell, "Which shell",
                   {.required = true, .among = {"bash", "zsh", "fish"}});
    command.on_run([&app, shell, mods] {
        print(stdout, "{}", completion_script(describe(app), *shell, mods()));
    });
}

} // namespace

int run_program(const Program& program, int argc, const char* const* argv) {
    CLI::App app{program.summary, program.name};
    app.require_subcommand(1);
    app.set_version_flag("--version", program.name + " " + program.version);
    app.footer("\n" + program.footer);
    for (const auto add_command : program.commands) {
        add_command(CommandLine(app));
    }
    add_help(app);
    add_completion(app, program.mods);
    app.parse_complete_callback(
        [&] { program.before_run(app.get_subcommands().front()->get_name()); });
    try {
        app.parse(argc, argv);
    } catch (const CLI::Success& wanted) {
        return app.exit(wanted); // --help, --version
    } catch (const CLI::ParseError& error) {
        const auto& at = innermost(app);
        fail_usage(
            formatted("{}\n`{} --help` shows what is accepted", explained(error, at), path_of(at)));
    }
    return 0;
}

} // namespace flexc::cli
