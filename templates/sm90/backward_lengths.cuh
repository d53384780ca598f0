// Lengths of the batch entry whose keys a block has: the launch's for dense tensors, those of a
// record beside the tile of keys for ragged ones.
#pragma once

#include "common/select.h"
#include "common/sequence_length.cuh"
#include "sm90/backward_layout.cuh"
#include "sm90/distance.cuh"

namespace sm90 {

struct LengthsOfLaunch {
    static constexpr int kBytes = 0;

    LengthsOfLaunch() = default;
    template <typename Length> __device__ explicit LengthsOfLaunch(const Length&) {}
    __device__ void store(unsigned) const {}
    static __device__ DenseLength of(const AttentionArguments& attention, int batch) {
        return {attention, batch};
    }
};

// Has RequestLength's interface. It is in shared memory, where threads read it again wherever they
// use it, which saves registers; reading the request's own record would take as long as several
// products.
class LengthsOfRequest {
  public:
    static constexpr int kBytes = 32;

    LengthsOfRequest() = default;
    __device__ explicit LengthsOfRequest(const RequestLength& length)
        : first_query_row_(static_cast<int>(length.first_query_row())),
          first_key_row_(static_cast<int>(length.first_key_row())), queries_(length.queries()),
          keys_(length.keys()), key_rows_(length.key_rows()),
          q_start_(static_cast<int>(length.q_offset())), b_(length.b()) {}
    __device__ void store(unsigned to) const {
        store_shared(to, first_query_row_, first_key_row_, queries_, keys_);
        store_shared(to + 16, key_rows_, q_start_, b_, 0);
    }
    __device__ const LengthsOfRequest& of(const AttentionArguments&, int) const { return *this; }

    __device__ int b() const { return b_; }
    __device__ int queries() const { return queries_; }
    __device__ int keys() const { return keys_; }
    __device__ int key_rows() const { return key_rows_; }
    static __device__ int entry() { return RequestLength::entry(); }
    __device__ int first_query_row() const { return first_query_row_; }
    __device__ int first_key_row() const { return first_key_row_; }
    __device__ int q_offset() const { return q_start_; }
    static __device__ int kv_offset() { return 0; }
    __device__ int q_idx(int query) const { return min(query, queries_ - 1) + q_start_; }
    __device__ int kv_idx(int key) const { return min(key, keys_ - 1); }

  private:
    // Row indices of tensors that TMA can walk fit in 31 bits.
    int first_query_row_, first_key_row_, queries_, keys_, key_rows_, q_start_, b_, unused_;
};
static_assert(sizeof(LengthsOfRequest) == LengthsOfRequest::kBytes);

using KeyLengths = Select<mod::Layouts::kKeysAreRagged, LengthsOfRequest, LengthsOfLaunch>;
static_assert(BackwardShape::kTileBytes + KeyLengths::kBytes == kShape.key_tile_bytes());
// How threads that go through a tile's queries hold the lengths: in shared memory, or by value.
using TileLength = Select<mod::Layouts::kKeysAreRagged, const LengthsOfRequest&, DenseLength>;

// Index of a head's first query in the arrays of row statistics and sums of dq, where each head, or
// with ragged queries each request of a head, is lengthened to whole tiles.
class DenseRows {
  public:
    __device__ DenseRows(const AttentionArguments& attention, const DenseLength&)
        : attention_(attention), rows_(padded(attention.q_len)) {}

    __device__ long long first(const HeadPlace& place) const {
        return (place.b * attention_.heads + place.h) * rows_;
    }
    __device__ long long first_block(const HeadPlace& place) const {
        const long long blocks = padded(attention_.q_len) / kRowBlock;
        return (place.b * attention_.heads + place.h) * blocks;
    }
    static __device__ long long count(const AttentionArguments& attention) { // of all heads
        return static_cast<long long>(padded(attention.q_len)) * attention.batch * attention.heads;
    }

  private:
    const AttentionArguments& attention_;
    const long long rows_;
};
class RaggedRows {
  public:
    __device__ RaggedRows(const AttentionArguments& attention, const LengthsOfRequest& length)
        : attention_(attention), length_(length) {}

    __device__ long long first(const HeadPlace& place) const {
        return first_ragged_statistic(attention_, length_.first_query_row(), length_.b(), place.h);
    }
    __device__ long long first_block(const HeadPlace& place) const {
        return first(place) / kRowBlock;
    }
    static __device__ long long count(const AttentionArguments& attention) {
        return static_cast<long long>(attention.statistic_rows) * attention.heads;
    }

  private:
    const AttentionArguments& attention_;
    const LengthsOfRequest& length_;
};
using PaddedRows = Select<mod::Layouts::kQueriesAreRagged, RaggedRows, DenseRows>;

} // namespace sm90
