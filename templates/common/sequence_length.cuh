// Lengths of a batch entry: how many queries and keys it has, in which rows of the tensors, and
// which indices the program sees for them. The only place that says so on the device: kernels count
// positions from the first query and key of the entry.
#pragma once

#include "mod.cuh"

#include "common/arguments.h"
#include "common/select.h"

class DenseLength {
  public:
    __device__ DenseLength(const AttentionArguments& attention, int batch)
        : attention_(attention), b_(batch) {}

    __device__ int b() const { return b_; }
    __device__ int queries() const { return attention_.q_len; }
    __device__ int keys() const { return attention_.kv_len; }
    // Return the rows that exist: those in use, and what is behind them.
    __device__ int query_rows() const { return queries(); }
    __device__ int key_rows() const { return keys(); }
    // Return where the entry's rows of a tensor begin: the index of its first dim, and the row
    // there.
    __device__ int entry() const { return b_; }
    static __device__ long long first_query_row() { return 0; }
    static __device__ long long first_key_row() { return 0; }

    // Return what the program sees as q_idx of the first query, and as kv_idx of the first key.
    __device__ long long q_offset() const { return attention_.q_offset; }
    __device__ long long kv_offset() const { return attention_.kv_offset; }
    // Return the index of a position; positions past the end repeat the last one.
    __device__ int q_idx(int query) const {
        return min(query, queries() - 1) + static_cast<int>(q_offset());
    }
    __device__ int kv_idx(int key) const {
        return min(key, keys() - 1) + static_cast<int>(kv_offset());
    }

  private:
    const AttentionArguments& attention_;
    int b_;
};

// The same for a request of tensors that are not dense.
class RequestLength {
  public:
    __device__ RequestLength(const AttentionArguments& attention, int request)
        : RequestLength(attention.sequences.of(request), request) {}
    __device__ RequestLength(const Sequence& sequence, int request)
        : sequence_(sequence), b_(request) {}

    __device__ int b() const { return b_; }
    __device__ int queries() const { return sequence_.q_len; }
    __device__ int keys() const { return sequence_.kv_len; }
    __device__ int query_rows() const { return sequence_.q_rows; }
    __device__ int key_rows() const { return sequence_.kv_rows; }
    static __device__ int entry() { return 0; } // the only one of ragged tensors
    __device__ long long first_query_row() const { return sequence_.q_row; }
    __device__ long long first_key_row() const { return sequence_.kv_row; }
    __device__ const Sequence& sequence() const { return sequence_; }

    __device__ long long q_offset() const { return sequence_.q_start; }
    static __device__ long long kv_offset() { return 0; }
    __device__ int q_idx(int query) const { return min(query, queries() - 1) + sequence_.q_start; }
    __device__ int kv_idx(int key) const { return min(key, keys() - 1); }

  private:
    const Sequence sequence_;
    const int b_;
};

// Return whether forward_few.cu computes the entry beside this kernel. Of dense calls it computes
// all entries or none. group: heads of queries that share one of keys.
__device__ inline bool has_few_rows(const DenseLength&, int group) { return false; }
__device__ inline bool has_few_rows(const RequestLength& length, int group) {
    return has_few_rows(length.sequence(), group);
}

using SequenceLength = Select<mod::Layouts::kAreDense, DenseLength, RequestLength>;

// Returns where a request's keys lie. A template, as code that dense tensors discard names it too.
template <typename Length>
__device__ inline mod::Layouts::Keys keys_of(const AttentionArguments& attention,
                                             const Length& length) {
    return {attention.sequences.keys, length.sequence(), length.b()};
}

// Returns the last of so many requests whose first_place(request), which never decreases, is not
// beyond `place`; 0 if there is none.
template <typename FirstPlace>
__device__ inline int request_at(int place, int requests, FirstPlace first_place) {
    int low = 0, high = requests; // the request is in [low, high)
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        (first_place(middle) <= place ? low : high) = middle;
    }
    return low;
}

// A request and one of its tiles, found by the tile's place among those of all requests. A request
// begins with a new tile, wherever its first row is, so that tiles need no list: with `rows` rows
// in all there are at most rows / tile + requests of them. At a place without a tile, the tile is
// negative or past the end of the request.
struct TileOfRequest {
    int request, tile;
};
template <typename FirstRow>
__device__ inline TileOfRequest tile_of_request(int place, int requests, int tile,
                                                FirstRow first_row) {
    // Divides in 32 bits, which offsets of rows have, as a whole block waits for this thread.
    const auto first_place = [&](int request) {
        return static_cast<int>(static_cast<unsigned>(first_row(request)) /
                                static_cast<unsigned>(tile)) +
               request;
    };
    const int request = request_at(place, requests, first_place);
    return {request, place - first_place(request)};
}
// Returns where the row statistics of a head's queries begin, for a request of ragged queries: each
// request has whole tiles of kReferenceRows.
__device__ inline long long first_ragged_statistic(const AttentionArguments& attention,
                                                   long long first_query_row, int request, int h) {
    return static_cast<long long>(h) * attention.statistic_rows +
           (first_query_row / kReferenceRows + request) * kReferenceRows;
}
// Returns how many places tiles of ragged tensors with so many rows have at most.
__device__ inline int ragged_tiles(const AttentionArguments& attention, long long rows, int tile) {
    return static_cast<int>((rows + tile - 1) / tile) + attention.batch;
}
