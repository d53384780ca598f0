// flexc list and flexc show: the mods that ship inside flexc.
#include <algorithm>
#include <cctype>
#include <memory>
#include <sstream>

#include <nlohmann/json.hpp>

#include "flexc/command.h"
#include "flexc/compile.h"
#include "flexc/picture.h"
#include "support/text.h"

namespace flexc::cli {
namespace {

std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text;
}

// What is said of a mod: the comments of its text.
std::string description(const std::string& text) {
    std::istringstream lines(text);
    std::string said;
    for (std::string line; std::getline(lines, line);) {
        if (line.starts_with("#") && !line.starts_with("# Example:")) {
            said += line + '\n';
        }
    }
    return said;
}

bool matches(const LibraryEntry& entry, const std::vector<std::string>& words) {
    const auto text = lower(entry.group + ' ' + entry.page + ' ' + description(entry.text));
    return std::all_of(words.begin(), words.end(), [&](const std::string& word) {
        return text.find(lower(word)) != std::string::npos;
    });
}

void list(const std::vector<std::string>& words, bool json) {
    auto entries = library();
    std::erase_if(entries, [&](const LibraryEntry& entry) { return !matches(entry, words); });
    if (entries.empty()) {
        fail(formatted("no mod matches '{}'", joined(words, " ")));
    }
    if (json) {
        auto value = nlohmann::json::array();
        for (const auto& entry : entries) {
            value.push_back({{"name", entry.name},
                             {"group", entry.group},
                             {"page", entry.page},
                             {"summary", entry.summary},
                             {"also_called", entry.also_called}});
        }
        return print_json(value);
    }
    std::size_t width = 0;
    for (const auto& entry : entries) {
        width = std::max(width, entry.name.size());
    }
    std::string page;
    for (const auto& entry : entries) {
        if (entry.page != page) {
            print(stdout, "{}{} ({})\n", page.empty() ? "" : "\n", entry.page, entry.group);
            page = entry.page;
        }
        print(stdout, "  {:<{}}  {}\n", entry.name, width, entry.summary);
    }
}

// A picture in one shade says nothing.
bool says_something(const std::vector<std::string>& picture) {
    const auto all = joined(picture, "");
    return all.find_first_not_of(all.substr(0, 1)) != std::string::npos;
}

void show(const std::string& wanted, bool json) {
    const auto found = library_mod(wanted);
    if (!found) {
        fail(found.error().message + "; `flexc list` shows them");
    }
    const LibraryEntry& entry = *found;
    const auto dependence = value_of(explain(entry.text, "deps"));
    const auto mask = value_of(explain(entry.text, "mask"));
    const auto drawn = picture_of(entry);
    const auto picture = drawn && says_something(*drawn) ? *drawn : std::vector<std::string>{};
    if (json) {
        return print_json({{"name", entry.name},
                           {"group", entry.group},
                           {"page", entry.page},
                           {"summary", entry.summary},
                           {"also_called", entry.also_called},
                           {"text", entry.text},
                           {"dependence", dependence},
                           {"mask", mask},
                           {"picture", picture}});
    }
    print(stdout, "{}\n{}{}", entry.text, dependence, mask);
    if (!drawn) {
        print(stdout, "\nno picture: {}\n", drawn.error().message);
    } else if (!picture.empty()) {
        print(stdout, "\nkeys to the right, queries down: # sees, . does not{}\n\n{}\n",
              entry.group == "score" ? "; - + * # is how much" : "", joined(picture, "\n"));
    }
}

struct LibraryOptions {
    std::vector<std::string> words;
    std::string name;
    bool json = false;
};

} // namespace

void add_list(CommandLine program) {
    auto options = std::make_shared<LibraryOptions>();
    auto command = program.command("list", "The library of mods", "flexc list window");
    command.option("WORD", options->words, "Only mods whose line has every word");
    command.json_flag(options->json);
    command.on_run([options] { list(options->words, options->json); });
}

void add_show(CommandLine program) {
    auto options = std::make_shared<LibraryOptions>();
    auto command = program.command(
        "show", "A mod of the library: text, what depends on what, picture", "flexc show alibi");
    command.option("NAME", options->name, "As `flexc list` names it", {.required = true});
    command.json_flag(options->json);
    command.on_run([options] { show(options->name, options->json); });
}

} // namespace flexc::cli
