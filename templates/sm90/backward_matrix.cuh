// Matrices of the program that have an element for each query and key: tiles of biases on their way
// to shared memory, and of their gradient on its way to memory, by warps of the producer's
// warpgroup. The host sees to it that rows start at 16 aligned bytes, end with them, and have no
// gaps between keys.
#pragma once

#include "sm90/backward_gradients.cuh"
#include "sm90/backward_layout.cuh"
#include "sm90/turn.cuh"
#include "sm90/tma.cuh"

namespace sm90 {

// What the program finds at a query and a key of the tensors: find(element).
template <typename Find>
__device__ inline auto at_element(const AttentionArguments& attention,
                                  const mod::Arguments& arguments, const HeadPlace& place, int row,
                                  int key, Find find) {
    const int q = row + static_cast<int>(attention.q_offset);
    const int kv = key + static_cast<int>(attention.kv_offset);
    const mod::Row of_row =
        mod::at_row(arguments, place.launch, place.head, place.b, place.h, place.h_kv, q);
    const mod::Column of_key =
        mod::at_column(arguments, place.launch, place.head, place.b, place.h, place.h_kv, kv);
    return find(mod::At{arguments, place.launch, place.head, of_row, of_key, place.b, place.h,
                        place.h_kv, q, kv});
}

// By one warp: a tile of queries' biases of a tile of keys, row by row. Rows and keys past the end
// are left as they are: nobody uses what they become.
class BiasCopies {
  public:
    __device__ BiasCopies(const AttentionArguments& attention, const mod::Arguments& arguments,
                          const HeadPlace& place, int first_key)
        : bytes_(min(attention.kv_len - first_key, mod::kKeyTile) * kBiasBytes) {
        const auto address = [&](int row) {
            return at_element(attention, arguments, place, row, first_key,
                              [](const mod::At& at) { return mod::bias_address(at); });
        };
        corner_ = address(0);
        step_ = attention.q_len > 1 ? address(1) - corner_ : 0;
    }

    __device__ void copy(int first_row, int rows, unsigned to, Barrier full) const {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        if (lane == 0) full.arrive_expecting(rows * bytes_);
        __syncwarp();
        for (int row = lane; row < rows; row += 32)
            load_bytes(to + row * kBiasRowBytes, corner_ + (first_row + row) * step_, bytes_, full);
    }

  private:
    const mod::BiasElement* corner_;
    long long step_; // in elements, from one query to the next
    int bytes_;      // of a row
};

// Where several blocks write to the same tiles of a gradient, the one with the lowest number stores
// what it has, so that nobody needs to clear them before; the others add to that, each when it has
// been done. Blocks start in the order of their numbers, and who stores waits for nobody.
class FirstToStore {
  public:
    __device__ FirstToStore(const AttentionArguments& attention, const HeadPlace& place,
                            const KeyTile& keys, int warpgroup) {
        const int group = attention.heads / attention.kv_heads;
        const int of_group = place.h - place.h_kv * group;
        const int b = mod::kBatchesMeet ? 0 : place.b, h_kv = mod::kHeadsMeet ? 0 : place.h_kv;
        const int tiles = (attention.kv_len + mod::kKeyTile - 1) / mod::kKeyTile;
        const long long head = static_cast<long long>(b) * attention.kv_heads + h_kv;
        stored_ = attention.stored_tiles == nullptr
                      ? nullptr
                      : attention.stored_tiles + (head * tiles + keys.index()) * 2 + warpgroup;
        stores_ = stored_ != nullptr && b == place.b && h_kv == place.h_kv &&
                  (!mod::kGroupMeets || of_group == 0);
        before_ = mod::kGroupMeets ? 0
                                   : of_group * kParts * ((attention.q_len + mod::kQueryTile - 1) /
                                                          mod::kQueryTile);
    }
    __device__ bool stores() const { return stores_; }
    // Before a part of the queries is added.
    __device__ void wait(int part) const {
        if (stored_ != nullptr && !stores_) wait_for_turn(stored_, before_ + part + 1);
    }
    // After the copy engine has been given some by all lanes, when these wait for more: nobody has
    // to wait until they are in memory.
    __device__ void tell_before() {
        if (!stores_ || !is_pending_) return;
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        __syncwarp();
        if (threadIdx.x % 32 == 0) pass_turn(stored_);
        is_pending_ = false;
    }
    __device__ void tell_later() { is_pending_ = true; }

  private:
    int* stored_;
    int before_;
    bool stores_, is_pending_ = false;
};

// By one warp for each of the consumers' warpgroups: what these have of a tile of gradients, added
// row by row.
__device__ inline void add_matrices(const AttentionArguments& attention,
                                    const mod::Arguments& arguments, Shared shared,
                                    const KeyTile& keys, int warpgroup) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const unsigned from = shared.base + at::kMatrixGradients + warpgroup * kPartBytes;
    const int first_key = keys.first_kv + 64 * warpgroup;
    const int bytes = min(attention.kv_len - first_key, 64) * 4;
    unsigned parity = 0;
    visit_heads(attention, arguments, keys, [&](const HeadPlace& place, TileRange tiles) {
        FirstToStore first(attention, place, keys, warpgroup);
#pragma unroll 1
        for (QueryTiles walk(attention, place, keys, tiles); !walk.is_done(); walk.advance())
#pragma unroll 1
            for (int part = 0; part < kParts; ++part, parity ^= 1) {
                const int first_row = walk.tile() * mod::kQueryTile + part * kPartRows;
                shared.piece_full(warpgroup).wait(parity);
                first.tell_before();
                first.wait(walk.tile() * kParts + part);
#pragma unroll
                for (int gradient = 0; gradient < mod::kGradients; ++gradient) {
                    if (mod::sum_of(gradient) != mod::Sum::matrix) continue;
#pragma unroll 1
                    for (int row = lane; row < kPartRows; row += 32) {
                        if (first_row + row >= attention.q_len || bytes <= 0) break;
                        float* const to = at_element(
                            attention, arguments, place, first_row + row, first_key,
                            [&](const mod::At& at) {
                                // Never an exact sum: those are of other classes.
                                return reinterpret_cast<float*>(
                                    mod::gradient_address(at, gradient));
                            });
                        if (first.stores())
                            store_bytes(to, from + row * kGradientRowBytes, bytes);
                        else
                            add_bytes(to, from + row * kGradientRowBytes, bytes);
                    }
                }
                end_additions();
                wait_for_additions<0>();
                shared.piece_empty(warpgroup).arrive();
                first.tell_later();
            }
        first.tell_before();
    });
}

} // namespace sm90
