#include "cuda/arch/family_text.h"

namespace flexc::cuda::sm80 {

const FamilyText& family_text() {
    static constexpr FamilyText kText = {
        .members_of_at = [](const plan::KernelConfig& config) -> std::string_view {
            return config.sequences.is_short ? "    float shared_value = 0;\n" : "";
        }};
    return kText;
}

} // namespace flexc::cuda::sm80
