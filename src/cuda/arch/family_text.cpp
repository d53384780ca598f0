#include "cuda/arch/family_text.h"

#include <algorithm>
#include <array>

#include "plan/arch/family.h"

namespace flexc::cuda {

#define FLEXC_FAMILY(name)                                                                         \
    namespace name {                                                                               \
    const FamilyText& family_text();                                                               \
    }
#include "plan/arch/families.def"

const FamilyText& family_text(const plan::KernelConfig& config) {
    static const std::array kTexts = {
#define FLEXC_FAMILY(name) &name::family_text(),
#include "plan/arch/families.def"
    };
    const auto families = plan::families(); // of the same list
    const auto own = std::ranges::find(families, &plan::family_of(config));
    return *kTexts[static_cast<std::size_t>(own - families.begin())];
}

} // namespace flexc::cuda
