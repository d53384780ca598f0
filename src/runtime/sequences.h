// Lengths and pages of requests: from what a caller passes to what kernels read. Every check of
// them is here; messages name the array, the request and what was expected.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "common/length_arrays.h"
#include "common/sequences.h"
#include "flexc/kernel.h"
#include "flexc/result.h"

namespace flexc::runtime {

inline constexpr std::size_t kLengthArrays = 9; // those of Lengths

// Immutable: calls that run keep those that they began with.
class Sequences {
  public:
    // The work is left out; see `work`.
    static Result<std::shared_ptr<Sequences>> read(Layout queries, Layout keys, const Sizes& sizes,
                                                   const Lengths& lengths);
    // Of arrays that come later, see Lengths::on_device: no request has anything until then.
    static Result<std::shared_ptr<Sequences>> later(Layout queries, Layout keys, const Sizes& sizes,
                                                    const Lengths& lengths);
    // What the host knows of lengths that only the device knows: the cache, and where queries
    // start, which are those of `like`.
    static std::shared_ptr<Sequences> on_device(Layout queries, Layout keys, const Sizes& sizes,
                                                const Sequences& like);

    // These lengths, with pages and starts as here. Nothing of the tensors is read.
    Result<Lengths> given_by(const LengthTensors& tensors) const;
    // What a device reads of lengths in its memory, all but the rows of packed tensors.
    static Result<LengthArrays> arrays(Layout queries, Layout keys, const Sizes& sizes,
                                       const Lengths& lengths);

    SequenceArguments view() const;
    // Keeps them for check_same().
    void keep(const Lengths& lengths);
    // Whether these are the lengths that were kept, as far as they are given.
    Result<void> check_same(const LengthTensors& tensors) const;

    // Divides the keys of requests with few queries for a GPU: of all together, or of each by
    // itself.
    void divide_keys(const Sizes& sizes, bool batch_invariant);
    // What kernels on a device read, one behind the other: all sequences, one more that ends the
    // list of parts, pages.
    std::array<std::span<const std::byte>, 3> pieces() const;

    std::vector<Sequence> sequences;
    std::vector<SequenceWork> work;
    std::int64_t q_rows = 0, kv_rows = 0; // that packed tensors have to have
    std::int64_t page_size = 0, pages = 0;
    QueryStart start = QueryStart::zero; // never automatic
    bool is_on_device = false;           // only the device knows the lengths

  private:
    std::vector<int> page_ids_;
    Sequence end_{}; // first_part: how many parts there are
    std::array<std::vector<std::int32_t>, kLengthArrays> given_; // as they were
};

// What a plan's copies share.
class SequenceState {
  public:
    // On a device, at one address for the plan's life, so that launches in graphs read what the
    // last update wrote. Null where launches read host memory.
    std::shared_ptr<void> memory;
    SequenceArguments device_view(const Sizes& sizes, std::int64_t page_size) const;
    SequenceRecords records(const Sizes& sizes) const; // in `memory`
    // Of `memory`, for as many requests and keys as the plan allows.
    static std::size_t bytes_for(const Sizes& sizes, std::int64_t page_size);

    std::shared_ptr<const Sequences> get() const {
        const std::lock_guard lock(mutex_);
        return sequences_;
    }
    void set(std::shared_ptr<const Sequences> sequences) {
        const std::lock_guard lock(mutex_);
        sequences_.swap(sequences);
    }

  private:
    mutable std::mutex mutex_;
    std::shared_ptr<const Sequences> sequences_;
};

} // namespace flexc::runtime
