// Gradients of the terms of sums, with the loops over terms and elements interchanged as those of
// the sums are (sm90/term_totals.cuh). The thread adds up its elements for one term after another
// by what the address depends on, a head, a query or a key. Its warp adds the lanes' sums. Those of
// heads and keys stay in the warp's own shared memory while queries pass by.
#pragma once

#include "common/static_for.cuh"
#include "sm90/gradients/query.cuh"
#include "sm90/gradients/sum.cuh"
#include "sm90/term_totals.cuh"

namespace sm90 {

// These are not summed element by element.
template <> struct SumOf<mod::Sum::terms> : NoSum {};

// A thread's elements of a tile: by accumulator, d loss / d (modified score) and what enters terms.
class TermElements : public CarriedValues<mod::ElementSums::kCarried, kScoreQueries / 2> {
  public:
    // Sums has what enters the terms of the element, of the thread's j-th query.
    template <typename Sums>
    __device__ void keep(int i, const Sums& sums, int key, int j, float d_modified) {
        float values[kSlots];
        sums.load(key, j, values);
        CarriedValues::keep(i, values);
        d_modified_[i] = d_modified;
    }
    __device__ float d_modified(int i) const { return d_modified_[i]; }

  private:
    float d_modified_[kScoreQueries / 2];
};

struct NoTermElements {
    template <typename Sums> __device__ void keep(int, const Sums&, int, int, float) {}
};

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
template <typename Terms> struct TermSum {
    using Reads = TermReads<Terms>;
    using Place = mod::TermPlace;

    float of_head[Reads::kHeads + 1]{};
    float of_key[Reads::kKeys + 1][2]{};
    float of_query[Reads::kQueries + 1][kScoreQueries / 4]{};

    // Adds an element's part of a read.
    template <typename Read> __device__ void add(Read, float d_read, int key, int j) {
        if constexpr (Read::kPlace == Place::head) of_head[Read::kIndex] += d_read;
        if constexpr (Read::kPlace == Place::key) of_key[Read::kIndex][key] += d_read;
        if constexpr (Read::kPlace == Place::query) of_query[Read::kIndex][j] += d_read;
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
                    zero = fmaf(of_key[Read::kIndex][0], 0, fmaf(of_key[Read::kIndex][1], 0, zero));
                if constexpr (Read::kPlace == Place::query)
#pragma unroll
                    for (int j = 0; j < kScoreQueries / 4; ++j)
                        zero = fmaf(of_query[Read::kIndex][j], 0, zero);
            }
        });
        return zero == 0;
    }
};

// Sums kCount values, a power of two, over the warp: lane i * 32 / kCount gets the i-th sum in
// values[0].
template <int kCount, int kDistance = 16, int kLength>
__device__ inline void sum_over_lanes(float (&values)[kLength]) {
    if constexpr (kDistance > 0) {
        if constexpr (kCount > 1)
            exchange<kCount / 2, kDistance>(values, lane_again());
        else
            values[0] += __shfl_xor_sync(0xffffffffu, values[0], kDistance);
        sum_over_lanes<(kCount > 1 ? kCount / 2 : 1), kDistance / 2>(values);
    }
}

// A warp's sums of heads and keys of all terms, in shared memory: of each sum, one word for each
// term and read of a head, and behind these one for each term, read of a key, and key of the warp.
class TermWords {
  public:
    static constexpr int kWords = mod::TermSums::kWords;
    static constexpr int kWarpKeys = 16;

    static __device__ void clear() {
        __syncwarp(); // lanes may still read the sums of the head before
        for (int i = lane_again(); i < kWords; i += 32)
            store_shared_word(address(i), 0);
        __syncwarp();
    }
    static __device__ void add(int word, float sum) {
        store_shared_word(address(word), __float_as_uint(load(word) + sum));
    }
    static __device__ float load(int word) {
        return __uint_as_float(load_shared_word(address(word)));
    }
    template <typename Terms> static __device__ int word_of_head(int term, int index) {
        return Terms::kFirstWord + term * TermReads<Terms>::kHeads + index;
    }
    template <typename Terms> static __device__ int word_of_key(int term, int index, int key) {
        using Reads = TermReads<Terms>;
        return Terms::kFirstWord + Terms::kCount * Reads::kHeads +
               (term * Reads::kKeys + index) * kWarpKeys + key;
    }

  private:
    static __device__ unsigned address(int word) {
        return shared_address(shared_memory) + kLayout.terms +
               4 * ((thread_again() / 32 - 4) * kWords + word);
    }
};

// Adds to memory what a term's read has got from elements at the same address.
template <typename Terms, typename Counter>
__device__ inline void add_term(const mod::At& at, int read, Counter counter, float sum) {
    if (sum == 0) return;
    if (auto* const to = Terms::address(at, read, counter))
        flexc_accumulate(to, sum * Terms::factor(at, read, counter));
}

// Sums the terms of one sum over a tile. Elements has
//     visit_tile(visit): calls visit(key, j, i, at) for a thread's elements, i their accumulators;
//     at_key(row, key), has_key(key), visit_query(query, visit): elements of a key, or of a query
//     of the tile if it exists, for addresses.
template <typename Terms, typename Elements> class TermSummation {
  public:
    using Counter = typename Terms::Counter;
    using Reads = TermReads<Terms>;
    using Sum = TermSum<Terms>;

    __device__ TermSummation(const TermElements& kept, const Elements& elements)
        : kept_(kept), elements_(elements) {}

    __device__ void sum_all() const {
        const mod::Row none{};
        const mod::At at = elements_.at_key(none, 0);
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
    static __device__ void flush(const Elements& elements) {
        __syncwarp();
        const mod::Row none{};
        const mod::At at = elements.at_key(none, 0);
        const Counter first = Terms::first(at);
        const int lane = lane_again();
#pragma unroll 1
        for (int i = lane; i < Terms::kCount * Reads::kHeads; i += 32)
            add_term<Terms>(at, Reads::read(mod::TermPlace::head, i % Reads::kHeads),
                            static_cast<Counter>(first + i / Reads::kHeads),
                            TermWords::load(TermWords::word_of_head<Terms>(0, i)));
#pragma unroll
        for (int key = 0; key < 2; ++key) {
            if (Reads::kKeys == 0 || !elements.has_key(key)) continue;
            const mod::At at_key = elements.at_key(none, key);
            // A key has four lanes.
#pragma unroll 1
            for (int i = lane % 4; i < Terms::kCount * Reads::kKeys; i += 4)
                add_term<Terms>(
                    at_key, Reads::read(mod::TermPlace::key, i % Reads::kKeys),
                    static_cast<Counter>(first + i / Reads::kKeys),
                    TermWords::load(TermWords::word_of_key<Terms>(0, i, lane / 4 + 8 * key)));
        }
    }

  private:
    static constexpr bool kKeepsSums = mod::TermSums::kWords > 0;
    static constexpr int kHeadsAtOnce = 8;

    // Returns the thread's sums of a term. kChecks: elements without a gradient are left out, and
    // those that add to memory one by one have done so before.
    template <bool kChecks> __device__ Sum of_term(Counter counter) const {
        Sum sum;
        elements_.visit_tile([&](int key, int j, int i, const mod::At& at) {
            const float d_modified = kept_.d_modified(i);
            if (kChecks && d_modified == 0) return;
            float carried[TermElements::kSlots];
            kept_.load(i, carried);
            const auto parts = Terms::parts(at, carried, counter);
            Reads::visit([&](auto read) {
                constexpr int kRead = decltype(read)::kValue;
                const float d_read = parts.of[kRead] * d_modified;
                if constexpr (decltype(read)::kPlace != mod::TermPlace::element)
                    sum.add(read, d_read, key, j);
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
            sum_over_lanes<kPadded>(sums);
            const int lane = lane_again(), index = kBegin + lane / (32 / kPadded);
            if (lane % (32 / kPadded) == 0 && index < Reads::kHeads) {
                if (kKeepsSums)
                    TermWords::add(TermWords::word_of_head<Terms>(term, index), sums[0]);
                else
                    add_term<Terms>(elements_.at_key(mod::Row{}, 0),
                                    Reads::read(mod::TermPlace::head, index), counter, sums[0]);
            }
            add_heads<kBegin + kHeadsAtOnce>(counter, term, sum);
        }
    }
    __device__ void add_keys(Counter counter, int term, Sum& sum) const {
#pragma unroll
        for (int index = 0; index < Reads::kKeys; ++index) {
            const int lane = lane_again(), key = lane % 4 / 2;
            float(&sums)[2] = sum.of_key[index];
            exchange<1, 2>(sums, lane);
            sums[0] += __shfl_xor_sync(0xffffffffu, sums[0], 1);
            if (lane % 2 != 0 || !elements_.has_key(key)) continue;
            if (kKeepsSums)
                TermWords::add(TermWords::word_of_key<Terms>(term, index, lane / 4 + 8 * key),
                               sums[0]);
            else
                add_term<Terms>(elements_.at_key(mod::Row{}, key),
                                Reads::read(mod::TermPlace::key, index), counter, sums[0]);
        }
    }
    __device__ void add_queries(Counter counter, Sum& sum) const {
#pragma unroll
        for (int index = 0; index < Reads::kQueries; ++index) {
            if constexpr (kExchangesEarly)
                exchange<kScoreQueries / 8, 16>(sum.of_query[index], lane_again());
            visit_warp_sums(sum.of_query[index], [&](int query, float of_query) {
                elements_.visit_query(query, [&](const mod::At& at) {
                    add_term<Terms>(at, Reads::read(mod::TermPlace::query, index), counter,
                                    of_query);
                });
            });
        }
    }

    const TermElements& kept_;
    const Elements& elements_;
};

template <typename Kept, typename Elements>
__device__ inline void sum_terms(const Kept& kept, const Elements& elements) {
    mod::TermSums::visit(
        [&](auto terms) { TermSummation<decltype(terms), Elements>(kept, elements).sum_all(); });
}
template <typename Elements> __device__ inline void flush_terms(const Elements& elements) {
    if constexpr (mod::TermSums::kWords > 0)
        mod::TermSums::visit(
            [&](auto terms) { TermSummation<decltype(terms), Elements>::flush(elements); });
}

} // namespace sm90
