// flexc list and flexc show: the mods that ship inside flexc.
#include <algorithm>
#include <cctype>
#include <memory>

#include <nlohmann/json.hpp>

#include "flexc/command.h"
#include "flexc/compile.h"
#include "support/text.h"

namespace flexc::cli {
namespace {

std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text;
}

bool matches(const LibraryEntry& entry, const std::vector<std::string>& words) {
    const auto text = lower(entry.name + ' ' + entry.group + ' ' + entry.summary);
    return std::all_of(words.begin(), words.end(), [&](const std::string& word) {
        return text.find(lower(word)) != std::string::npos;
    });
}

void list(const std::vector<std::string>& words, bool json) {
    auto entries = library();
    std::erase_if(entries, [&](const LibraryEntry& entry) { return !matches(entry, words); });
    if (json) {
        auto value = nlohmann::json::array();
        for (const auto& entry : entries) {
            value.push_back(
                {{"name", entry.name}, {"group", entry.group}, {"summary", entry.summary}});
        }
        return print_json(value);
    }
    if (entries.empty()) {
        fail(formatted("no mod matches '{}'", joined(words, " ")));
    }
    std::size_t width = 0;
    for (const auto& entry : entries) {
        width = std::max(width, entry.name.size());
    }
    std::string group;
    for (const auto& entry : entries) {
        if (entry.group != group) {
            print(stdout, "{}{}\n", group.empty() ? "" : "\n", entry.group);
            group = entry.group;
        }
        print(stdout, "  {:<{}}  {}\n", entry.name, width, entry.summary);
    }
}

void show(const std::string& wanted, bool json) {
    std::vector<std::string> names;
    for (const auto& entry : library()) {
        names.push_back(entry.name);
        if (entry.name != wanted) {
            continue;
        }
        if (json) {
            return print_json({{"name", entry.name},
                               {"group", entry.group},
                               {"summary", entry.summary},
                               {"text", entry.text}});
        }
        print(stdout, "{}{}", entry.text, entry.text.ends_with('\n') ? "" : "\n");
        return;
    }
    const auto nearest = nearest_name(wanted, names);
    fail(formatted("there is no mod '{}'{}", wanted,
                   nearest.empty() ? "; `flexc list` shows them"
                                   : formatted(" (did you mean '{}'?)", nearest)));
}

struct LibraryOptions {
    std::vector<std::string> words;
    std::string name;
    bool json = false;
};

} // namespace

void add_list(CLI::App& app) {
    auto options = std::make_shared<LibraryOptions>();
    auto& command = add_command(app, "list", "The library of mods", "flexc list window");
    command.add_option("WORD", options->words, "Only mods whose line has every word");
    add_json_flag(command, options->json);
    command.callback([options] { list(options->words, options->json); });
}

void add_show(CLI::App& app) {
    auto options = std::make_shared<LibraryOptions>();
    auto& command =
        add_command(app, "show", "The text of a mod of the library", "flexc show alibi");
    command.add_option("NAME", options->name, "As `flexc list` names it")->required();
    add_json_flag(command, options->json);
    command.callback([options] { show(options->name, options->json); });
}

} // namespace flexc::cli
