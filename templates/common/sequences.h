// Records of where requests lie in tensors that are not dense. The only place that says which row
// of memory a query of a request has, for device and host; keys/ says it of keys.
#pragma once

#include "common/host_device.h"
#include "keys/key_table.h"

// One request. Its rows are counted within the request in dense tensors, else in the packed tensor.
struct Sequence {
    long long q_row, kv_row; // first rows; kv_row only if keys are in order
    long long first_number;  // in KeyTable::numbers
    int q_len, kv_len;       // rows in use
    int q_rows, kv_rows;     // rows that exist; those behind the used ones are not the request's
    int q_start;             // q_idx of the first query
    int first_part;          // on a GPU: its first part of all; one more record ends the list
};

// On a GPU, keys of requests with few queries are divided over blocks. A block has a part of the
// keys of one head, and the queries of all heads that share it: at most kMostFewRows rows.
constexpr int kMostFewRows = 64;
constexpr int kBlocksAtOnce = 396; // blocks that a large GPU runs: a wave
constexpr int kMostWaves = 4;
constexpr int kPartBlocks = kMostWaves * kBlocksAtOnce;
constexpr int kOwnPartBlocks = 64; // for one request, if each is divided by itself
constexpr int kLeastPartKeys = 256;

// Returns whether a request has few queries. group: heads of queries that share one of keys.
FLEXC_SHARED bool has_few_rows(const Sequence& sequence, int group) {
    return static_cast<long long>(sequence.q_len) * group <= kMostFewRows;
}
// Returns the most rows that a request with few queries has, if none has more queries than this.
FLEXC_SHARED int few_rows(long long most_queries, int group) {
    const long long rows = most_queries * group;
    return static_cast<int>(rows < kMostFewRows ? rows : kMostFewRows);
}

// Requests whose keys have parts, among one or all: their number, the most rows of one, and the
// keys of all of them.
struct FewRequests {
    int count = 0, rows = 0;
    long long keys = 0;
};
FLEXC_SHARED FewRequests joined(const FewRequests& a, const FewRequests& b) {
    return {a.count + b.count, a.rows > b.rows ? a.rows : b.rows, a.keys + b.keys};
}
FLEXC_SHARED FewRequests few_of(const Sequence& sequence, int group) {
    if (sequence.q_len == 0 || !has_few_rows(sequence, group)) return {};
    return {1, sequence.q_len * group, sequence.kv_len};
}

// Parts of the keys of one request, or of all.
struct Parts {
    int count = 0;
    int longest = 0; // most keys of one
};
FLEXC_SHARED Parts joined(const Parts& a, const Parts& b) {
    return {a.count + b.count, a.longest > b.longest ? a.longest : b.longest};
}
// Divides a request's keys into parts of so many: at least one if it has few queries, else none.
FLEXC_SHARED Parts parts_by(const Sequence& sequence, int group, long long part_keys) {
    if (few_of(sequence, group).count == 0) return {};
    // Divides in 32 bits, which is faster on a GPU; no request has more keys.
    constexpr unsigned kMostKeys = 0x7fffffff;
    const unsigned each = part_keys < kMostKeys ? static_cast<unsigned>(part_keys) : kMostKeys;
    const unsigned keys = static_cast<unsigned>(sequence.kv_len);
    const unsigned count = keys > each ? (keys + each - 1) / each : 1;
    return {static_cast<int>(count), static_cast<int>((keys + count - 1) / count)};
}
// Returns how many keys a part has, if there should be so many parts.
FLEXC_SHARED long long part_keys(long long all_keys, long long parts) {
    const long long keys = (all_keys + parts - 1) / (parts > 1 ? parts : 1);
    return keys > kLeastPartKeys ? keys : kLeastPartKeys;
}
// Returns the same for a request that is divided as if it were alone.
FLEXC_SHARED long long own_part_keys(const Sequence& sequence, int kv_heads) {
    return part_keys(sequence.kv_len, kOwnPartBlocks / kv_heads);
}
// All requests can be divided for some numbers of blocks: a third of a wave, two thirds, or whole
// waves.
constexpr int kDivisions = 2 + kMostWaves;
FLEXC_SHARED int blocks_of_division(int i) {
    return i < 2 ? (i + 1) * (kBlocksAtOnce / 3) : (i - 1) * kBlocksAtOnce;
}
struct PartKeys {
    long long by_division[kDivisions];
};
struct PartsByDivision {
    Parts of[kDivisions];
};
// Estimates the time of parts, in units of the time of a key in a block that shares its
// multiprocessor with two others. With fewer beside it a block is faster, though not by as much;
// each wave has a start; and the parts' results for each row are joined.
FLEXC_SHARED long long time_of_parts(const FewRequests& all, const Parts& parts, int kv_heads) {
    constexpr long long kStart = 128, kKeyRows = 160; // rows that are joined in the time of a key
    const long long blocks = static_cast<long long>(parts.count) * kv_heads;
    const long long waves = (blocks + kBlocksAtOnce - 1) / kBlocksAtOnce;
    const long long twelfths = blocks <= blocks_of_division(0)   ? 5
                               : blocks <= blocks_of_division(1) ? 9
                                                                 : 12;
    const long long joining = parts.count > all.count ? blocks * all.rows / kKeyRows : 0;
    return waves * (parts.longest * twelfths / 12 + kStart) + joining;
}
// Returns the keys of a part in the division that takes the least time. divided(keys) returns the
// parts of all requests by each of these numbers of keys.
template <typename Divided>
FLEXC_SHARED long long shared_part_keys(const FewRequests& all, int kv_heads, Divided divided) {
    PartKeys keys{};
    // Each request may have one part more than its share of keys, as parts are rounded up.
    for (int i = 0; i < kDivisions; ++i)
        keys.by_division[i] = part_keys(all.keys, blocks_of_division(i) / kv_heads - all.count);
    const PartsByDivision parts = divided(keys);
    long long best = kLeastPartKeys, least = 0;
    for (int i = 0; i < kDivisions; ++i) {
        const long long time = time_of_parts(all, parts.of[i], kv_heads);
        if (i > 0 && time >= least) continue;
        least = time;
        best = keys.by_division[i];
    }
    return best;
}
// Adds the parts of one more request.
FLEXC_SHARED void add_parts(PartsByDivision& parts, const PartKeys& keys, const Sequence& sequence,
                            int group) {
    for (int i = 0; i < kDivisions; ++i)
        parts.of[i] = joined(parts.of[i], parts_by(sequence, group, keys.by_division[i]));
}

// A piece of work: queries of some heads, and a range of keys. The heads share one head of keys, or
// are all those that share some heads of keys.
struct SequenceWork {
    int request, head, heads;
    int query, queries;
    int key, keys;
    int part;  // index of its partial result; -1 if it has all keys
    int parts; // number of the result's parts, in the first of them; 0 in others
};

struct SequenceArguments {
    const Sequence* sequences; // [count]
    int count;
    KeyTable keys;
    const SequenceWork* work;
    long long work_count;

    FLEXC_SHARED const Sequence& of(int request) const { return sequences[request]; }
};

// Returns a query's row of memory: q_row of the language.
FLEXC_SHARED long long query_row(const Sequence& sequence, int q_idx) {
    return sequence.q_row + q_idx - sequence.q_start;
}
