// Addends by kinds of pairs of a query and a key. Each lane of the consumer warps has a copy of
// what a head adds for each kind, in a bank of its own, so that no lane waits for another; of many
// kinds, two lanes share a copy, or all do. Threads beside the producer store the copies where
// other programs have tables; the bytes that say which entries elements take arrive with their
// keys. Products are added to what is read, which needs no score and comes under the exponentials
// of the keys before.
#pragma once

#include "common/math.cuh"
#include "sm90/forward_tables.cuh"
#include "sm90/key_kinds.cuh"
#include "sm90/pair_kinds.cuh"
#include "sm90/tma.cuh"

namespace sm90 {

// Called by the producer before it loads the keys of a tile into a stage.
struct NoPairKinds {
    static __device__ void load(const KernelArguments&, const Task&, int, const Shared&, int) {}
};

struct LoadedPairKinds;
using PairKinds = Select<kHasPairKinds, LoadedPairKinds, NoPairKinds>;

#ifdef FLEXC_HAS_KEY_KINDS

struct LoadedPairKinds {
    static __device__ void load(const KernelArguments& attention, const Task& task, int tile,
                                const Shared& shared, int stage) {
        const Barrier full = shared.keys.full(stage);
        full.expect(PairKindRing::kBytes);
        load_bytes(shared.pair_kinds.at(stage),
                   pair_tile(attention, task.b, task.first_row / mod::kQueryTile, tile),
                   PairKindRing::kBytes, full);
    }
};
// Copies of each entry.
constexpr int kPairCopies = kHasPairKinds ? mod::kSizes.table_words / kPairKinds.entries : 1;

// The copies of what a head adds.
struct PairAddends {
    static __device__ void copy(const mod::At& at, const HeadPlace& place, bool is_first, int b,
                                int h, unsigned to, float per_product, int thread) {
        if (!is_first && b == at.b && h == at.h) return;
        store_copies(at.arguments, place, at.row, at.q, to, per_product, thread, kTableThreads);
    }
    // Stores a thread's part, in an order in which neighbouring threads do not meet in a bank.
    // per_product: factor from scores to products.
    static __device__ void store_copies(const mod::Arguments& arguments, const HeadPlace& place,
                                        const mod::Row& row, int q, unsigned to, float per_product,
                                        int thread, int threads) {
        constexpr int kAtOnce = kPairKinds.kind_bytes == 1 ? 1 : 4; // kinds that are read together
#pragma unroll 1
        for (int first = thread; first <= mod::KeyKinds::kCount; first += kAtOnce * threads) {
            float addends[kAtOnce];
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i)
                addends[i] = multiply_finite(
                    addend_of_kind(arguments, place, row, q, first + i * threads), per_product);
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i)
                if (const int kind = first + i * threads; kind <= mod::KeyKinds::kCount)
                    store_entry(to, kind, addends[i]);
        }
    }

  private:
    static __device__ void store_entry(unsigned to, int kind, float addend) {
        constexpr int kEntryBytes = 4 * kPairCopies, kChunks = kEntryBytes / 16;
        if constexpr (kChunks == 0)
            store_shared_word(to + kind * kEntryBytes, __float_as_uint(addend));
#pragma unroll
        for (int i = 0; i < kChunks; ++i)
            store_shared(to + kind * kEntryBytes + (kind + i) % kChunks * 16, addend, addend,
                         addend, addend);
    }
};

class CopiedPairKinds : public NoKeyKinds {
  public:
    static constexpr bool kComeBeforeProducts = true;

    __device__ void find_copies(unsigned copies) { copies_ = copies; }
    __device__ void start(Scores& scores, const Shared& shared, const Position<Keys>& key,
                          const ConsumerThread& thread) const {
        load(scores, shared.pair_kinds.at(key.stage), copies_, thread);
    }
    // Also called after the last tile of keys, where the bytes are those of the stage before: what
    // is read then does not matter, and a branch would move the reads out of the exponentials'
    // shadow.
    __device__ void start_next(Scores& scores, const Shared& shared, const Position<Keys>& key,
                               const ConsumerThread& thread, bool has_more) const {
        if (has_more) shared.keys.full(key.stage).wait(key.parity);
        const int before = (key.stage == 0 ? Keys::kStages : key.stage) - 1;
        load(scores, shared.pair_kinds.at(has_more ? key.stage : before), copies_, thread);
        pin(scores);
    }
    // Adds nothing, but waits until all lanes have read which copies elements take.
    __device__ void add_apart(Scores&, unsigned, unsigned, const ConsumerThread&) const {
        __syncwarp();
    }
    static __device__ void load(Scores& scores, unsigned kinds, unsigned copies,
                                const ConsumerThread& thread) {
        constexpr int kChunk = PairKindsLayout::kChunk,
                      kChunkKinds = kChunk / kPairKinds.kind_bytes;
        const unsigned of_lane =
            kinds + thread.warp_row() / 16 * kPairKinds.warp_bytes + thread.lane * kChunk;
        const unsigned from = copies + 4 * (thread.lane % kPairCopies);
#pragma unroll
        for (int r = 0; r < KindCopiesLayout::kRows; ++r)
#pragma unroll
            for (int first = 0; first < kFragmentColumns; first += kChunkKinds) {
                int words[4];
                load_shared(of_lane +
                                (r * kPairKinds.row_chunks + first / kChunkKinds) * 32 * kChunk,
                            words[0], words[1], words[2], words[3]);
#pragma unroll
                for (int j = first; j < min(first + kChunkKinds, kFragmentColumns); ++j)
                    scores[accumulator(r, j)] = load_shared_float(
                        copy_of(static_cast<unsigned>(words[j % kChunkKinds / kWordKinds]),
                                j % kWordKinds, from));
            }
    }

  private:
    // Address of the copy of a word's i-th kind: the kind times the bytes of an entry, from the
    // first one on.
    static __device__ unsigned copy_of(unsigned word, int i, unsigned from) {
        const unsigned factors = 4u * kPairCopies << 8 * i;
        return kPairKinds.kind_bytes == 1 ? __dp4a(word, factors, from)
                                          : __dp2a_lo(word, factors, from);
    }

    unsigned copies_; // address of the first kind's
};

#endif

} // namespace sm90
