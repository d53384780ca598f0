// Matrices of the program that have an element for each query and key: tiles of biases on their way
// to shared memory, and of their gradient on its way to memory, by warps of the producer's
// warpgroup. The host sees to it that rows start at 16 aligned bytes, end with them, and have no
// gaps between keys.
#pragma once

#include "sm90/backward_gradients.cuh"
#include "sm90/backward_tiles.cuh"
#include "sm90/copy_async.cuh"
#include "sm90/turn.cuh"

namespace sm90 {

// Where a matrix has the first element of some keys, and the step to the next query's.
template <typename E> struct MatrixRows {
    E* corner;
    long long step;

    // address(element): of the matrix.
    template <typename Address>
    __device__ static MatrixRows of(const AttentionArguments& attention,
                                    const mod::Arguments& arguments, const HeadPlace& place,
                                    int key, Address address) {
        E* const corner = visit_element(attention, arguments, place, 0, key, address);
        return {corner, attention.q_len > 1
                            ? visit_element(attention, arguments, place, 1, key, address) - corner
                            : 0};
    }
};

// By one warp: biases of some queries and the tile's keys. A lane keeps its 16 bytes of keys and
// steps down the rows. What is past the end is left as it is: nobody uses what becomes of it.
__device__ inline void copy_biases(const MatrixRows<const mod::BiasElement>& from, int first_row,
                                   int rows, int keys, unsigned to, Barrier full) {
    constexpr int kChunkKeys = 16 / kBiasBytes;
    constexpr int kChunks = mod::kKeyTile / kChunkKeys, kRows = 32 / kChunks;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row = lane / kChunks, key = lane % kChunks * kChunkKeys;
    const mod::BiasElement* next = from.corner + (first_row + row) * from.step + key;
    to += row * kBiasRowBytes + key * kBiasBytes;
    const int last = key < keys ? rows - row : 0;
#pragma unroll 4
    for (int i = 0; i < mod::kQueryTile; i += kRows) {
        if (i < last) copy_async(to + i * kBiasRowBytes, next);
        next += kRows * from.step;
    }
    arrive_after_copies(full);
}

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
        before_ =
            mod::kGroupMeets
                ? 0
                : of_group * kParts * ((attention.q_len + mod::kQueryTile - 1) / mod::kQueryTile);
    }
    __device__ bool stores() const { return stores_; }
    // Before a part of the queries is added.
    __device__ void wait(int part) const {
        if (stored_ != nullptr && !stores_) wait_for_turn(stored_, before_ + part + 1);
    }
    // That all lanes have stored a part; when they have waited for the next one, so that nobody
    // has to wait until it is in memory.
    __device__ void tell_before() {
        if (!stores_ || !is_pending_) return;
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

// Some rows of a part in shared memory, 16 bytes for each lane, to memory. Two rows at a time.
__device__ inline void add_part(const MatrixRows<float>& to, int first_row, int rows, int keys,
                                unsigned from, bool stores) {
    constexpr int kChunkKeys = 4, kChunks = 64 / kChunkKeys, kRows = 32 / kChunks;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row = lane / kChunks, key = lane % kChunks * kChunkKeys;
    float* next = to.corner + (first_row + row) * to.step + key;
    from += row * kGradientRowBytes + key * 4;
    const int last = key < keys ? rows - row : 0;
#pragma unroll 4
    for (int i = 0; i < kPartRows; i += kRows) {
        float four[4];
        load_shared(from + i * kGradientRowBytes, four);
        if (i < last && stores) store_floats(next, four);
        if (i < last && !stores) add_floats(next, four);
        next += kRows * to.step;
    }
}

// The same from a panel of dS, in 16 bits and with the swizzle.
__device__ inline void add_panel(const MatrixRows<float>& to, int first_row, int rows, int keys,
                                 unsigned from, bool stores) {
    constexpr int kChunkKeys = 4, kChunks = kPanelColumns / kChunkKeys, kRows = 32 / kChunks;
    constexpr int kStepsAtOnce = 4;
    constexpr mod::Element kKind{};
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row = lane / kChunks, chunk = lane % kChunks;
    float* next = to.corner + (first_row + row) * to.step + chunk * kChunkKeys;
    from += row * kRowBytes + chunk % 2 * 8;
    const int last = chunk * kChunkKeys < keys ? rows - row : 0;
#pragma unroll 1
    for (int i = 0; i < mod::kQueryTile;
         i += kStepsAtOnce * kRows, from += kStepsAtOnce * kRows * kRowBytes) {
        unsigned pairs[kStepsAtOnce][2];
#pragma unroll
        for (int j = 0; j < kStepsAtOnce; ++j) {
            const int swizzled = chunk / 2 ^ (j * kRows + row) % 8;
            load_shared(from + j * kRows * kRowBytes + swizzled * 16, pairs[j]);
        }
#pragma unroll
        for (int j = 0; j < kStepsAtOnce; ++j, next += kRows * to.step) {
            const float four[4] = {
                flexc_first(kKind, pairs[j][0]), flexc_second(kKind, pairs[j][0]),
                flexc_first(kKind, pairs[j][1]), flexc_second(kKind, pairs[j][1])};
            const bool is_inside = i + j * kRows < last;
            if (is_inside && stores) store_floats(next, four);
            if (is_inside && !stores) add_floats(next, four);
        }
    }
}

// By one warp for each of the consumers' warpgroups: what these have of a tile of gradients.
__device__ inline void add_matrices(const AttentionArguments& attention,
                                    const mod::Arguments& arguments, Shared shared,
                                    const KeyTile& keys, int warpgroup) {
    const int first_key = keys.first_kv + 64 * warpgroup;
    const unsigned parts = shared.base + at::kMatrixGradients + warpgroup * kPartBytes;
    const unsigned panel = shared.base + at::kDScores + warpgroup * kQueryPanel;
    unsigned parity = 0;
    visit_heads(attention, arguments, keys, [&](const HeadPlace& place, TileRange tiles) {
        FirstToStore first(attention, place, keys, warpgroup);
#pragma unroll 1
        for (QueryTiles walk(attention, place, keys, tiles); !walk.is_done(); walk.advance())
#pragma unroll 1
            for (int part = 0; part < kParts; ++part, parity ^= 1) {
                const int first_row = walk.tile() * mod::kQueryTile + part * kPartRows;
                if constexpr (kAddsTiles)
                    meet_at_d_scores();
                else
                    shared.piece_full(warpgroup).wait(parity);
                first.tell_before();
                first.wait(walk.tile() * kParts + part);
#pragma unroll
                for (int gradient = 0; gradient < mod::kGradients; ++gradient) {
                    if (mod::sum_of(gradient) != mod::Sum::matrix) continue;
                    const auto to = MatrixRows<float>::of(
                        attention, arguments, place, first_key, [&](const mod::At& at) {
                            // Never an exact sum: those are of other classes.
                            return reinterpret_cast<float*>(mod::gradient_address(at, gradient));
                        });
                    const int rows = min(attention.q_len - first_row, kPartRows);
                    const int columns = attention.kv_len - first_key;
                    if constexpr (kAddsTiles)
                        add_panel(to, first_row, rows, columns, panel + parity * kDScoresBytes,
                                  first.stores());
                    else
                        add_part(to, first_row, rows, columns, parts, first.stores());
                }
                if constexpr (kAddsParts) shared.piece_empty(warpgroup).arrive();
                first.tell_later();
            }
        first.tell_before();
    });
}

} // namespace sm90
