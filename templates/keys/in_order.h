// Keys of a request side by side, in dense or ragged tensors.
#pragma once

#include "common/length_arrays.h"
#include "common/sequences.h"

class KeysInOrder {
  public:
    static constexpr bool kAreInOrder = true;
    static constexpr int kLayout = 0;

    FLEXC_SHARED KeysInOrder(const KeyTable&, const Sequence& sequence, int request)
        : first_(sequence.kv_row), request_(request) {}

    // Reads the request's keys from arrays of lengths, into its record.
    FLEXC_SHARED static lengths::Numbers read_lengths(const LengthArrays& arrays, int request,
                                                      Sequence& sequence, bool& is_wrong) {
        const lengths::Rows keys = lengths::rows_of(arrays.cu_seqlens_k, arrays.seqused_k, request,
                                                    arrays.kv_rows, arrays.most_keys, is_wrong);
        sequence.kv_row = keys.first;
        sequence.kv_rows = keys.count;
        sequence.kv_len = keys.used;
        return {};
    }

    FLEXC_SHARED KeyPlace place(int key) const {
        return {request_, static_cast<int>(first_ + key)};
    }
    // Returns the longest run from key `key` on, up to `most` keys.
    FLEXC_SHARED KeyRun run(int key, int most) const { return {request_, first_ + key, most}; }
    // Returns kv_row of the language.
    FLEXC_SHARED long long row(int key) const { return first_ + key; }

  private:
    long long first_; // row of the first key, in dense tensors within the batch entry
    int request_;
};
