// Lengths of requests: from what a caller passes to what kernels read. Every check of them is here,
// or, where it is of the way that keys lie, in keys/; messages name the array, the request and what
// was expected.
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
#include "runtime/keys/reader.h"
#include "runtime/length_checks.h"

namespace flexc::runtime {

// Immutable: calls that run keep those that they began with.
class Sequences {
  public:
    // The work is left out; see `work`.
    static Result<std::shared_ptr<Sequences>> read(Layout queries, Layout keys, const Sizes& sizes,
                                                   const Lengths& lengths);
    // Of arrays that come later, see Lengths::on_device: no request has anything until then.
    static Result<std::shared_ptr<Sequences>> later(Layout queries, Layout keys, const Sizes& sizes,
                                                    const Lengths& lengths);
    // What the host knows of lengths that only the device knows: what is beside arrays, which is
    // that of `like`.
    static std::shared_ptr<Sequences> on_device(Layout queries, Layout keys, const Sizes& sizes,
                                                const Sequences& like);

    // These lengths, with what is beside arrays as here. Nothing of the tensors is read.
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
    // With `numbers` in the memory of those that read it.
    KeyTable key_table(const int* numbers) const;
    // What kernels on a device read, one behind the other: all sequences, one more that ends the
    // list of parts, numbers of the key table.
    std::array<std::span<const std::byte>, 3> pieces() const;

    std::vector<Sequence> sequences;
    std::vector<SequenceWork> work;
    std::int64_t q_rows = 0, kv_rows = 0; // that packed tensors have to have
    KeyExtents key_extents;               // of keys that are not in order
    // At most, of a request in the key table.
    std::int64_t most_numbers(const Sizes& sizes) const {
        return reader_->most_numbers(sizes, key_extents);
    }
    bool is_on_device = false; // only the device knows the lengths

  private:
    Result<void> set_extents(Layout keys, const Sizes& sizes, const Lengths& lengths);

    const KeyReader* reader_ = &kKeysInOrder;
    Lengths beside_; // what lengths have beside arrays; query_start is never automatic
    std::vector<int> numbers_;
    Sequence end_{}; // first_part: how many parts there are
    std::array<std::vector<std::int32_t>, kLengthArrays.size()> given_; // as they were
};

// What a plan's copies share.
class SequenceState {
  public:
    // On a device, at one address for the plan's life, so that launches in graphs read what the
    // last update wrote. Null where launches read host memory.
    std::shared_ptr<void> memory;
    SequenceArguments device_view(const Sizes& sizes, const Sequences& sequences) const;
    SequenceRecords records(const Sizes& sizes) const; // in `memory`
    // Of `memory`, for as many requests and keys as the plan allows.
    static std::size_t bytes_for(const Sizes& sizes, const Sequences& sequences);

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
