// Addends by kinds of keys where there are too many kinds to multiply by. Each lane of the consumer
// warps has a copy of what its two rows add for each kind, in a bank of its own, so that no lane
// waits for another. Consumers store the copies when queries arrive; threads beside the producer
// store with each tile of keys which copies these take. Products are added to what is read, which
// needs no score and comes under the exponentials of the keys before.
#pragma once

#include "common/math.cuh"
#include "sm90/key_kinds.cuh"

namespace sm90 {

#ifdef FLEXC_HAS_KEY_KINDS

class CopiedKeyKinds : public KeyKindProducers {
  public:
    static constexpr bool kComeBeforeProducts = true;

    static __device__ void produce(const AttentionArguments& attention,
                                   const mod::Arguments& arguments, const Shared& shared) {
        if (thread() < 0) return;
        constexpr int kWords = kKindCopies.key_bytes / 4;
        for (int word = thread(); word < kWords; word += kProducers)
            store_shared_word(places_of_none(shared) + 4 * word, 0);
        visit_tiles(attention, arguments, shared,
                    [&](const HeadPlace& place, int stage, int first_key) {
#pragma unroll 1
                        for (int word = thread(); word < kWords; word += kProducers)
                            store_places(attention, arguments, place, first_key,
                                         places(shared, stage), word);
                    });
    }
    // Stores which copies four neighbours among the keys of a lane take, in a byte each.
    static __device__ void store_places(const AttentionArguments& attention,
                                        const mod::Arguments& arguments, const HeadPlace& place,
                                        int first_key, unsigned places, int word) {
        const int lane = word / (kLaneBytes / 4), first = word % (kLaneBytes / 4) * 4;
        unsigned bytes = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int kind = kind_of_key(attention, arguments, place,
                                         first_key + 2 * lane + column_of(first + i));
            bytes |= static_cast<unsigned>(kind < 0 ? mod::KeyKinds::kCount : kind) << 8 * i;
        }
        store_shared_word(places + 4 * word, bytes);
    }

    __device__ void store_queries(const mod::Arguments& arguments, const HeadPlace& place,
                                  const SequenceLength& length, float scale, int warp_row,
                                  const Shared& shared, int, const ConsumerThread& thread) {
        store_rows(arguments, place, length, 1 / scale, warp_row, shared.kind_copies, thread);
    }
    // Each lane finds every fourth kind of its rows, and stores it for the four lanes that have
    // these rows. per_product: factor from scores to products.
    static __device__ void store_rows(const mod::Arguments& arguments, const HeadPlace& place,
                                      const SequenceLength& length, float per_product, int warp_row,
                                      unsigned copies, const ConsumerThread& thread) {
        constexpr int kAtOnce = 4; // kinds that are read together
        const unsigned of_warp = copies + thread.warp_row() / 16 * kKindCopies.warp_bytes;
        // Waits until all lanes have read what the tile before needs.
        __syncwarp();
#pragma unroll
        for (int r = 0; r < KindCopiesLayout::kRows; ++r) {
            const int q = length.q_idx(warp_row + thread.lane / 4 + 8 * r);
            const mod::Row row =
                mod::at_row(arguments, place.launch, place.head, place.b, place.h, place.h_kv, q);
            const unsigned of_row = of_warp + r * kKindCopies.row_bytes;
#pragma unroll 1
            for (int first = thread.lane % 4; first <= mod::KeyKinds::kCount;
                 first += 4 * kAtOnce) {
                float addends[kAtOnce];
#pragma unroll
                for (int i = 0; i < kAtOnce; ++i)
                    addends[i] = multiply_finite(
                        addend_of_kind(arguments, place, row, q, first + 4 * i), per_product);
#pragma unroll
                for (int i = 0; i < kAtOnce; ++i)
                    if (const int kind = first + 4 * i; kind <= mod::KeyKinds::kCount)
                        store_copies(of_row + kind * KindCopiesLayout::kCopyBytes, thread.lane,
                                     addends[i]);
            }
        }
        __syncwarp();
    }

    __device__ void start(Scores& scores, const Shared& shared, const Position<Keys>& key,
                          const ConsumerThread& thread) const {
        load(scores, places(shared, key.stage), shared.kind_copies, thread);
    }
    // Also called after the last tile of keys: what is read then does not matter, and a branch
    // would move the reads out of the exponentials' shadow.
    __device__ void start_next(Scores& scores, const Shared& shared, const Position<Keys>& key,
                               const ConsumerThread& thread, bool has_more) const {
        if (has_more) shared.keys.full(key.stage).wait(key.parity);
        load(scores, has_more ? places(shared, key.stage) : places_of_none(shared),
             shared.kind_copies, thread);
        pin(scores);
    }
    // Adds nothing, but waits until all lanes have read which copies keys take.
    __device__ void add_apart(Scores&, unsigned, unsigned, const ConsumerThread&) const {
        __syncwarp();
    }
    static __device__ void load(Scores& scores, unsigned places, unsigned copies,
                                const ConsumerThread& thread) {
        const unsigned of_lane = places + thread.lane % 4 * kLaneBytes;
        const unsigned from =
            copies + thread.warp_row() / 16 * kKindCopies.warp_bytes + 4 * thread.lane;
#pragma unroll
        for (int first = 0; first < kFragmentColumns; first += 16) {
            int words[4];
            load_shared(of_lane + first, words[0], words[1], words[2], words[3]);
#pragma unroll
            for (int j = first; j < min(first + 16, kFragmentColumns); ++j) {
                // Address of the copy: a byte of the word times the bytes of a copy, from the first
                // one on.
                constexpr unsigned kCopyBytes = KindCopiesLayout::kCopyBytes;
                const unsigned copy = __dp4a(static_cast<unsigned>(words[j % 16 / 4]),
                                             kCopyBytes << 8 * (j % 4), from);
#pragma unroll
                for (int r = 0; r < KindCopiesLayout::kRows; ++r)
                    scores[accumulator(r, j)] = load_shared_float(copy + r * kKindCopies.row_bytes);
            }
        }
    }

  private:
    static constexpr int kLaneBytes = KindCopiesLayout::lane_bytes(mod::kKeyTile);

    static __device__ unsigned places(const Shared& shared, int stage) {
        return shared.kind_places + stage * kKindCopies.key_bytes;
    }
    static __device__ unsigned places_of_none(const Shared& shared) {
        return places(shared, Keys::kStages);
    }
    // Stores an addend for four lanes, in an order in which the four lanes do not meet in a bank.
    static __device__ void store_copies(unsigned to, int lane, float addend) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            store_shared_word(to + 4 * (lane / 4 * 4 + (lane + i) % 4), __float_as_uint(addend));
    }
};

#endif

} // namespace sm90
