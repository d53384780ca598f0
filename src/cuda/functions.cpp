// Functions of CUDA text around the statements of a body.
#include <algorithm>
#include <cctype>
#include <functional>
#include <span>

#include "cuda/expressions.h"
#include "plan/work.h"
#include "support/text.h"

namespace flexc::cuda {

namespace {

// The prefix of an element's values in text.
constexpr std::string_view kAt = "at.";

// Returns the text with each value of `at` replaced by a name (at0, at1, ...), and these values in
// the order of their names.
std::pair<std::string, std::vector<std::string>> without_at(const std::string& text) {
    const auto is_name = [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
    };
    std::string result;
    std::vector<std::string> values;
    for (std::size_t i = 0; i < text.size();) {
        if (text.compare(i, kAt.size(), kAt) != 0 ||
            (i > 0 && (is_name(text[i - 1]) || text[i - 1] == '.'))) {
            result += text[i++];
            continue;
        }
        std::size_t end = i + kAt.size();
        while (end < text.size() && (is_name(text[end]) || text[end] == '.'))
            ++end;
        // Takes an element of an array, not the array: a function that is not inlined would need
        // all of it in memory.
        if (end < text.size() && text[end] == '[') end = text.find(']', end) + 1;
        const std::string value = text.substr(i, end - i);
        const auto known = std::ranges::find(values, value);
        result += formatted("at{}", known - values.begin());
        if (known == values.end()) values.push_back(value);
        i = end;
    }
    return {result, values};
}

// Emits a function that is not inlined, with these attributes, and a function with this signature
// that calls it with those values of `at` that it needs (`written` turns their names into text) and
// with the parameters behind `at`.
std::string called_function(std::string_view attributes, std::string_view type,
                            std::string_view name, std::string_view signature,
                            std::span<const Parameter> behind, const Body& body,
                            const std::function<std::string(std::string)>& written) {
    const auto [text, values] = without_at(body.statements());
    std::vector<std::string> types, parameters, arguments;
    for (std::size_t i = 0; i < values.size(); ++i) {
        types.push_back(formatted("typename T{}", i));
        parameters.push_back(formatted("T{0} at{0}", i));
        arguments.push_back(written(values[i]));
    }
    for (const Parameter& parameter : behind) {
        parameters.push_back(formatted("{} {}", parameter.type, parameter.name));
        arguments.emplace_back(parameter.name);
    }
    return formatted("{}static __device__ {} {} long_{}({}) {{\n{}}}\n"
                     "__device__ inline {} {{\n    return long_{}({});\n}}\n\n",
                     types.empty() ? "" : formatted("template <{}>\n", joined(types, ", ")),
                     attributes, type, name, joined(parameters, ", "), text, signature, name,
                     joined(arguments, ", "));
}

std::string signature_of_element(std::string_view type, std::string_view name,
                                 std::span<const Parameter> behind) {
    std::string more;
    for (const Parameter& parameter : behind)
        more += formatted(", {} {}", parameter.type, parameter.name);
    return formatted("{} {}(const At& at{})", type, name, more);
}

} // namespace

std::string element_function(std::string_view type, std::string_view name,
                             std::string_view parameter, const Body& body,
                             int instructions_beside) {
    std::vector<Parameter> behind;
    if (!parameter.empty()) behind.push_back({"float", parameter});
    if (body.instructions() + instructions_beside <= plan::kMostWrittenOut)
        return device_function(signature_of_element(type, name, behind), body);
    return called_element_function(type, name, behind, body);
}

std::string called_element_function(std::string_view type, std::string_view name,
                                    std::span<const Parameter> behind, const Body& body) {
    return called_function("__noinline__", type, name, signature_of_element(type, name, behind),
                           behind, body, [](std::string value) { return value; });
}

std::string called_place_function(std::string_view type, std::string_view name,
                                  std::string_view parameters, const Body& body) {
    // Warps that copy a bias ask for the address of an element alone: a call that stayed there
    // would need more registers than they have.
    return called_function("__noinline__ FLEXC_PURE", type, name,
                           formatted("{} {}({})", type, name, parameters), {}, body,
                           [](const std::string& value) {
                               std::string text = value;
                               for (std::size_t at = 0; (at = text.find(kAt, at)) != text.npos;)
                                   if (at == 0 || text[at - 1] == '[')
                                       text.erase(at, kAt.size());
                                   else
                                       ++at;
                               return text;
                           });
}

std::string device_function(std::string_view signature, const Body& body) {
    return formatted("__device__ inline {} {{\n{}}}\n\n", signature, body.statements());
}

} // namespace flexc::cuda
