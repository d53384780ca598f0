#include "cuda/arch/family_text.h"

#include "cuda/arch/sm90/emit_forward_constants.h"
#include "cuda/arch/sm90/emit_logits.h"
#include "cuda/arch/sm90/emit_mma.h"
#include "plan/arch/sm90/sm90.h"

namespace flexc::cuda::sm90 {

namespace {

bool is_forward(const plan::KernelConfig& config) {
    return plan::sm90::forward_of(config) != nullptr;
}

std::string_view members_of_at(const plan::KernelConfig& config) {
    if (is_forward(config))
        return "    const float* key_values = nullptr;\n"
               "    const float* distance_values = nullptr;\n"
               "    const unsigned* tables = nullptr;\n"
               "    bool* doubt = nullptr;\n"
               "    const float* shifted = nullptr;\n"
               "    const float* loaded = nullptr;\n"
               "    float bias = 0;\n";
    if (!is_backward(config.kind)) return "";
    return "    int first_q = q, first_kv = kv;\n"
           "    const float* tabulated = nullptr;\n"
           "    long long tabulated_count = 0;\n"
           "    int from_first = 0;\n"
           "    const float* staged = nullptr;\n"
           "    float bias = 0;\n";
}

} // namespace

const FamilyText& family_text() {
    static constexpr FamilyText kText = {
        .includes = [](const plan::KernelConfig& config) -> std::string_view {
            return is_forward(config) ? "#include \"sm90/forward_layout.h\"\n"
                                        "#include \"sm90/score_form.h\"\n"
                                      : "";
        },
        .constants = [](const TextInputs& from) -> std::string {
            return is_forward(from.config)
                       ? emit_forward_constants(from.config, from.mod, from.parts)
                       : "";
        },
        .members_of_at = members_of_at,
        .functions = [](const TextInputs& from, const SymbolTable& symbols,
                        int mask_instructions) -> std::string {
            return is_forward(from.config)
                       ? emit_logit_functions(symbols, from.config, from.parts, mask_instructions) +
                             emit_mma(from.config, from.options)
                       : "";
        },
        .has_mask_parts = true,
        .has_backward_policies = true};
    return kText;
}

} // namespace flexc::cuda::sm90
