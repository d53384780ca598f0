#include "cuda/arch/family_text.h"

#include "plan/arch/family.h"

namespace flexc::cuda {

#define FLEXC_FAMILY(name)                                                                         \
    namespace name {                                                                               \
    const FamilyText& family_text();                                                               \
    }
#include "plan/arch/families.def"

const FamilyText& family_text(const plan::KernelConfig& config) {
    const std::string_view family = plan::family_of(config).name;
#define FLEXC_FAMILY(name)                                                                         \
    if (family == #name) return name::family_text();
#include "plan/arch/families.def"
    static const FamilyText kNothing;
    return kNothing;
}

bool has_backward_policies(const plan::KernelConfig& config) {
    return (is_backward(config.kind) || config.kind == plan::KernelKind::delta ||
            config.kind == plan::KernelKind::convert) &&
           family_text(config).has_backward_policies;
}

} // namespace flexc::cuda
