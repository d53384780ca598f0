#include "plan/target.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "plan/arch/family.h"
#include "support/text.h"

namespace flexc::plan {

Result<Target> target_of(std::string_view arch) {
    const int number = arch_number(arch);
    if (number < 80) {
        std::vector<std::string> names;
        for (const int known : {80, 86, 89, 90, 100})
            names.push_back(arch_name(known));
        return Error{ErrorCode::invalid_option,
                     formatted("'{}' is not a supported architecture: give {} or {}", arch,
                               joined(names, ", "), arch_name(120))};
    }
    return Target{std::string(arch), number, arch.ends_with('a') || arch.ends_with('f')};
}

std::string arch_name(int number) {
    const bool has_own = std::ranges::any_of(families(), [number](const Family* family) {
        return family->has_own_instructions && family->runs_on(number);
    });
    return formatted("sm_{}{}", number, has_own ? "a" : "");
}

int arch_number(std::string_view name) {
    if (!name.starts_with("sm_")) return 0;
    name.remove_prefix(3);
    const char suffix = name.ends_with('a') || name.ends_with('f') ? name.back() : '\0';
    if (suffix != '\0') name.remove_suffix(1);
    int number = 0;
    const auto [end, failed] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (failed != std::errc{} || end != name.data() + name.size()) return 0;
    // Architecture-specific targets ("a") exist since sm_90, family-specific ones ("f") since
    // sm_100.
    const int first = suffix == 'a' ? 90 : suffix == 'f' ? 100 : 1;
    return number >= first ? number : 0;
}

} // namespace flexc::plan
