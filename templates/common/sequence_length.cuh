// How many queries and keys a batch entry has, in which rows of the tensors, and which indices the
// program sees for them. THE place that says so on the device: kernels count positions from the
// first query and key of the entry.
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
    // Rows that there are, behind those that are used.
    __device__ int query_rows() const { return queries(); }
    __device__ int key_rows() const { return keys(); }
    // Where the entry's rows of a tensor begin: the index of its first dim, and the row there.
    __device__ int entry() const { return b_; }
    static __device__ long long first_query_row() { return 0; }
    static __device__ long long first_key_row() { return 0; }

    // What the program sees as q_idx of the first query, and as kv_idx of the first key.
    __device__ long long q_offset() const { return attention_.q_offset; }
    __device__ long long kv_offset() const { return attention_.kv_offset; }
    // Of a position; those past the end repeat the last.
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

// The same of one request of other tensors.
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
    static __device__ int entry() { return 0; } // of ragged tensors
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

// Whether forward_few.cu has the entry. group: heads of queries that share one of keys.
__device__ inline bool has_few_rows(const DenseLength&, int group) { return false; }
__device__ inline bool has_few_rows(const RequestLength& length, int group) {
    return has_few_rows(length.sequence(), group);
}

using SequenceLength = Select<mod::Layouts::kAreDense, DenseLength, RequestLength>;

// Where its keys lie.
__device__ inline mod::Layouts::Keys keys_of(const AttentionArguments& attention,
                                             const RequestLength& length) {
    return {attention.sequences.keys, length.sequence(), length.b()};
}

// The last of so many requests whose first_place(request), which never falls, is not beyond
// `place`; 0 where there is none.
template <typename FirstPlace>
__device__ inline int request_at(int place, int requests, FirstPlace first_place) {
    int low = 0, high = requests; // the request is in [low, high)
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        (first_place(middle) <= place ? low : high) = middle;
    }
    return low;
}

// The request to which the place-th of all tiles belongs, and which of its tiles it is. A request
// begins with a new tile, wherever its first row is, so that tiles need no list: with `rows` rows
// in all there are at most rows / tile + requests of them. Where there is no such tile, it is
// negative, or past the end of the request.
struct TileOfRequest {
    int request, tile;
};
template <typename FirstRow>
__device__ inline TileOfRequest tile_of_request(int place, int requests, int tile,
                                                FirstRow first_row) {
    // Offsets of rows are of 32 bits, and a whole block waits for the thread that divides them.
    const auto first_place = [&](int request) {
        return static_cast<int>(static_cast<unsigned>(first_row(request)) /
                                static_cast<unsigned>(tile)) +
               request;
    };
    const int request = request_at(place, requests, first_place);
    return {request, place - first_place(request)};
}
// Where the row facts of a head's queries begin, of one request of ragged queries: each has whole
// tiles of kReferenceRows.
__device__ inline long long first_ragged_fact(const AttentionArguments& attention,
                                              long long first_query_row, int request, int h) {
    return static_cast<long long>(h) * attention.fact_rows +
           (first_query_row / kReferenceRows + request) * kReferenceRows;
}
// As many places as tiles of ragged tensors with so many rows may have.
__device__ inline int ragged_tiles(const AttentionArguments& attention, long long rows, int tile) {
    return static_cast<int>((rows + tile - 1) / tile) + attention.batch;
}
