// Converts the lengths of requests from what a caller passes to what kernels read. All checks of
// lengths are here, or in keys/ if they depend on the layout of keys. Messages name the array, the
// request and what was expected.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "common/length_arrays.h"
#include "common/sequences.h"
#include "flexc/kernel.h"
#include "flexc/result.h"
#include "plan/few_work.h"
#include "runtime/keys/reader.h"
#include "runtime/length_checks.h"

namespace flexc::runtime {

// Immutable once set, so that a running call keeps the lengths that it began with.
class Sequences {
  public:
    // Reads and checks lengths in host memory. Does not fill `work`.
    static Result<std::shared_ptr<Sequences>> read(Layout queries, Layout keys, const Sizes& sizes,
                                                   const Lengths& lengths);
    // Returns lengths whose arrays come later, see Lengths::on_device. All requests are empty until
    // then.
    static Result<std::shared_ptr<Sequences>> later(Layout queries, Layout keys, const Sizes& sizes,
                                                    const Lengths& lengths);
    // Returns what the host knows of lengths whose arrays only the device reads: the values other
    // than arrays, which are those of `like`.
    static std::shared_ptr<Sequences> on_device(Layout queries, Layout keys, const Sizes& sizes,
                                                const Sequences& like);

    // Returns lengths with the arrays of `tensors` and all other values as here. Does not read the
    // tensors' elements.
    Result<Lengths> given_by(const LengthTensors& tensors) const;
    // Returns what kernels read of lengths in device memory, except the rows of packed tensors.
    static Result<LengthArrays> arrays(Layout queries, Layout keys, const Sizes& sizes,
                                       const Lengths& lengths);

    SequenceArguments view() const;
    // Keeps a copy of the lengths for check_same().
    void keep(const Lengths& lengths);
    // Returns an error if a given array differs from the one that was kept.
    Result<void> check_same(const LengthTensors& tensors) const;

    // Divides the keys of requests with few queries into parts for a GPU: over all requests
    // together, or if batch_invariant for each request by itself. Sets few_work().
    void divide_keys(const Sizes& sizes, bool batch_invariant);
    // Returns the key table; `numbers` is where its reader finds KeyTable::numbers.
    KeyTable key_table(const int* numbers) const;
    // Returns the bytes that kernels on a device read, in this order: all sequences, one more that
    // ends the list of parts, and the numbers of the key table.
    std::array<std::span<const std::byte>, 3> pieces() const;

    std::vector<Sequence> sequences;
    std::vector<SequenceWork> work;
    std::int64_t q_rows = 0, kv_rows = 0; // least rows of packed tensors
    KeyExtents key_extents;               // set if keys are not in order
    // Returns the largest number of entries of a request in the key table.
    std::int64_t most_numbers(const Sizes& sizes) const {
        return reader_->most_numbers(sizes, key_extents);
    }
    bool is_on_device = false; // only the device knows the lengths
    const plan::FewWork& few_work() const { return few_work_; }

  private:
    Result<void> set_extents(Layout keys, const Sizes& sizes, const Lengths& lengths);

    const KeyReader* reader_ = &kKeysInOrder;
    Lengths beside_; // the values other than arrays; query_start is never automatic
    std::vector<int> numbers_;
    Sequence end_{}; // end of the list; its first_part is the number of parts
    plan::FewWork few_work_;
    std::array<std::vector<std::int32_t>, kLengthArrays.size()> given_; // copies for check_same()
};

// The state of lengths that copies of a plan share.
class SequenceState {
  public:
    // Device memory whose address never changes, so that launches in graphs read what the last
    // update wrote. Null if launches read host memory.
    std::shared_ptr<void> memory;
    SequenceArguments device_view(const Sizes& sizes, const Sequences& sequences) const;
    SequenceRecords records(const Sizes& sizes) const; // within `memory`
    // Returns the size of `memory` for as many requests and keys as the plan allows.
    static std::size_t bytes_for(const Sizes& sizes, const Sequences& sequences);

    std::shared_ptr<const Sequences> get() const {
        const std::lock_guard lock(mutex_);
        return sequences_;
    }
    void set(std::shared_ptr<const Sequences> sequences) {
        const std::lock_guard lock(mutex_);
        sequences_.swap(sequences);
    }

    // Says that the device writes records from here on: a graph may do so again at any time,
    // whatever the host sets.
    void let_device_write() { device_writes_ = true; }
    // Returns the work of these lengths if launches will find their records in `memory`, else null.
    const plan::FewWork* known_work(const Sequences& sequences) const {
        return device_writes_ || sequences.is_on_device ? nullptr : &sequences.few_work();
    }

  private:
    std::atomic<bool> device_writes_ = false;
    mutable std::mutex mutex_;
    std::shared_ptr<const Sequences> sequences_;
};

} // namespace flexc::runtime
