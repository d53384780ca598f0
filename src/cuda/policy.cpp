#include "cuda/policy.h"

namespace flexc::cuda {

std::string member_function(std::string_view signature, std::string_view statements) {
    std::string text = formatted("    static __device__ {} {{\n", signature);
    while (!statements.empty()) {
        const std::size_t end = statements.find('\n') + 1;
        text += "    " + std::string(statements.substr(0, end));
        statements.remove_prefix(end);
    }
    return text + "    }\n";
}

std::string member_function(std::string_view signature, const Body& body) {
    return member_function(signature, body.statements());
}

std::string numbers_function(std::string_view name, const std::vector<int>& values) {
    std::string list;
    for (const int value : values)
        list += formatted("{}{}", list.empty() ? "" : ", ", value);
    return formatted("    static constexpr __device__ int {}(int i) {{\n"
                     "        constexpr int numbers[] = {{{}}};\n"
                     "        return numbers[i];\n    }}\n",
                     name, list);
}

std::string Policy::text() const {
    if (members_.empty()) return "";
    return formatted("struct {0} : defaults::{0} {{\n{1}}};\n\n", name_, members_);
}

} // namespace flexc::cuda
