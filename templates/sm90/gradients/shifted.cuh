// Gradients of reads whose addresses are affine in q and kv, from the tile of dS. Two warps of the
// producer's warpgroup add lines of it to memory, where elements of a line are side by side, and
// sums over what is beyond a clamp.
#pragma once

#include "sm90/gradients/sum.cuh"
#include "sm90/gradients/warp_panel.cuh"

namespace sm90 {

// A warp's panel by rows and by keys.
struct ShiftedPanel : WarpPanel {
    static_assert(kRows % 32 == 0);
    explicit __device__ ShiftedPanel(const WarpPanel& panel) : WarpPanel(panel) {}

    // Lanes have keys side by side: visit(row, key, dS) for each row, of two keys.
    template <typename Visit> __device__ void visit_rows(Visit visit) const {
        const int key = lane();
#pragma unroll 4
        for (int row = 0; row < kRows; ++row)
#pragma unroll
            for (int half = 0; half < kKeys; half += 32) {
                const int chunk = (key + half) / 8 ^ row % 8;
                const unsigned word =
                    load_shared_half(d_scores + row * kRowBytes + chunk * 16 + key % 8 * 2);
                visit(row, key + half, flexc_first(mod::Element{}, word));
            }
    }
    // Lanes have rows side by side, eight of them the same key, four others each: lanes never meet
    // in a bank. visit(row, key, dS) of all keys of some rows.
    template <typename Visit> __device__ void visit_keys(int first_row, Visit visit) const {
        const int row = first_row + lane(), turn = lane() / 8;
        const unsigned from = d_scores + row * kRowBytes;
#pragma unroll 4
        for (int word = 0; word < kKeys / 2; ++word) {
            const int of_lane = word / 4 * 4 + (word + turn) % 4;
            const unsigned pair =
                load_shared_word(from + (of_lane / 4 ^ row % 8) * 16 + of_lane % 4 * 4);
            visit(row, 2 * of_lane, flexc_first(mod::Element{}, pair));
            visit(row, 2 * of_lane + 1, flexc_second(mod::Element{}, pair));
        }
    }
};

// One gradient in one panel.
template <int kGradient> class ShiftedSum {
    using To = mod::ShiftedGradient<kGradient>;
    static constexpr int kRows = ShiftedPanel::kRows, kKeys = ShiftedPanel::kKeys;

  public:
    __device__ ShiftedSum(const AttentionArguments& attention, const mod::Arguments& arguments,
                          const HeadPlace& place, const ShiftedPanel& panel)
        : panel_(panel) {
        const auto address = [&](int query, int key) {
            return visit_element(attention, arguments, place, query, key,
                                 [](const mod::At& at) { return To::address(at); });
        };
        float* const first = address(0, 0);
        query_step_ = attention.q_len > 1 ? address(1, 0) - first : 0;
        key_step_ = attention.kv_len > 1 ? address(0, 1) - first : 0;
        corner_ = first + panel.first_query * query_step_ + panel.first_key * key_step_;
        visit_element(attention, arguments, place, 0, 0, [&](const mod::At& at) {
            const long long index =
                To::index(at) + To::kQueryStep * panel.first_query + To::kKeyStep * panel.first_key;
            low_ = bounded(To::least(at) - index);
            high_ = bounded(To::most(at) - index);
            step_ = To::step(at);
        });
    }

    __device__ void add() const {
        constexpr int kLastRow = kRows - 1, kLastKey = kKeys - 1;
        const int lowest =
            (To::kQueryStep < 0 ? -kLastRow : 0) + (To::kKeyStep < 0 ? -kLastKey : 0);
        const int highest = (To::kQueryStep > 0 ? kLastRow : 0) + (To::kKeyStep > 0 ? kLastKey : 0);
        const bool is_inside = low_ <= lowest && highest <= high_;
        if (low_ <= highest && lowest <= high_) add_lines(is_inside);
        if ((To::kHasLeast || To::kHasMost) && !is_inside) add_ends();
    }

  private:
    static __device__ int bounded(long long x) {
        return static_cast<int>(
            flexc_min(flexc_max(x, -static_cast<long long>(kAnyDistance)), kAnyDistance + 0ll));
    }
    static __device__ int index_of(int row, int key) {
        return To::kQueryStep * row + To::kKeyStep * key;
    }
    __device__ float* address(int row, int key) const {
        return corner_ + row * query_step_ + key * key_step_;
    }

    // Elements whose index is one of the buffer, and of the clamp, each to its place.
    __device__ void add_lines(bool is_inside) const {
        const auto add = [&](int row, int key, float d_score) {
            const int index = index_of(row, key);
            if (d_score != 0 && (is_inside || (index >= low_ && index <= high_)))
                add_float(address(row, key), d_score * To::kFactor);
        };
        if constexpr (To::kByKey) {
#pragma unroll 1
            for (int row = 0; row < kRows; row += 32)
                panel_.visit_keys(row, add);
        } else {
            panel_.visit_rows(add);
        }
    }
    // The others, summed over their lines, to the places of the clamp's ends.
    __device__ void add_ends() const {
        if constexpr (To::kByKey) {
            float below[kKeys / 32] = {}, above[kKeys / 32] = {};
            panel_.visit_rows([&](int row, int key, float d_score) {
                sort(row, key, d_score, below[key / 32], above[key / 32]);
            });
#pragma unroll
            for (int i = 0; i < kKeys / 32; ++i)
                add_ends_of(0, ShiftedPanel::lane() + 32 * i, below[i], above[i]);
        } else {
#pragma unroll 1
            for (int row = 0; row < kRows; row += 32) {
                float below = 0, above = 0;
                panel_.visit_keys(row, [&](int of_lane, int key, float d_score) {
                    sort(of_lane, key, d_score, below, above);
                });
                add_ends_of(row + ShiftedPanel::lane(), 0, below, above);
            }
        }
    }
    __device__ void sort(int row, int key, float d_score, float& below, float& above) const {
        const int index = index_of(row, key);
        if (index < low_) below += d_score;
        if (index > high_) above += d_score;
    }
    // Of the line of this element.
    __device__ void add_ends_of(int row, int key, float below, float above) const {
        float* const at = address(row, key);
        const int index = index_of(row, key);
        if (To::kHasLeast && below != 0)
            add_float(at + (low_ - index) * step_, below * To::kFactor);
        if (To::kHasMost && above != 0)
            add_float(at + (high_ - index) * step_, above * To::kFactor);
    }

    const ShiftedPanel& panel_;
    float* corner_;                          // of the panel's first element
    long long query_step_, key_step_, step_; // to the next one, and to the next index
    int low_, high_;                         // indices that there are, from the first element's on
};

template <int kGradient = 0>
__device__ inline void add_shifted(const AttentionArguments& attention,
                                   const mod::Arguments& arguments, const HeadPlace& place,
                                   const ShiftedPanel& panel) {
    if constexpr (kGradient < mod::kShiftedGradients) {
        read_again(arguments);
        ShiftedSum<kGradient>(attention, arguments, place, panel).add();
        add_shifted<kGradient + 1>(attention, arguments, place, panel);
    }
}

// By one warp, for all of the block's tiles.
__device__ inline void sum_shifts(const KernelArguments& attention, const mod::Arguments& arguments,
                                  Shared shared, const KeyTile& keys, int warp) {
    visit_panels(attention, arguments, shared, keys, warp,
                 [&](const HeadPlace& place, const WarpPanel& panel) {
                     add_shifted(attention, arguments, place, ShiftedPanel(panel));
                 });
}

} // namespace sm90
