// Makes the record of a request from arrays of lengths, for device and host.
#pragma once

#include "common/length_arrays.h"
#include "keys/all.h"

namespace lengths {

// Returns a request's record, without q_start and parts. numbers: those that say where its keys
// lie; the caller copies them, and finds whether they end early: see end_keys().
FLEXC_SHARED Sequence sequence_of(const LengthArrays& arrays, int request, Numbers& numbers,
                                  bool& is_wrong) {
    Sequence sequence{};
    const Rows queries = rows_of(arrays.cu_seqlens_q, arrays.seqused_q, request, arrays.q_rows,
                                 arrays.most_queries, is_wrong);
    sequence.q_row = queries.first;
    sequence.q_rows = queries.count;
    sequence.q_len = queries.used;
    sequence.first_number = static_cast<long long>(request) * arrays.most_numbers;
    with_key_layout(arrays.key_layout, [&](auto layout) {
        numbers = decltype(layout)::Keys::read_lengths(arrays, request, sequence, is_wrong);
    });
    return sequence;
}

// Ends the request's keys before its number `end`.
FLEXC_SHARED void end_keys(Sequence& sequence, int end, const Numbers& numbers) {
    sequence.kv_len = sequence.kv_rows = end * numbers.keys;
}

} // namespace lengths
