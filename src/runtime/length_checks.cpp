#include "runtime/length_checks.h"

#include "runtime/buffers.h"
#include "support/text.h"

namespace flexc::runtime {

Result<void> check_count(std::string_view name, Numbers numbers, std::int64_t expected) {
    if (static_cast<std::int64_t>(numbers.size()) == expected) return {};
    if (numbers.empty())
        return invalid(formatted("{}: missing; expected {} numbers", name, expected));
    return invalid(formatted("{}: expected {} numbers, got {}", name, expected, numbers.size()));
}

Result<void> check_absent(std::string_view name, Numbers numbers, std::string_view reason) {
    if (numbers.empty()) return {};
    return invalid(formatted("{}: {}", name, reason));
}

Result<void> check_ascending(std::string_view name, Numbers numbers) {
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        const std::int32_t before = i == 0 ? 0 : numbers[i - 1];
        if (numbers[i] >= before) continue;
        if (i == 0)
            return invalid(formatted("{}[0] is {}; it must not be negative", name, numbers[i]));
        return invalid(formatted("{}[{}] is {}, which is below {}[{}] = {}: it must ascend", name,
                                 i, numbers[i], name, i - 1, before));
    }
    return {};
}

} // namespace flexc::runtime
