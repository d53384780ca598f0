// What commands accept. CLI11 is behind this: its headers take seven seconds of a file's compile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace flexc::cli {

// Integers are whole numbers from 1 and numbers are finite, here and everywhere.
struct Accepts {
    bool required = false;
    char separator = '\0'; // of the values of a list within one word
    int count = 0;         // of the values of a list; 0: any number
    bool file = false;     // the name of one, or of a folder: not "-"
    int most = 0;          // the largest number, from 1; 0: any
    std::vector<std::string> among = {};
    std::vector<std::string> usual = {}; // for help and completion; others may be right, too
};

// A program or one of its commands. Options write where they are told to when the words are read.
class CommandLine {
  public:
    explicit CommandLine(CLI::App& app) : app_(&app) {}

    // --help ends with the example.
    CommandLine command(const std::string& name, const std::string& summary,
                        const std::string& example);
    void require_command();
    void on_run(std::function<void()> work);

    // `names` is "-e,--expression", or "MOD" for a word without an option. An option of a list
    // takes one word each time it is given.
    void flag(const std::string& names, bool& value, const std::string& help);
    void json_flag(bool& value);
    void option(const std::string& names, std::string& value, const std::string& help,
                const Accepts& accepts = {});
    void option(const std::string& names, std::vector<std::string>& value, const std::string& help,
                const Accepts& accepts = {});
    void option(const std::string& names, int& value, const std::string& help,
                const Accepts& accepts = {});
    void option(const std::string& names, std::int64_t& value, const std::string& help,
                const Accepts& accepts = {});
    void option(const std::string& names, std::optional<std::int64_t>& value,
                const std::string& help, const Accepts& accepts = {});
    void option(const std::string& names, std::vector<std::int64_t>& value, const std::string& help,
                const Accepts& accepts = {});
    void option(const std::string& names, std::optional<double>& value, const std::string& help,
                const Accepts& accepts = {});

  private:
    CLI::App* app_;
};

// What a program accepts, as completions need it.
struct CommandDescription {
    struct Option {
        std::vector<std::string> names; // "-e", "--expression"; of a word: "MOD"
        std::string help;
        std::vector<std::string> values; // that it may have; empty: any
        bool takes_value = false;
        bool names_file = false; // as its value
    };
    std::string path, name, summary; // path: "flexc cache stats"
    std::vector<Option> options, words;
    std::vector<CommandDescription> commands;
};

struct Program {
    std::string name, summary, version, footer;
    void (*before_run)(std::string_view command); // not for help
    std::vector<std::string> (*mods)();           // names that a word MOD or NAME may be
    std::initializer_list<void (*)(CommandLine)> commands;
};
// Reads the words and runs the command that they name; the exit code. Words that it cannot take are
// a usage error.
int run_program(const Program& program, int argc, const char* const* argv);

// A script that completes the program's words in a shell: bash, zsh or fish.
std::string completion_script(const CommandDescription& program, std::string_view shell,
                              const std::vector<std::string>& mods);

} // namespace flexc::cli
