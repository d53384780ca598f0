// Which heads of a larger whole a call has: checks what a plan is told, and binds what the program
// reads of it.
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

// Of a program that passes::make_part made for some of the heads.
bool is_part_of_heads(const ir::Program& program);

// An error where a program is given heads of a larger whole and was not made for them.
Result<HeadPart> bind_heads(const ir::Program& program, const Sizes& sizes,
                            const PlanOptions& options);

// Params and sizes of the program that stand for them, of those that it has.
void set_heads(const ir::Program& program, const HeadPart& part, std::span<std::int64_t> sizes,
               std::span<std::uint64_t> params);

// Whether a param is bound by set_heads().
bool is_of_heads(const ir::Param& param);

} // namespace flexc::runtime
