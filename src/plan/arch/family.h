// A family of architectures: which kernels it has, what these cannot do, their configurations, and
// the steps of a pass with them. Everything that is peculiar to it is in its folder.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "plan/kernel.h"
#include "plan/pass.h"
#include "plan/target.h"

namespace flexc::plan {

class Program;

struct Family {
    std::string_view name;   // "sm90"
    std::string_view called; // "Hopper"
    bool (*runs_on)(int arch);
    // What a user should know who compiles for this target; empty: nothing.
    std::string_view (*warning)(const Target& target);
    // Why its kernels are none for the request; empty: they are. Asked of forward and of the
    // backward kernels that compute dk and dv.
    std::string_view (*why_not)(const KernelRequest& request);
    // Configurations for a request that it can do, best first. is_last_resort: of other families,
    // all have been refused before these.
    std::vector<KernelConfig> (*candidates)(const KernelRequest& request, bool is_last_resort);
    // How a block of the forward may divide its work, the family's own choice first; null: in one
    // way only.
    std::vector<ForwardSchedule> (*schedules)(const KernelRequest& request);
    // The pass whose main kernel is one of those candidates.
    PassPlan (*forward)(const Program& program, const KernelConfig& main);
    PassPlan (*backward)(const Program& program, const KernelConfig& main);
};

// Most special first. The last one can do every request within the language's limits.
std::span<const Family* const> families();
const Family& family_of(const KernelConfig& config);

// Dynamic shared memory that one block may have, in bytes.
int shared_memory_limit(int arch);

constexpr int round_up_16(int x) { return (x + 15) / 16 * 16; }
// Columns of the matrix instructions, and panels of 64 columns in shared memory, of a row.
constexpr int padded_columns(int columns) { return round_up_16(columns); }
constexpr int panels(int columns) { return (columns + 63) / 64; }

} // namespace flexc::plan
