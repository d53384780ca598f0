// Gradients of buffers that kernels sum elsewhere, in deterministic mode or because they have
// another type than f32, and how the sums become gradients.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/config.h"
#include "cuda/driver.h"
#include "passes/gradient_order.h"
#include "runtime/bind.h"
#include "runtime/executable.h"

namespace flexc::runtime {

// A gradient that is summed exactly, and the argument word that names the sums.
struct ExactGradient {
    std::uint32_t buffer = 0;
    std::size_t word = 0;
};

// Launches of the kernel that adds dense gradients, and the word that tells it where one starts.
struct HeadTurns {
    passes::HeadsAtOnce at_once = passes::HeadsAtOnce::all;
    std::size_t word = 0;

    int heads_of_launch(const AttentionArguments& attention) const;
};

// Argument words of one call, some of which stand for others than the caller's.
class Words {
  public:
    explicit Words(std::span<const std::uint64_t> words);
    void set(std::size_t at, std::uint64_t value) { words_[at] = value; }
    std::span<const std::uint64_t> all() const { return std::span(words_).first(count_); }

  private:
    std::array<std::uint64_t, kMaxArgumentWords> words_;
    std::size_t count_;
};

// One exact::Sum for each element of those gradients, one buffer after the other.
std::size_t exact_sum_bytes(const std::vector<ExactGradient>& gradients, const Call& call);
void name_exact_sums(const std::vector<ExactGradient>& gradients, const Call& call, void* sums,
                     Words& words);
// Adds the sums to the gradients of the call.
Result<void> round_exact_sums(const std::vector<ExactGradient>& gradients, const Call& call,
                              void* sums, const cuda::KernelConfig& config,
                              const cuda::Function& kernel);

// Gradients that were summed in f32, in another type.
Result<void> round_sums(const TensorView& from, const TensorView& to,
                        const cuda::KernelConfig& config, const cuda::Function& kernel,
                        Stream stream);

} // namespace flexc::runtime
