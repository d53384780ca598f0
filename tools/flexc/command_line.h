// What commands accept. CLI11 is behind this: its headers take seven seconds of a file's compile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace flexc::cli {

struct Accepts {
    bool required = false;
    char separator = '\0'; // of the values of a list within one word
    int count = 0;         // of the values of a list; 0: any number
    bool positive = false; // numbers from 1
    int most = 0;          // the largest number; 0: no bound
    std::vector<std::string> among = {};
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

struct Program {
    std::string name, summary, version, footer;
    std::initializer_list<void (*)(CommandLine)> commands;
};
// Reads the words and runs the command that they name; the exit code. Words that it cannot take are
// a usage error.
int run_program(const Program& program, int argc, const char* const* argv);

} // namespace flexc::cli
