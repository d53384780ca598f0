// Lengths and keys of requests as arrays in a kernel's memory, for device and host, and checks of
// their values: sequence_records.h makes records of them. A wrong value costs its request rows or
// keys, so that nothing is read outside of a tensor.
#pragma once

#include "common/sequences.h"

struct LengthArrays {
    // As in flexc::Lengths; null if the layout has none, or the caller gave none.
#define FLEXC_LENGTH_ARRAY(name, dims) const int* name;
#include "common/lengths.def"
    int requests;
    int most_queries, most_keys; // of one request
    long long q_rows, kv_rows;   // of ragged tensors
    int table_width;             // of page_table: pages of a request
    int page_index_count;        // of page_indices
    int key_layout;              // KeyTable::layout
    int entries, entry_rows;     // of k and v, if keys are not in order
    int most_numbers;            // room for one request in KeyTable::numbers
    int farthest_start;          // how far from 0 the first q_idx and the last may be
    bool starts_at_end;          // without query_starts, the last query is at the last key
    int group, kv_heads;         // see has_few_rows()
    bool batch_invariant;        // keys of each request are divided by themselves
};

// Where the records of these arrays are written.
struct SequenceRecords {
    Sequence* sequences; // [requests + 1]
    int* numbers;        // [requests, most_numbers], KeyTable::numbers
    int* is_wrong;       // set to 1 if a value of an array is wrong; may be null
};

namespace lengths {

// Returns `number`, or the nearest that is allowed, and sets is_wrong then.
FLEXC_SHARED long long within(long long number, long long least, long long most, bool& is_wrong) {
    if (number >= least && number <= most) return number;
    is_wrong = true;
    return number < least ? least : most;
}

// Rows of one request along an axis, queries or keys in order, and how many it uses.
struct Rows {
    long long first;
    int count, used;
};
FLEXC_SHARED Rows rows_of(const int* cu_seqlens, const int* seqused, int request,
                          long long all_rows, int most, bool& is_wrong) {
    Rows rows{0, most, 0};
    if (cu_seqlens != nullptr) {
        rows.first = within(cu_seqlens[request], 0, all_rows, is_wrong);
        const long long end = within(cu_seqlens[request + 1], rows.first, all_rows, is_wrong);
        rows.count = static_cast<int>(end - rows.first);
    }
    const int used = seqused != nullptr ? seqused[request] : rows.count;
    rows.used = static_cast<int>(within(used, 0, rows.count < most ? rows.count : most, is_wrong));
    return rows;
}

// Numbers that say where a request's keys lie, for KeyTable::numbers.
struct Numbers {
    const int* from;
    int count;
    int below; // keys end before the first number that is not in [0, below)
    int keys;  // that one number stands for
};

// Returns q_idx of the request's first query.
FLEXC_SHARED int start_of(const LengthArrays& arrays, int request, const Sequence& sequence,
                          bool& is_wrong) {
    long long start = arrays.starts_at_end ? sequence.kv_len - sequence.q_len : 0;
    if (arrays.query_starts != nullptr) start = arrays.query_starts[request];
    const long long farthest = arrays.farthest_start;
    return static_cast<int>(within(start, -farthest, farthest - sequence.q_len, is_wrong));
}

} // namespace lengths
