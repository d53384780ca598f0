// Every operator of the IR can be written in the language.
#include <doctest/doctest.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "check.h"
#include "front/builtins.h"

namespace {

using namespace flexc;

// Of f32 alone, and written by its name.
bool is_function(const ir::OpInfo& info) {
    const std::string_view operands = info.signature.substr(0, info.signature.find('>'));
    return info.signature.ends_with(">f") && !info.is_leaf() &&
           operands.find_first_not_of('f') == operands.npos &&
           front::find_builtin(info.name) != nullptr;
}

// score for each operand but the first, behind `separator`.
std::string more_operands(const ir::OpInfo& info, std::string_view separator) {
    std::string text;
    for (int i = 1; i < info.arity(); ++i)
        text += std::string(i == 1 ? separator : ", ") + "score";
    return text;
}

std::set<std::string_view> operators_in(const std::string& text) {
    const front::Output output = front::compile(text);
    REQUIRE_MESSAGE(output.program.has_value(), output.rendered);
    std::set<std::string_view> names;
    for (ir::NodeId id = 0; id < output.program->graph.size(); ++id)
        names.insert(ir::info(output.program->graph[id].op).name);
    return names;
}

} // namespace

TEST_CASE("every operator can be written, functions of reals by their names") {
    std::string functions = "0.0";
    for (const ir::OpInfo& info : ir::all_operators())
        if (is_function(info))
            functions +=
                " + " + std::string(info.name) + "(score" + more_operands(info, ", ") + ")";
    std::set<std::string_view> written = operators_in("score_mod = " + functions);
    for (const char* text :
         {"score + 1.5 - h * 1.5 / score // 1.5 % score", "fma(score, score, 1.5) ** score",
          "-score + abs(score) + sign(score) + min(score, h / 2) + max(score, 0.5)",
          "clamp(score, 0.5, 1.5) + floor(score) + ceil(score) + round(score) + trunc(score)",
          "h + b - q_idx * kv_idx // h % b ** q_idx + (-h) + abs(h) + sign(h)",
          "min(h, b) + max(h, b) + (h & b) + (h | b) + (h ^ b) + ~h + (h << 2) + (h >> b)",
          "float(score < 1) + float(score <= 2) + float(score == 3) + float(score != 4)",
          "float(h < 1) + float(h <= 2) + float(h == 3) + float(h != 4)",
          "float((h < b or b < h) and not (h < 1) ^ (b < 2))",
          "where(where(h < 1, h < b, b < h), where(h < 2, h, b) / 2, score)",
          "score + int(score) * int(h < b) + float(h)"})
        written.merge(operators_in("score_mod = " + std::string(text)));
    for (const ir::OpInfo& info : ir::all_operators())
        if (!info.is_leaf()) CHECK_MESSAGE(written.contains(info.name), info.name);
}

TEST_CASE("functions of reals are methods, as those of tensors are") {
    for (const ir::OpInfo& info : ir::all_operators()) {
        if (!is_function(info)) continue;
        const std::string name(info.name), more = more_operands(info, "");
        CHECK_MESSAGE(operators_in("score_mod = score." + name + "(" + more + ")") ==
                          operators_in("score_mod = " + name + "(score" +
                                       (more.empty() ? "" : ", " + more) + ")"),
                      name);
    }
}

TEST_CASE("docs/language.md names every function") {
    std::stringstream text;
    text << std::ifstream(FLEXC_SOURCE_DIR "/docs/language.md").rdbuf();
    const std::string page = text.str();
    for (const front::Builtin& builtin : front::builtins()) {
        const std::regex name("\\b" + std::string(builtin.name) + "\\b");
        CHECK_MESSAGE(std::regex_search(page, name), builtin.name);
    }
}
