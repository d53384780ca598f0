// Completion scripts, written from what the program accepts: a table of cases over the command that
// the words before the cursor name, and over the option that the word before it is.
#include "flexc/command_line.h"
#include "support/text.h"

namespace flexc::cli {
namespace {

using Option = CommandDescription::Option;

// Within single quotes of a shell.
std::string quoted(const std::string& text) {
    std::string result = "'";
    for (const char c : text) {
        result += c == '\'' ? std::string("'\\''") : std::string(1, c);
    }
    return result + "'";
}

template <typename Work> void for_each_command(const CommandDescription& at, const Work& work) {
    work(at);
    for (const auto& command : at.commands) {
        for_each_command(command, work);
    }
}

// "flexc run" after "flexc", where the next word is "run".
std::string steps(const CommandDescription& program, const char* variable) {
    std::string text;
    for_each_command(program, [&](const CommandDescription& at) {
        for (const auto& command : at.commands) {
            text += formatted("      '{}') {}='{}' ;;\n", command.path, variable, command.path);
        }
    });
    return text;
}

bool names_mod(const Option& word) {
    return word.names.front() == "MOD" || word.names.front() == "NAME";
}

// What may stand where no option's value is asked for.
std::vector<std::string> words_of(const CommandDescription& at,
                                  const std::vector<std::string>& mods) {
    std::vector<std::string> words;
    for (const auto& command : at.commands) {
        words.push_back(command.name);
    }
    for (const auto& word : at.words) {
        words.insert(words.end(), word.values.begin(), word.values.end());
        if (names_mod(word)) {
            words.insert(words.end(), mods.begin(), mods.end());
        }
    }
    for (const auto& option : at.options) {
        words.insert(words.end(), option.names.begin(), option.names.end());
    }
    return words;
}

// Cases by the option before the cursor: its values by `choices`, files by `files`, else nothing.
template <typename Choices>
std::string value_cases(const CommandDescription& program, const char* files,
                        const Choices& choices) {
    std::string text;
    for_each_command(program, [&](const CommandDescription& at) {
        for (const auto& option : at.options) {
            if (!option.takes_value) {
                continue;
            }
            std::vector<std::string> patterns;
            for (const auto& name : option.names) {
                patterns.push_back(formatted("'{} {}'", at.path, name));
            }
            text += formatted("    {}) {} ;;\n", joined(patterns, "|"),
                              option.names_file       ? std::string(files)
                              : option.values.empty() ? std::string("return")
                                                      : choices(option.values));
        }
    });
    return text;
}

template <typename Choices>
std::string word_cases(const CommandDescription& program, const std::vector<std::string>& mods,
                       const Choices& choices) {
    std::string text;
    for_each_command(program, [&](const CommandDescription& at) {
        text += formatted("    '{}') {} ;;\n", at.path, choices(words_of(at, mods)));
    });
    return text;
}

std::string bash(const CommandDescription& program, const std::vector<std::string>& mods) {
    const auto reply = [](const std::vector<std::string>& words) {
        return formatted("COMPREPLY=($(compgen -W {} -- \"$cur\"))", quoted(joined(words, " ")));
    };
    const auto& name = program.name;
    return formatted("_{}() {{\n"
                     "  local cur=\"${{COMP_WORDS[COMP_CWORD]}}\" at='{}' i\n"
                     "  local prev=\"${{COMP_WORDS[COMP_CWORD-1]}}\"\n"
                     "  COMPREPLY=()\n"
                     "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
                     "    case \"$at ${{COMP_WORDS[i]}}\" in\n{}"
                     "    esac\n"
                     "  done\n"
                     "  case \"$at $prev\" in\n{}"
                     "    *)\n"
                     "  case \"$at\" in\n{}"
                     "  esac\n"
                     "  ;;\n"
                     "  esac\n"
                     "}}\n"
                     "complete -o bashdefault -o default -F _{} {}\n",
                     name, name, steps(program, "at"),
                     value_cases(program, "return",
                                 [&](const auto& values) { return reply(values) + "; return"; }),
                     word_cases(program, mods, reply), name, name);
}

std::string zsh(const CommandDescription& program, const std::vector<std::string>& mods) {
    const auto add = [](const std::vector<std::string>& words) {
        std::vector<std::string> all;
        for (const auto& word : words) {
            all.push_back(quoted(word));
        }
        return "compadd -- " + joined(all, " ");
    };
    const auto& name = program.name;
    return formatted(
        "#compdef {}\n"
        "_{}() {{\n"
        "  local at='{}' prev=\"${{words[CURRENT-1]}}\"\n"
        "  local -i i\n"
        "  for ((i = 2; i < CURRENT; i++)); do\n"
        "    case \"$at ${{words[i]}}\" in\n{}"
        "    esac\n"
        "  done\n"
        "  case \"$at $prev\" in\n{}"
        "  esac\n"
        "  case \"$at\" in\n{}"
        "  esac\n"
        "  _files\n"
        "}}\n"
        "if [[ \"${{funcstack[1]}}\" == _{} ]]; then _{} \"$@\"; else compdef _{} {}; fi\n",
        name, name, name, steps(program, "at"),
        value_cases(program, "_files; return",
                    [&](const auto& values) { return add(values) + "; return"; }),
        word_cases(program, mods, add), name, name, name, name);
}

// Where `at` is the command: all of its names are there, and none of a command below it.
std::string condition(const CommandDescription& at) {
    std::string text;
    std::string path = at.path.substr(at.path.find(' ') + 1);
    if (at.path.find(' ') == std::string::npos) {
        text = "not __fish_seen_subcommand_from";
        for (const auto& command : at.commands) {
            text += " " + command.name;
        }
        return text;
    }
    for (std::size_t space = 0; space != std::string::npos;) {
        space = path.find(' ');
        text += formatted("{}__fish_seen_subcommand_from {}", text.empty() ? "" : "; and ",
                          path.substr(0, space));
        path.erase(0, space == std::string::npos ? space : space + 1);
    }
    if (!at.commands.empty()) {
        text += "; and not __fish_seen_subcommand_from";
        for (const auto& command : at.commands) {
            text += " " + command.name;
        }
    }
    return text;
}

std::string fish(const CommandDescription& program, const std::vector<std::string>& mods) {
    std::string text;
    const auto add = [&](const CommandDescription& at, const std::string& what,
                         const std::string& help) {
        text += formatted("complete -c {} -n {} {}{}\n", program.name, quoted(condition(at)), what,
                          help.empty() ? "" : " -d " + quoted(help));
    };
    for_each_command(program, [&](const CommandDescription& at) {
        for (const auto& command : at.commands) {
            add(at, "-f -a " + quoted(command.name), command.summary);
        }
        for (const auto& word : at.words) {
            auto values = word.values;
            if (names_mod(word)) {
                values.insert(values.end(), mods.begin(), mods.end());
            }
            if (!values.empty()) {
                add(at, "-a " + quoted(joined(values, " ")), "");
            }
        }
        for (const auto& option : at.options) {
            std::string what;
            for (const auto& name : option.names) {
                what += name.starts_with("--") ? "-l " + name.substr(2) + " "
                                               : "-s " + name.substr(1) + " ";
            }
            what += !option.takes_value     ? ""
                    : option.names_file     ? "-r -F"
                    : option.values.empty() ? "-x"
                                            : "-x -a " + quoted(joined(option.values, " "));
            add(at, what, option.help);
        }
    });
    return text;
}

} // namespace

std::string completion_script(const CommandDescription& program, std::string_view shell,
                              const std::vector<std::string>& mods) {
    return shell == "bash"  ? bash(program, mods)
           : shell == "zsh" ? zsh(program, mods)
                            : fish(program, mods);
}

} // namespace flexc::cli
