// The variants of a pass on a GPU, and which of them takes a call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "runtime/loaded_pass.h"

namespace flexc::runtime {

// The first variant is loaded from the start, the others when a call needs them.
class LoadedVariants {
  public:
    LoadedVariants(LoadedPass first, CudaVariants variants, int device);

    const LoadedPass& first() const { return *loaded_[0]; }
    // Returns a variant that choose() has returned before.
    const LoadedPass& chosen(std::size_t variant) const;

    // Chooses the variant for a call, and compiles it if needed, with no lock held. visible_keys:
    // that a query of dense tensors may see.
    Result<std::size_t> choose(const Call& call, const cuda::TensorForm& form,
                               std::int64_t visible_keys) const;

  private:
    Result<const LoadedPass*> find(std::size_t variant) const;
    std::optional<std::size_t> choose_by_size(const Call& call, const cuda::TensorForm& form,
                                              std::int64_t visible_keys) const;
    void give_up(std::size_t variant) const;
    bool is_given_up(std::size_t variant) const;

    std::vector<CudaVariant> all_;
    std::function<Result<CudaPass>(std::size_t)> compile_;
    int device_;
    mutable std::mutex mutex_;
    mutable std::vector<std::optional<LoadedPass>> loaded_; // never shrinks or grows
    mutable std::vector<bool> given_up_;                    // variants that could not be compiled
};

} // namespace flexc::runtime
