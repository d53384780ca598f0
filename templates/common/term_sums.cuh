// Gradients of the terms of sums over a tile, with the loops over terms and elements interchanged:
// a thread adds up its elements for one term after another by what the address depends on, a head,
// a query or a key. Its warp adds the lanes' sums. Those of heads and keys stay in the warp's own
// shared memory while queries pass by. The kernel passes its tile as a class with these members:
//     kKeys, kQueries, kWarpKeys: of a thread, and of its warp
//     kSlots: of the values that load() gives
//     visit_elements(visit): calls visit(key, query, i, at) for the thread's elements
//     d_modified(i), load(i, carried): d loss / d (modified score) of the i-th element, and what
//         enters its terms
//     at_head(): an element of the head, for reads by heads
//     visit_key_sums(sums, visit): adds up the lanes' sums of keys, and calls visit(key of the
//         warp, at, sum) in one lane for each key that exists
//     visit_query_sums(sums, visit): the same of queries: visit(at, sum)
//     visit_warp_keys(visit): calls visit(key of the warp, at, first, step) for keys of which the
//         lane adds sums first, first + step, ... to memory
//     word_address(word): of a word of the warp's own memory
#pragma once

#include "common/again.cuh"
#include "common/lane_sums.cuh"
#include "common/shared_words.cuh"
#include "common/static_for.cuh"

// The reads of a sum's terms, sorted by the place of their sums.
template <typename Terms> struct TermReads {
    static constexpr __device__ int count(mod::TermPlace place, int end = Terms::kReads) {
        int reads = 0;
        for (int read = 0; read < end; ++read)
            reads += Terms::place(read) == place;
        return reads;
    }
    // Returns the read that has this index among those of its place.
    static constexpr __device__ int read(mod::TermPlace place, int index) {
        for (int read = 0; read < Terms::kReads; ++read)
            if (Terms::place(read) == place && index-- == 0) return read;
        return 0;
    }
    static constexpr int kHeads = count(mod::TermPlace::head);
    static constexpr int kKeys = count(mod::TermPlace::key);
    static constexpr int kQueries = count(mod::TermPlace::query);

    // What is known of a read when the kernel is compiled.
    template <int kRead> struct One {
        static constexpr int kValue = kRead;
        static constexpr mod::TermPlace kPlace = Terms::place(kRead);
        static constexpr int kIndex = count(kPlace, kRead);
    };
    // Calls visit(One<read>) for each.
    template <typename Visit> static __device__ void visit(Visit visit_read) {
        static_for<Terms::kReads>([&](auto read) { visit_read(One<decltype(read)::kValue>{}); });
    }
};

// A thread's sums of one term.
template <typename Terms, int kThreadQueries, int kThreadKeys> struct TermSum {
    using Reads = TermReads<Terms>;
    using Place = mod::TermPlace;

    float of_head[Reads::kHeads + 1]{};
    float of_key[Reads::kKeys + 1][kThreadKeys]{};
    float of_query[Reads::kQueries + 1][kThreadQueries]{};

    // Adds an element's part of a read.
    template <typename Read> __device__ void add(Read, float d_read, int key, int query) {
        if constexpr (Read::kPlace == Place::head) of_head[Read::kIndex] += d_read;
        if constexpr (Read::kPlace == Place::key) of_key[Read::kIndex][key] += d_read;
        if constexpr (Read::kPlace == Place::query) of_query[Read::kIndex][query] += d_read;
    }
    // Whether none of the sums that may be infinite or NaN is.
    __device__ bool are_finite() const {
        float zero = 0;
        Reads::visit([&](auto read) {
            using Read = decltype(read);
            if constexpr (!Terms::is_finite(Read::kValue)) {
                if constexpr (Read::kPlace == Place::head)
                    zero = fmaf(of_head[Read::kIndex], 0, zero);
                if constexpr (Read::kPlace == Place::key)
#pragma unroll
                    for (int key = kThreadKeys - 1; key >= 0; --key)
                        zero = fmaf(of_key[Read::kIndex][key], 0, zero);
                if constexpr (Read::kPlace == Place::query)
#pragma unroll
                    for (int query = 0; query < kThreadQueries; ++query)
                        zero = fmaf(of_query[Read::kIndex][query], 0, zero);
            }
        });
        return zero == 0;
    }
};

// A warp's sums of heads and keys of all terms: of each sum, one word for each term and read of a
// head, and behind these one for each term, read of a key, and key of the warp.
template <typename Tile> class TermWords {
  public:
    static constexpr int kWords = mod::TermSums::kWords;

    static __device__ void clear(const Tile& tile) {
        __syncwarp(); // lanes may still read the sums of the head before
        for (int i = lane_again(); i < kWords; i += 32)
            store_shared_word(tile.word_address(i), 0);
        __syncwarp();
    }
    static __device__ void add(const Tile& tile, int word, float sum) {
        store_shared_word(tile.word_address(word), __float_as_uint(load(tile, word) + sum));
    }
    static __device__ float load(const Tile& tile, int word) {
        return __uint_as_float(load_shared_word(tile.word_address(word)));
    }
    template <typename Terms> static __device__ int word_of_head(int term, int index) {
        return Terms::kFirstWord + term * TermReads<Terms>::kHeads + index;
    }
    template <typename Terms> static __device__ int word_of_key(int term, int index, int key) {
        using Reads = TermReads<Terms>;
        return Terms::kFirstWord + Terms::kCount * Reads::kHeads +
               (term * Reads::kKeys + index) * Tile::kWarpKeys + key;
    }
};

// Adds to memory what a term's read has got from elements at the same address.
template <typename Terms, typename Counter>
__device__ inline void add_term(const mod::At& at, int read, Counter counter, float sum) {
    if (sum == 0) return;
    if (auto* const to = Terms::address(at, read, counter))
        flexc_accumulate(to, sum * Terms::factor(at, read, counter));
}

// Sums the terms of one sum over a tile.
template <typename Terms, typename Tile> class TermSummation {
  public:
    using Counter = typename Terms::Counter;
    using Reads = TermReads<Terms>;
    using Sum = TermSum<Terms, Tile::kQueries, Tile::kKeys>;
    using Words = TermWords<Tile>;

    explicit __device__ TermSummation(const Tile& tile) : tile_(tile) {}

    __device__ void sum_all() const {
        const mod::At at = tile_.at_head();
        const Counter first = Terms::first(at), end = Terms::end(at);
#pragma unroll 1
        for (Counter counter = first; counter < end; ++counter) {
            Sum sum = of_term<false>(counter);
            // A hidden element adds nothing, even if its part is infinite or NaN.
            if (!sum.are_finite()) sum = of_term<true>(counter);
            const int term = static_cast<int>(counter - first);
            add_heads<0>(counter, term, sum);
            add_keys(counter, term, sum);
            add_queries(counter, sum);
        }
    }

    // Adds what the warp has kept to memory, after the queries of a head.
    __device__ void flush() const {
        __syncwarp();
        const mod::At at = tile_.at_head();
        const Counter first = Terms::first(at);
        const int lane = lane_again();
#pragma unroll 1
        for (int i = lane; i < Terms::kCount * Reads::kHeads; i += 32)
            add_term<Terms>(at, Reads::read(mod::TermPlace::head, i % Reads::kHeads),
                            static_cast<Counter>(first + i / Reads::kHeads),
                            Words::load(tile_, Words::template word_of_head<Terms>(0, i)));
        if constexpr (Reads::kKeys > 0)
            tile_.visit_warp_keys([&](int key, const mod::At& at_key, int begin, int step) {
#pragma unroll 1
                for (int i = begin; i < Terms::kCount * Reads::kKeys; i += step)
                    add_term<Terms>(
                        at_key, Reads::read(mod::TermPlace::key, i % Reads::kKeys),
                        static_cast<Counter>(first + i / Reads::kKeys),
                        Words::load(tile_, Words::template word_of_key<Terms>(0, i, key)));
            });
    }

  private:
    static constexpr bool kKeepsSums = mod::TermSums::kWords > 0;
    static constexpr int kHeadsAtOnce = 8;

    // Returns the thread's sums of a term. kChecks: elements without a gradient are left out, and
    // those that add to memory one by one have done so before.
    template <bool kChecks> __device__ Sum of_term(Counter counter) const {
        Sum sum;
        tile_.visit_elements([&](int key, int query, int i, const mod::At& at) {
            const float d_modified = tile_.d_modified(i);
            if (kChecks && d_modified == 0) return;
            float carried[Tile::kSlots];
            tile_.load(i, carried);
            const auto parts = Terms::parts(at, carried, counter);
            Reads::visit([&](auto read) {
                constexpr int kRead = decltype(read)::kValue;
                const float d_read = parts.of[kRead] * d_modified;
                if constexpr (decltype(read)::kPlace != mod::TermPlace::element)
                    sum.add(read, d_read, key, query);
                else if (!kChecks && d_modified != 0)
                    add_term<Terms>(at, kRead, counter, d_read);
            });
        });
        return sum;
    }

    template <int kBegin>
    __device__ void add_heads(Counter counter, int term, const Sum& sum) const {
        if constexpr (kBegin < Reads::kHeads) {
            constexpr int kLeft = Reads::kHeads - kBegin;
            constexpr int kPadded = kLeft > 4 ? kHeadsAtOnce : kLeft > 2 ? 4 : kLeft;
            float sums[kPadded];
#pragma unroll
            for (int i = 0; i < kPadded; ++i)
                sums[i] = i < kLeft ? sum.of_head[kBegin + i] : 0;
            const int lane = lane_again();
            const int index = kBegin + sum_over_lanes<kPadded, 16, 1>(sums, lane);
            if (lane % (32 / kPadded) == 0 && index < Reads::kHeads) {
                if (kKeepsSums)
                    Words::add(tile_, Words::template word_of_head<Terms>(term, index), sums[0]);
                else
                    add_term<Terms>(tile_.at_head(), Reads::read(mod::TermPlace::head, index),
                                    counter, sums[0]);
            }
            add_heads<kBegin + kHeadsAtOnce>(counter, term, sum);
        }
    }
    __device__ void add_keys(Counter counter, int term, Sum& sum) const {
#pragma unroll
        for (int index = 0; index < Reads::kKeys; ++index)
            tile_.visit_key_sums(sum.of_key[index], [&](int key, const mod::At& at, float of_key) {
                if (kKeepsSums)
                    Words::add(tile_, Words::template word_of_key<Terms>(term, index, key), of_key);
                else
                    add_term<Terms>(at, Reads::read(mod::TermPlace::key, index), counter, of_key);
            });
    }
    __device__ void add_queries(Counter counter, Sum& sum) const {
#pragma unroll
        for (int index = 0; index < Reads::kQueries; ++index)
            tile_.visit_query_sums(sum.of_query[index], [&](const mod::At& at, float of_query) {
                add_term<Terms>(at, Reads::read(mod::TermPlace::query, index), counter, of_query);
            });
    }

    const Tile& tile_;
};

template <typename Tile> __device__ inline void sum_terms_of(const Tile& tile) {
    mod::TermSums::visit(
        [&](auto terms) { TermSummation<decltype(terms), Tile>(tile).sum_all(); });
}
template <typename Tile> __device__ inline void flush_terms_of(const Tile& tile) {
    if constexpr (mod::TermSums::kWords > 0)
        mod::TermSums::visit(
            [&](auto terms) { TermSummation<decltype(terms), Tile>(tile).flush(); });
}
