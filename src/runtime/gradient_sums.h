// Gradients of buffers that kernels sum elsewhere, in deterministic mode or because they have
// another type than f32, and how the sums become gradients.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/driver.h"
#include "plan/pass.h"
#include "runtime/bind.h"
#include "runtime/executable.h"

namespace flexc::runtime {

// Argument words of one call, some of which stand for others than the caller's.
class Words {
  public:
    explicit Words(std::span<const std::uint64_t> words);
    void set(std::size_t at, std::uint64_t value) { words_[at] = value; }
    std::span<const std::uint64_t> all() const { return std::span(words_).first(count_); }

  private:
    std::array<std::uint64_t, passes::kMaxArgumentWords> words_;
    std::size_t count_;
};

// One exact::Sum for each element of those gradients, one buffer after the other.
void name_exact_sums(const std::vector<plan::ExactGradient>& gradients, const Call& call,
                     void* sums, Words& words);
// Adds the sums to the gradients of the call.
Result<void> round_exact_sums(const std::vector<plan::ExactGradient>& gradients, const Call& call,
                              void* sums, const plan::KernelConfig& config,
                              const cuda::Function& kernel);

// How many heads of keys a launch has whose heads add to the same gradients one by one.
int heads_of_launch(passes::HeadsAtOnce at_once, const AttentionArguments& attention);

// Whether the blocks of a backward may store these gradients first: the call has all of their
// queries and keys, and adds to nothing.
bool are_stored_first(const plan::StoredGradients& stored, const Call& call);
// Whether they store all of this buffer's, each element once, unless the call adds to gradients.
bool are_lines_stored(const plan::StoredGradients& stored, const Call& call, std::uint32_t buffer);

// Gradients that were summed in f32, in another type.
Result<void> round_sums(const TensorView& from, const TensorView& to,
                        const plan::KernelConfig& config, const cuda::Function& kernel,
                        Stream stream);

} // namespace flexc::runtime
