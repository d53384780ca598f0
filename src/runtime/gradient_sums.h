// Gradients of buffers that kernels sum in other memory first, because the mode is deterministic or
// the gradient's type is not f32, and the launches that round these sums.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/driver.h"
#include "plan/pass.h"
#include "runtime/executable.h"

namespace flexc::runtime {

// The argument words of one call, some of which can be replaced.
class Words {
  public:
    explicit Words(std::span<const std::uint64_t> words);
    void set(std::size_t at, std::uint64_t value) { words_[at] = value; }
    std::span<const std::uint64_t> all() const { return std::span(words_).first(count_); }

  private:
    std::array<std::uint64_t, passes::kMaxArgumentWords> words_;
    std::size_t count_;
};

// Sets the argument words of these gradients to their sums: one exact::Sum for each element, one
// buffer after another.
void name_exact_sums(const std::vector<plan::ExactGradient>& gradients, const Call& call,
                     void* sums, Words& words);
// Launches the kernel that adds the sums to the call's gradients.
Result<void> round_exact_sums(const std::vector<plan::ExactGradient>& gradients, const Call& call,
                              void* sums, const plan::KernelConfig& config,
                              const cuda::Function& kernel);

// Returns how many KV heads a launch takes if heads that add to the same gradient elements must run
// in different launches.
int heads_of_launch(passes::HeadsAtOnce at_once, const AttentionArguments& attention);

// Whether the blocks of a backward may store these gradients first: the call has all of their
// queries and keys, and does not accumulate.
bool are_stored_first(const plan::StoredGradients& stored, const Call& call);
// Whether the blocks store each element of this buffer's gradient exactly once. Does not look at
// accumulate_gradients.
bool are_lines_stored(const plan::StoredGradients& stored, const Call& call, std::uint32_t buffer);

// Converts gradients that were summed in f32 to another type.
Result<void> round_sums(const TensorView& from, const TensorView& to,
                        const plan::KernelConfig& config, const cuda::Function& kernel,
                        Stream stream);

} // namespace flexc::runtime
