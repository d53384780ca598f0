#include "plan/arch/family.h"

#include <array>

namespace flexc::plan {

#define FLEXC_FAMILY(name)                                                                         \
    namespace name {                                                                               \
    const Family& family();                                                                        \
    }
#include "plan/arch/families.def"

std::span<const Family* const> families() {
    static const std::array kFamilies = {
#define FLEXC_FAMILY(name) &name::family(),
#include "plan/arch/families.def"
    };
    return kFamilies;
}

const Family& family_of(const KernelConfig& config) {
    for (const Family* family : families())
        if (family->name == config.family) return *family;
    return *families().back();
}

bool is_generic(const KernelConfig& config) { return &family_of(config) == families().back(); }

int shared_memory_limit(int arch) {
    // For each block, the driver reserves one KiB of a multiprocessor's shared memory.
    switch (arch) {
    case 80:
    case 87: return 163 * 1024;
    case 86:
    case 89: return 99 * 1024;
    default: return arch >= 90 && arch < 120 ? 227 * 1024 : 99 * 1024;
    }
}

} // namespace flexc::plan
