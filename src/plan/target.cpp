#include "plan/target.h"

#include <charconv>

#include "support/text.h"

namespace flexc::plan {

Result<Target> target_of(std::string_view arch) {
    const int number = arch_number(arch);
    if (number < 80)
        return Error{ErrorCode::invalid_option,
                     formatted("'{}' is not a supported architecture: give sm_80, sm_86, sm_89, "
                               "sm_90a, sm_100 or sm_120",
                               arch)};
    return Target{std::string(arch), number, arch.ends_with('a') || arch.ends_with('f')};
}

std::string arch_name(int number) {
    // Only sm_90a has wgmma and setmaxnreg.
    return formatted("sm_{}{}", number, number == 90 ? "a" : "");
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
