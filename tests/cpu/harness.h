// Runs a program on the CPU backend over memory of chosen types and layouts, and compares with the
// attention oracle.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attention_oracle.h"
#include "cpu/executable.h"
#include "passes/mod.h"

namespace flexc::test {

enum class MemoryLayout {
    contiguous,
    heads_inside, // [B, S, H, D]
    padded,       // rows longer than D
    reversed,     // negative strides
    scattered     // no stride is 1
};

struct RunOptions {
    DType dtype = DType::f32;
    MemoryLayout layout = MemoryLayout::contiguous;
    int threads = 2;
    bool backward = true;
    bool report_out_of_range = false;
    unsigned output_flags = 0; // OutputFlag for o, dq, dk, dv
    double output_start = 0;   // what outputs hold before
    double gradient_start = 0; // what gradients of captured buffers hold before
    double lse_added = 0;      // to the forward's lse, before the backward: as if of more keys
};

struct Outcome {
    Answer answer;
    bool out_of_range = false;
    // Bits of every output, to compare two runs.
    std::vector<float> bits() const;
};

// Text to a program; fails the test with the diagnostics if it is wrong.
ir::Program program_of(const std::string& text);
passes::Mod mod_of(const ir::Program& program, const Problem& problem, const RunOptions& options);

// Sizes, random tensors and captured buffers that suit the program. Sizes of the program's own are
// 7 unless given.
Problem make_problem(const ir::Program& program, Problem shape, std::uint64_t seed,
                     const std::map<std::string, std::int64_t>& sizes = {});

std::shared_ptr<const cpu::Executable> compile_for(const passes::Mod& mod, const Problem& problem,
                                                   const RunOptions& options,
                                                   std::optional<std::string_view> object = {});
Outcome run(const passes::Mod& mod, const cpu::Executable& executable, const Problem& problem,
            const RunOptions& options);
Outcome run(const ir::Program& program, const Problem& problem, const RunOptions& options = {});

// Fails the current test where a value is further off than the type allows. Values of the problem
// should be exact in the type.
void check_close(const Outcome& outcome, const Answer& expected, const RunOptions& options);
// All of it: run, oracle, compare.
void check(const std::string& text, const Problem& shape, const RunOptions& options = {},
           std::uint64_t seed = 1, const std::map<std::string, std::int64_t>& sizes = {});

} // namespace flexc::test
