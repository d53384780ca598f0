// Identifiers of generated CUDA text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "passes/mod.h"

namespace flexc::cuda {

// "flexc_bf16", "float", ...
std::string_view element_type(DType dtype);

// Letters, digits and underscores only. What is appended later keeps it apart from keywords.
std::string sanitized(const std::string& name);

// A member of mod::Arguments, one for each argument slot.
struct ArgumentField {
    passes::ArgumentSlot slot;
    std::string name;
    std::string type; // "const float*"
};
std::vector<ArgumentField> argument_fields(const passes::Mod& mod);

// "slopes_12" for a read, "v12" for all others.
std::string value_name(const ir::Program& program, ir::NodeId node);

} // namespace flexc::cuda
