// Where the requests of ragged and paged tensors lie. THE place that says which row of memory a
// query or a key of a request has, for device and host.
#pragma once

#include "common/host_device.h"

// Of one request. Rows of dense tensors count within it, those of others in the packed tensor.
struct Sequence {
    long long q_row, kv_row; // the first; kv_row is not of paged keys
    long long first_page;    // in SequenceArguments::pages
    int q_len, kv_len;       // used
    int q_rows, kv_rows;     // there are: those behind the used ones are none of the request's
    int q_start;             // q_idx of the first query
    int first_part;          // on a GPU: see part_count; one more record ends the list
};

// On a GPU, requests with few queries have their keys divided over blocks: a part of the keys for
// each head of keys, with the queries of all heads that share it, kMostFewRows rows at most.
constexpr int kMostFewRows = 64;
constexpr int kPartBlocks = 660;   // as many as a large GPU has at once, all requests together
constexpr int kOwnPartBlocks = 64; // of one request, where each is divided by itself
constexpr int kLeastPartKeys = 256;

// group: heads of queries that share one of keys.
FLEXC_SHARED bool has_few_rows(const Sequence& sequence, int group) {
    return sequence.q_len <= kMostFewRows / group;
}
// How many keys a part has, where those that share `blocks` have so many together.
FLEXC_SHARED long long part_keys(long long all_keys, int kv_heads, int blocks) {
    const int parts = blocks / kv_heads > 1 ? blocks / kv_heads : 1;
    const long long keys = (all_keys + parts - 1) / parts;
    return keys > kLeastPartKeys ? keys : kLeastPartKeys;
}
// Of one request: at least one where it has queries.
FLEXC_SHARED int part_count(const Sequence& sequence, int group, long long keys_of_part) {
    if (sequence.q_len == 0 || !has_few_rows(sequence, group)) return 0;
    const long long parts = (sequence.kv_len + keys_of_part - 1) / keys_of_part;
    return parts > 1 ? static_cast<int>(parts) : 1;
}

// The same, where requests with few queries have so many keys together; batch_invariant: as if each
// were alone.
FLEXC_SHARED int parts_of(const Sequence& sequence, int group, int kv_heads, long long all_keys,
                          bool batch_invariant) {
    return part_count(sequence, group,
                      batch_invariant ? part_keys(sequence.kv_len, kv_heads, kOwnPartBlocks)
                                      : part_keys(all_keys, kv_heads, kPartBlocks));
}

// A piece of work: queries of some heads, which share one head of keys or are all that share some,
// and a range of keys.
struct SequenceWork {
    int request, head, heads;
    int query, queries;
    int key, keys;
    int part;  // where its partial result is; -1: it has all keys
    int parts; // of the result, from this one on: of the first of them; else 0
};

struct SequenceArguments {
    const Sequence* sequences; // [count]
    int count;
    const int* pages; // of all requests, those of one in order
    int page_size;    // 0: keys are not paged
    const SequenceWork* work;
    long long work_count;

    FLEXC_SHARED const Sequence& of(int request) const { return sequences[request]; }
};

// Keys that lie side by side: `count` rows from `row` on of page `page` (0 where there are none).
struct KeyRun {
    long long page, row;
    int count;
};
// The longest run from key `key` on, up to `most` keys.
FLEXC_SHARED KeyRun key_run(const int* pages, int page_size, const Sequence& sequence, int key,
                            int most) {
    if (page_size == 0) return {0, sequence.kv_row + key, most};
    const int slot = key % page_size, left = page_size - slot;
    return {pages[sequence.first_page + key / page_size], slot, left < most ? left : most};
}

// q_row of the language.
FLEXC_SHARED long long query_row(const Sequence& sequence, int q_idx) {
    return sequence.q_row + q_idx - sequence.q_start;
}

// kv_row of the language.
FLEXC_SHARED long long key_row(const int* pages, long long page_size, const Sequence& sequence,
                               int kv_idx) {
    const KeyRun run = key_run(pages, static_cast<int>(page_size), sequence, kv_idx, 1);
    return run.page * page_size + run.row;
}
