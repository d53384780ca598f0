// Allocations of this process, one of which can be made to fail.
#pragma once

#include <cstdint>

namespace flexc::test {

enum class Failing : std::uint8_t { once, from_then_on };
// The allocation after `before` others fails, in whatever thread.
void fail_after(std::int64_t before, Failing how);
void fail_no_more();
bool has_failed();          // since fail_after
std::int64_t living();      // allocations that were not freed
std::int64_t allocations(); // since the process began

} // namespace flexc::test
