// flexc doctor: what was searched, found and missing on this machine.
#include <memory>

#include <nlohmann/json.hpp>

#include "flexc/command.h"
#include "flexc/compile.h"
#include "support/text.h"

namespace flexc::cli {
namespace {

std::string indented(const std::string& text) {
    std::string result = "    ";
    for (const char c : text) {
        result += c;
        if (c == '\n') {
            result += "    ";
        }
    }
    while (!result.empty() && (result.back() == ' ' || result.back() == '\n')) {
        result.pop_back();
    }
    return result;
}

void run(bool json) {
    const auto findings = doctor();
    if (json) {
        auto value = nlohmann::json::array();
        for (const auto& finding : findings) {
            value.push_back({{"what", finding.what},
                             {"found", finding.found},
                             {"detail", finding.detail},
                             {"remedy", finding.remedy}});
        }
        return print_json({{"version", version()}, {"findings", value}});
    }
    print(stdout, "flexc {}\n", version());
    for (const auto& finding : findings) {
        print(stdout, "{} {}\n", finding.found ? "found  " : "missing", finding.what);
        if (!finding.detail.empty()) {
            print(stdout, "{}\n", indented(finding.detail));
        }
        if (!finding.remedy.empty()) {
            print(stdout, "    to get it: {}\n", finding.remedy);
        }
    }
}

} // namespace

void add_doctor(CommandLine program) {
    auto json = std::make_shared<bool>(false);
    auto command = program.command(
        "doctor", "What flexc found on this machine, and what is missing", "flexc doctor");
    command.json_flag(*json);
    command.on_run([json] { run(*json); });
}

} // namespace flexc::cli
