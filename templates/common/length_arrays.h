// Lengths and pages of requests as arrays in a kernel's memory, for device and host: the record of
// each request, and what of the arrays cannot be right. What is wrong with an array costs its
// request rows or keys, and nothing is read outside of a tensor.
#pragma once

#include "common/sequences.h"

struct LengthArrays {
    // As flexc::Lengths has them; null where a layout has none, or a caller gives none.
    const int *cu_seqlens_q, *cu_seqlens_k, *seqused_q, *seqused_k;
    const int *page_table, *page_indptr, *page_indices, *last_page_len;
    const int* query_starts;
    int requests;
    int most_queries, most_keys; // of one request
    long long q_rows, kv_rows;   // of ragged tensors
    int table_width;             // of page_table: pages of a request
    int page_index_count;        // of page_indices
    int page_size, pages;        // of the cache; 0: keys are not paged
    int most_pages;              // of one request, for which there is room
    int farthest_start;          // how far from 0 the first q_idx and the last may be
    bool starts_at_end;          // where there are no query_starts
    int group, kv_heads;         // see Parts
    bool batch_invariant;        // the same
};

// What becomes of them.
struct SequenceRecords {
    Sequence* sequences; // [requests + 1]
    int* pages;          // [requests, most_pages]
    int* is_wrong;       // becomes 1 where an array is; may be null
};

namespace lengths {

// `number`, or the nearest that is allowed.
FLEXC_SHARED long long within(long long number, long long least, long long most, bool& is_wrong) {
    if (number >= least && number <= most) return number;
    is_wrong = true;
    return number < least ? least : most;
}

// Rows of one request along an axis, queries or keys without pages, and how many it uses.
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

// Pages of one request, in order.
struct Pages {
    const int* ids;
    int count;
};
FLEXC_SHARED Pages pages_of(const LengthArrays& arrays, int request, bool& is_wrong) {
    if (arrays.page_table != nullptr)
        return {arrays.page_table + static_cast<long long>(request) * arrays.table_width,
                arrays.table_width};
    const long long first =
        within(arrays.page_indptr[request], 0, arrays.page_index_count, is_wrong);
    const long long end =
        within(arrays.page_indptr[request + 1], first, arrays.page_index_count, is_wrong);
    return {arrays.page_indices + first, static_cast<int>(end - first)};
}

FLEXC_SHARED int keys_of(const LengthArrays& arrays, int request, int pages, bool& is_wrong) {
    long long slots = static_cast<long long>(pages) * arrays.page_size;
    if (arrays.last_page_len != nullptr && pages > 0)
        slots +=
            within(arrays.last_page_len[request], 1, arrays.page_size, is_wrong) - arrays.page_size;
    const long long used = arrays.seqused_k != nullptr ? arrays.seqused_k[request] : slots;
    return static_cast<int>(
        within(used, 0, slots < arrays.most_keys ? slots : arrays.most_keys, is_wrong));
}

FLEXC_SHARED int pages_that_hold(int keys, int page_size) {
    return (keys + page_size - 1) / page_size;
}

FLEXC_SHARED int start_of(const LengthArrays& arrays, int request, const Sequence& sequence,
                          bool& is_wrong) {
    long long start = arrays.starts_at_end ? sequence.kv_len - sequence.q_len : 0;
    if (arrays.query_starts != nullptr) start = arrays.query_starts[request];
    const long long farthest = arrays.farthest_start;
    return static_cast<int>(within(start, -farthest, farthest - sequence.q_len, is_wrong));
}

// Without its parts. `pages` are those that hold its keys; a page that the cache does not have ends
// them, which the caller finds out: see end_keys().
FLEXC_SHARED Sequence sequence_of(const LengthArrays& arrays, int request, Pages& pages,
                                  bool& is_wrong) {
    Sequence sequence{};
    const Rows queries = rows_of(arrays.cu_seqlens_q, arrays.seqused_q, request, arrays.q_rows,
                                 arrays.most_queries, is_wrong);
    sequence.q_row = queries.first;
    sequence.q_rows = queries.count;
    sequence.q_len = queries.used;
    if (arrays.page_size > 0) {
        pages = pages_of(arrays, request, is_wrong);
        sequence.kv_len = keys_of(arrays, request, pages.count, is_wrong);
        sequence.kv_rows = sequence.kv_len;
        sequence.first_page = static_cast<long long>(request) * arrays.most_pages;
        pages.count = pages_that_hold(sequence.kv_len, arrays.page_size);
    } else {
        const Rows keys = rows_of(arrays.cu_seqlens_k, arrays.seqused_k, request, arrays.kv_rows,
                                  arrays.most_keys, is_wrong);
        sequence.kv_row = keys.first;
        sequence.kv_rows = keys.count;
        sequence.kv_len = keys.used;
    }
    return sequence;
}

// The request's keys end before its page `page`.
FLEXC_SHARED void end_keys(Sequence& sequence, int page, int page_size) {
    sequence.kv_len = sequence.kv_rows = page * page_size;
}

} // namespace lengths
