// A call that has some heads of a larger whole (tensor parallelism): checks the plan's options, and
// binds the params and sizes through which the program sees the whole.
#pragma once

#include <cstdint>
#include <span>

#include "flexc/kernel.h"
#include "flexc/result.h"
#include "ir/program.h"

namespace flexc::runtime {

struct HeadPart {
    std::int64_t first = 0, first_kv = 0; // of the whole
    std::int64_t heads = 1, kv_heads = 1; // of the whole
};

// Whether passes::make_part made the program for some of the heads.
bool is_part_of_heads(const ir::Program& program);

// Fails if heads of a larger whole are given to a program that was not made for them.
Result<HeadPart> bind_heads(const ir::Program& program, const Sizes& sizes,
                            const PlanOptions& options);

// Sets the program's params and sizes that stand for the heads, as far as it has them.
void set_heads(const ir::Program& program, const HeadPart& part, std::span<std::int64_t> sizes,
               std::span<std::uint64_t> params);

// Whether a param is bound by set_heads().
bool is_of_heads(const ir::Param& param);

} // namespace flexc::runtime
