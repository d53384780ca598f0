// What a kernel requires of the tensors of a call: shapes by its layouts, types and alignment.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "flexc/kernel.h"
#include "flexc/result.h"
#include "runtime/keys/reader.h"
#include "runtime/state.h"

namespace flexc::runtime {

// The requirements on one tensor. Its name is for messages.
struct TensorRule {
    const char* name = nullptr;
    const TensorView* tensor = nullptr;
    std::array<std::int64_t, 4> shape{};
    int rank = 0;
    bool required = false;
    bool allows_f32 = false; // as an alternative to the kernel's type
    bool requires_f32 = false;
    bool is_written = false;
    bool may_be_longer = false;      // its first dim may be larger than expected
    std::optional<DType> dtype = {}; // if it is not the kernel's
};
// A rule with a requirement changed: the tensor may be absent; may be f32; is written.
TensorRule optional(TensorRule rule);
TensorRule or_f32(TensorRule rule);
TensorRule written(TensorRule rule, bool requires_f32 = false);

Result<void> check_all(std::span<const TensorRule> rules, DType kernel_dtype);

// The requirements on tensors of queries and keys, by the kernel's layouts.
class TensorRules {
  public:
    // sequences: lengths of the call's requests; null for dense tensors.
    TensorRules(const detail::KernelState& kernel, const Sizes& sizes, const Sequences* sequences);

    TensorRule of_queries(const char* name, const TensorView& tensor, std::int64_t columns) const;
    TensorRule of_rows(const char* name, const TensorView& tensor) const; // one f32 for each query
    TensorRule of_keys(const char* name, const TensorView& tensor, std::int64_t columns) const;
    // Checks the scale of keys or values in a narrow type.
    Result<void> check_scale(const char* name, const TensorView& scale) const;

  private:
    // Returns the extents of k and v. Ragged keys are packed into one entry; for them the number of
    // entries is the batch, which is the extent of scales.
    KeyExtents extents_of_keys() const;

    const Sizes& sizes_;
    Layout queries_, keys_;
    const Sequences* sequences_;
    std::optional<DType> kv_dtype_;
};

} // namespace flexc::runtime
