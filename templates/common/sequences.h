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
constexpr int kBlocksAtOnce = 396; // as many as a large GPU has: a wave of them
constexpr int kMostWaves = 4;
constexpr int kPartBlocks = kMostWaves * kBlocksAtOnce;
constexpr int kOwnPartBlocks = 64; // of one request, where each is divided by itself
constexpr int kLeastPartKeys = 256;
constexpr int kPartStart = 128; // keys that a block could do while it begins and ends

// group: heads of queries that share one of keys.
FLEXC_SHARED bool has_few_rows(const Sequence& sequence, int group) {
    return sequence.q_len <= kMostFewRows / group;
}
// At most, of a request, where none has more queries.
FLEXC_SHARED int few_rows(long long most_queries, int group) {
    const long long rows = most_queries * group;
    return static_cast<int>(rows < kMostFewRows ? rows : kMostFewRows);
}

// Parts of one request, or of all.
struct Parts {
    int count = 0;
    int longest = 0; // keys of one
    int requests = 0;
    long long keys = 0;
};
FLEXC_SHARED Parts joined(const Parts& a, const Parts& b) {
    return {a.count + b.count, a.longest > b.longest ? a.longest : b.longest,
            a.requests + b.requests, a.keys + b.keys};
}
// Of one request, by so many keys: at least one where it has queries, and they are few.
FLEXC_SHARED Parts parts_by(const Sequence& sequence, int group, long long part_keys) {
    if (sequence.q_len == 0 || !has_few_rows(sequence, group)) return {};
    const long long count = (sequence.kv_len + part_keys - 1) / part_keys;
    Parts parts{count > 1 ? static_cast<int>(count) : 1, 0, 1, sequence.kv_len};
    parts.longest = (sequence.kv_len + parts.count - 1) / parts.count;
    return parts;
}
// How many keys a part has, where there should be so many parts.
FLEXC_SHARED long long part_keys(long long all_keys, long long parts) {
    const long long keys = (all_keys + parts - 1) / (parts > 1 ? parts : 1);
    return keys > kLeastPartKeys ? keys : kLeastPartKeys;
}
// The same of a request that is divided as if it were alone.
FLEXC_SHARED long long own_part_keys(const Sequence& sequence, int kv_heads) {
    return part_keys(sequence.kv_len, kOwnPartBlocks / kv_heads);
}
// The same of all requests: the number of waves whose blocks end soonest, as the last one may have
// few. divided(part_keys): the parts of all.
template <typename Divided> FLEXC_SHARED long long shared_part_keys(int kv_heads, Divided divided) {
    const Parts all = divided(kLeastPartKeys);
    long long best = kLeastPartKeys, least = 0;
    for (int waves = 1; waves <= kMostWaves; ++waves) {
        // Each request may have one more than its keys ask for.
        const long long keys = part_keys(all.keys, waves * kBlocksAtOnce / kv_heads - all.requests);
        const Parts parts = divided(keys);
        const long long blocks = static_cast<long long>(parts.count) * kv_heads;
        const long long time =
            (blocks + kBlocksAtOnce - 1) / kBlocksAtOnce * (parts.longest + kPartStart);
        if (waves > 1 && time >= least) continue;
        least = time;
        best = keys;
    }
    return best;
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
