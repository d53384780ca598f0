// Adds gradients of dense biases by two warps of the producer warpgroup, one for each consumer
// warpgroup: from the tile of dS where buffers have 16 bits, else from shared memory of their own,
// in parts of 64 queries.
#pragma once

#include "sm90/backward_dense_bias.cuh"
#include "sm90/backward_elements.cuh"
#include "sm90/backward_heads.cuh"
#include "sm90/backward_query_tiles.cuh"
#include "sm90/gradients/sum.cuh"
#include "sm90/semaphore.cuh"

namespace sm90 {

// Where several blocks write to the same tiles of a gradient, the one with the lowest number stores
// what it has, so that nobody needs to clear them before; the others wait for that and add to it.
// Blocks start in the order of their numbers, and the one that stores waits for nobody.
class FirstToStore {
  public:
    __device__ FirstToStore(const KernelArguments& attention, const HeadPlace& place,
                            const KeyTile& keys, int warpgroup) {
        const int group = attention.heads / attention.kv_heads;
        const int of_group = place.h - place.h_kv * group;
        const int b = mod::DenseBias::kBatchesMeet ? 0 : place.b,
                  h_kv = mod::DenseBias::kHeadsMeet ? 0 : place.h_kv;
        const int tiles = (attention.kv_len + mod::kKeyTile - 1) / mod::kKeyTile;
        const long long head = static_cast<long long>(b) * attention.kv_heads + h_kv;
        stored_ = kAreAlone || attention.stored_tiles == nullptr
                      ? nullptr
                      : attention.stored_tiles + (head * tiles + keys.index()) * 2 + warpgroup;
        stores_ = stored_ != nullptr && b == place.b && h_kv == place.h_kv &&
                  (!mod::DenseBias::kGroupMeets || of_group == 0);
        before_ =
            mod::DenseBias::kGroupMeets
                ? 0
                : of_group * kParts * ((attention.q_len + mod::kQueryTile - 1) / mod::kQueryTile);
    }
    __device__ bool stores() const { return stores_; }
    // Called before a part of the queries is added: waits until it has been stored.
    __device__ void wait(int part) const {
        if (stored_ != nullptr && !stores_) wait_for_semaphore(stored_, before_ + part + 1);
    }
    // Reports that all lanes have stored a part. Called after the wait for the next part, so that
    // nobody has to wait until the stores are in memory.
    __device__ void tell_before() {
        if (!stores_ || !is_pending_) return;
        __syncwarp();
        if (threadIdx.x % 32 == 0) release_semaphore(stored_);
        is_pending_ = false;
    }
    __device__ void tell_later() { is_pending_ = true; }

  private:
    int* stored_;
    int before_;
    bool stores_, is_pending_ = false;
};

// Called by one warp: stores or adds rows of a part, from shared memory to the gradient. A lane
// moves 16 bytes, the warp two rows at a time.
__device__ inline void add_part(const BiasRows<float>& to, int first_row, int rows, int keys,
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

// Does the same from kRowCount rows of a panel of dS, which is in 16 bits and swizzled.
template <int kRowCount = mod::kQueryTile>
__device__ inline void add_panel(const BiasRows<float>& to, int first_row, int rows, int keys,
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
    for (int i = 0; i < kRowCount;
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

// Called by one warp for each consumer warpgroup: adds what that warpgroup has of each tile of
// gradients. Part: how parts are waited for and added, see below.
template <typename Part>
__device__ inline void add_dense_biases(const KernelArguments& attention,
                                        const mod::Arguments& arguments, Shared shared,
                                        const KeyTile& keys, int warpgroup) {
    const int first_key = keys.first_kv + 64 * warpgroup;
    const Part of(shared, warpgroup);
    unsigned parity = 0;
    visit_heads(attention, arguments, keys, [&](const HeadPlace& place, TileRange tiles) {
        FirstToStore first(attention, place, keys, warpgroup);
#pragma unroll 1
        for (QueryTiles walk(attention, place, keys, tiles); !walk.is_done(); walk.advance())
#pragma unroll 1
            for (int part = 0; part < kParts; ++part, parity ^= 1) {
                const int first_row = walk.tile() * mod::kQueryTile + part * kPartRows;
                of.wait(parity);
                first.tell_before();
                first.wait(walk.tile() * kParts + part);
#pragma unroll
                for (int gradient = 0; gradient < mod::kGradients; ++gradient) {
                    if (mod::ReadGradients::sum_of(gradient) != mod::Sum::dense_bias) continue;
                    const auto to = BiasRows<float>::of(
                        attention, arguments, place, first_key, [&](const mod::At& at) {
                            // Never an exact::Sum: gradients that need one are summed in other
                            // ways.
                            return reinterpret_cast<float*>(
                                mod::ReadGradients::address(at, gradient));
                        });
                    of.add(to, first_row, min(attention.q_len - first_row, kPartRows),
                           attention.kv_len - first_key, parity, first.stores());
                }
                of.release();
                first.tell_later();
            }
        first.tell_before();
    });
}

// No gradient of a dense bias is added by tiles.
struct NoBiasGradient {
    static constexpr bool kHasWarps = false;
    // Called by consumers: wait until a part of a step has memory; store its dS; signal that it is
    // there; and do the same for the second half of a long tile's queries.
    static __device__ void wait(const Shared&, int, unsigned, int) {}
    template <int kCount>
    static __device__ void store(const TileBiases&, const float (&)[kCount], int) {}
    static __device__ void hand_over(const Shared&, int) {}
    template <int kCount>
    static __device__ void hand_over_second_half(const Shared&, int, unsigned, const TileBiases&,
                                                 const float (&)[kCount]) {}
    // Adds one element, as SumOf::add() does.
    static __device__ void add(int, float, int, int, const TileBiases&) {}
    // Called by two warps of the producer warpgroup.
    static __device__ void serve(const KernelArguments&, const mod::Arguments&, Shared,
                                 const KeyTile&, int) {}
};

// Gradients are added from the tile of dS.
struct BiasGradientInTiles : NoBiasGradient {
    static constexpr bool kHasWarps = true;

    struct Part {
        const unsigned panel;
        __device__ Part(const Shared& shared, int warpgroup)
            : panel(shared.base + kLayout.d_scores + warpgroup * kQueryPanel) {}
        __device__ void wait(unsigned) const { synchronize_d_scores(); }
        __device__ void add(const BiasRows<float>& to, int first_row, int rows, int keys,
                            unsigned parity, bool stores) const {
            add_panel(to, first_row, rows, keys, panel + parity * kDScoresBytes, stores);
        }
        __device__ void release() const {}
    };
    static __device__ void serve(const KernelArguments& attention, const mod::Arguments& arguments,
                                 Shared shared, const KeyTile& keys, int warpgroup) {
        add_dense_biases<Part>(attention, arguments, shared, keys, warpgroup);
    }
};

// Gradients are added from the shared memory that pieces of dq have in other kernels.
struct BiasGradientInParts : NoBiasGradient {
    static constexpr bool kHasWarps = true;

    struct Part {
        const Shared& shared;
        const int warpgroup;
        __device__ Part(const Shared& shared, int warpgroup)
            : shared(shared), warpgroup(warpgroup) {}
        __device__ void wait(unsigned parity) const { shared.piece_full(warpgroup).wait(parity); }
        __device__ void add(const BiasRows<float>& to, int first_row, int rows, int keys, unsigned,
                            bool stores) const {
            add_part(to, first_row, rows, keys,
                     shared.base + kLayout.query_gradient + warpgroup * kPartBytes, stores);
        }
        __device__ void release() const { shared.piece_empty(warpgroup).arrive(); }
    };
    static __device__ void serve(const KernelArguments& attention, const mod::Arguments& arguments,
                                 Shared shared, const KeyTile& keys, int warpgroup) {
        add_dense_biases<Part>(attention, arguments, shared, keys, warpgroup);
    }
    static __device__ void wait(const Shared& shared, int warpgroup, unsigned step, int part) {
        shared.piece_empty(warpgroup).wait(((step * kParts + part) & 1) ^ 1);
    }
    static __device__ void hand_over(const Shared& shared, int warpgroup) {
        shared.piece_full(warpgroup).arrive();
    }
};

// The gradient is dS itself.
struct BiasGradientOfScores : BiasGradientInParts {
    template <int kCount>
    static __device__ void store(const TileBiases& biases, const float (&d_scores)[kCount],
                                 int part) {
        biases.store_part(d_scores, part);
    }
    template <int kCount>
    static __device__ void hand_over_second_half(const Shared& shared, int warpgroup, unsigned step,
                                                 const TileBiases& biases,
                                                 const float (&d_scores)[kCount]) {
        if constexpr (kParts == 2) {
            wait(shared, warpgroup, step, 1);
            store(biases, d_scores, 1);
            publish_shared();
            hand_over(shared, warpgroup);
        }
    }
};

// The gradient is what a derivative makes of dS, element by element.
struct BiasGradientOfElements : BiasGradientInParts {
    static __device__ void add(int gradient, float d_read, int key, int j,
                               const TileBiases& biases) {
        if (gradient == mod::DenseBias::kGradient) biases.store(query_of(j), 8 * key, d_read);
    }
};

using BiasGradient = Select<kAddsTiles, BiasGradientInTiles,
                            Select<kAddsScores, BiasGradientOfScores,
                                   Select<kAddsParts, BiasGradientOfElements, NoBiasGradient>>>;

template <> struct SumOf<mod::Sum::dense_bias> : NoSum {
    template <typename Sums>
    static __device__ void add(int gradient, float d_read, const mod::At&, int key, int j,
                               Sums& sums) {
        BiasGradient::add(gradient, d_read, key, j, sums.biases);
    }
};

} // namespace sm90
