// Gradients of the terms of sums, with the loops over terms and elements interchanged as those of
// the sums are (sm90/term_totals.cuh): common/term_sums.cuh, of a warp's 16 keys.
#pragma once

#include "common/term_sums.cuh"
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

// Where a warp keeps its sums.
struct TermMemory {
    static constexpr int kWarpKeys = kTermKeys;
    static __device__ unsigned word_address(int word) {
        return shared_address(shared_memory) + kLayout.terms +
               4 * ((thread_again() / 32 - 4) * mod::TermSums::kWords + word);
    }
};

// A tile as TermSummation needs it. Elements has
//     visit_tile(visit): calls visit(key, j, i, at) for a thread's elements, i their accumulators;
//     at_key(row, key), has_key(key), visit_query(query, visit): elements of a key, or of a query
//     of the tile if it exists, for addresses.
template <typename Elements> class TermTile : public TermMemory {
  public:
    static constexpr int kKeys = 2, kQueries = kScoreQueries / 4;

    explicit __device__ TermTile(const Elements& elements) : elements_(elements) {}

    __device__ mod::At at_head() const { return elements_.at_key(no_row_, 0); }
    template <typename Visit>
    __device__ void visit_key_sums(float (&sums)[kKeys], Visit visit_sum) const {
        const int lane = lane_again(), key = lane % 4 / 2;
        sum_over_lanes<kKeys, 2, 1>(sums, lane);
        if (lane % 2 != 0 || !elements_.has_key(key)) return;
        visit_sum(lane / 4 + 8 * key, elements_.at_key(no_row_, key), sums[0]);
    }
    template <typename Visit>
    __device__ void visit_query_sums(float (&sums)[kQueries], Visit visit_sum) const {
        if constexpr (kExchangesEarly) exchange<kScoreQueries / 8, 16>(sums, lane_again());
        visit_warp_sums(sums, [&](int query, float sum) {
            elements_.visit_query(query, [&](const mod::At& at) { visit_sum(at, sum); });
        });
    }
    // A key has four lanes.
    template <typename Visit> __device__ void visit_warp_keys(Visit visit_key) const {
        const int lane = lane_again();
#pragma unroll
        for (int key = 0; key < kKeys; ++key)
            if (elements_.has_key(key))
                visit_key(lane / 4 + 8 * key, elements_.at_key(no_row_, key), lane % 4, 4);
    }

  protected:
    const Elements& elements_;

  private:
    mod::Row no_row_{};
};
template <typename Elements> class KeptTermTile : public TermTile<Elements> {
  public:
    static constexpr int kSlots = TermElements::kSlots;

    __device__ KeptTermTile(const TermElements& kept, const Elements& elements)
        : TermTile<Elements>(elements), kept_(kept) {}

    template <typename Visit> __device__ void visit_elements(Visit visit_element) const {
        this->elements_.visit_tile(visit_element);
    }
    __device__ float d_modified(int i) const { return kept_.d_modified(i); }
    __device__ void load(int i, float (&carried)[kSlots]) const { kept_.load(i, carried); }

  private:
    const TermElements& kept_;
};

__device__ inline void clear_terms() { TermWords<TermMemory>::clear({}); }
template <typename Kept, typename Elements>
__device__ inline void sum_terms(const Kept& kept, const Elements& elements) {
    if constexpr (mod::TermSums::kExist) sum_terms_of(KeptTermTile<Elements>(kept, elements));
}
template <typename Elements> __device__ inline void flush_terms(const Elements& elements) {
    flush_terms_of(TermTile<Elements>(elements));
}

} // namespace sm90
