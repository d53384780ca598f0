// Gradients of reads whose addresses are affine in q and kv, from the tile of dS. Two warps of the
// producer warpgroup write lines of it to memory, where elements of a line are side by side, and
// add sums over what is beyond a clamp.
#pragma once

#include "sm80/mma.cuh"
#include "sm90/gradients/shifted_lines.cuh"
#include "sm90/gradients/shifted_rest.cuh"
#include "sm90/gradients/sum.cuh"
#include "sm90/gradients/warp_panel.cuh"
#include "sm90/pack.cuh"

namespace sm90 {

// How lanes load a warp's panel of dS.
struct ShiftedPanel : WarpPanel {
    static_assert(kRows % 32 == 0 && kKeys == 64);
    explicit __device__ ShiftedPanel(const WarpPanel& panel) : WarpPanel(panel) {}

    // Loads kCount rows, from a multiple of kCount on: a lane gets its key of both halves. Lanes
    // have neighbouring keys.
    template <int kCount> __device__ void load_rows(int row, float (&halves)[kCount][2]) const {
        static_assert(8 % kCount == 0);
        const unsigned from = (d_scores + row * kRowBytes + lane() * 2) ^ (row % 8 * 16);
#pragma unroll
        for (int i = 0; i < kCount; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                halves[i][half] =
                    flexc_first(mod::Element{},
                                load_shared_half((from + i * kRowBytes) ^ (i * 16 + half * 64)));
    }
    // Loads eight keys of the lane's row, two in a word. Lanes have neighbouring rows.
    __device__ void load_keys(int first_row, int key, int (&pairs)[4]) const {
        load_shared(element(first_row + lane(), key), pairs[0], pairs[1], pairs[2], pairs[3]);
    }
    // Loads sixteen lines by sixteen positions along them, as the left operand of a product.
    template <bool kByKey>
    __device__ sm80::OperandA<mod::Element> load_lines(int line, int position) const {
        sm80::OperandA<mod::Element> tile;
        const int of_lane = lane() % 8, second = lane() / 8 % 2 * 8, last = lane() / 16 * 8;
        if constexpr (kByKey)
            sm80::load_matrices_transposed(tile.registers,
                                           element(position + last + of_lane, line + second));
        else
            sm80::load_matrices(tile.registers, element(line + second + of_lane, position + last));
        return tile;
    }

  private:
    // Returns the address of an element whose key is the first of eight.
    __device__ unsigned element(int row, int key) const {
        return d_scores + row * kRowBytes + (key / 8 ^ row % 8) * 16;
    }
};

// Adds a panel of dS to one gradient.
template <int kGradient> class ShiftedSum {
    using To = mod::ShiftedGradient<kGradient>;
    using Lines = ShiftedLines<kGradient>;
    static constexpr int kRows = ShiftedPanel::kRows, kKeys = ShiftedPanel::kKeys;

  public:
    __device__ ShiftedSum(const AttentionArguments& attention, const mod::Arguments& arguments,
                          const HeadPlace& place, const ShiftedPanel& panel)
        : attention_(attention), panel_(panel),
          lines_(attention, arguments, place, panel.first_query, panel.first_key) {}

    __device__ void add() const {
        constexpr int kLastRow = kRows - 1, kLastKey = kKeys - 1;
        const int lowest =
            (To::kQueryStep < 0 ? -kLastRow : 0) + (To::kKeyStep < 0 ? -kLastKey : 0);
        const int highest = (To::kQueryStep > 0 ? kLastRow : 0) + (To::kKeyStep > 0 ? kLastKey : 0);
        const bool is_whole = rows() >= kRows && keys() >= kKeys &&
                              lines_.low() + To::kHasLeast <= lowest &&
                              highest + To::kHasMost <= lines_.high();
        if (is_whole && stores())
            visit_lines<4>(
                [](float* to, int, int, float d_score) { store_float(to, d_score * To::kFactor); });
        else if (is_whole && !To::kIsApart)
            visit_lines<4>([](float* to, int, int, float d_score) {
                add_float_if(d_score != 0, to, d_score * To::kFactor);
            });
        else if (lines_.low() <= highest && lowest <= lines_.high())
            visit_lines<1>(
                [&](float* to, int row, int key, float d_score) { sort(to, row, key, d_score); });
        if (To::kHasLeast && highest < lines_.low())
            add_end(lines_.low(), [](int) { return true; });
        else if (To::kHasLeast && lowest < lines_.low())
            add_end(lines_.low(), [&](int index) { return index < lines_.low(); });
        if (To::kHasMost && lowest > lines_.high())
            add_end(lines_.high(), [](int) { return true; });
        else if (To::kHasMost && highest > lines_.high())
            add_end(lines_.high(), [&](int index) { return index > lines_.high(); });
    }

  private:
    static __device__ int index_of(int row, int key) { return Lines::index_of(row, key); }
    // Return the number of queries, and of keys, from the panel's first on.
    __device__ int rows() const { return attention_.q_len - panel_.first_query; }
    __device__ int keys() const { return attention_.kv_len - panel_.first_key; }
    __device__ bool stores() const { return stores_shifted<kGradient>(attention_); }

    // Stores or adds an element of any panel, if its index is inside the buffer and the clamp.
    // Those at an end of the clamp are added, because what is beyond the end is added there, too.
    __device__ void sort(float* to, int row, int key, float d_score) const {
        const int index = index_of(row, key);
        const bool is_there =
            index >= lines_.low() && index <= lines_.high() && row < rows() && key < keys();
        const bool is_end =
            (To::kHasLeast && index == lines_.low()) || (To::kHasMost && index == lines_.high());
        const bool is_stored = stores() && !is_end;
        store_float_if(is_there && is_stored, to, d_score * To::kFactor);
        add_float_if(is_there && !is_stored && d_score != 0, to, d_score * To::kFactor);
    }

    // Calls visit(its place, row, key, dS) for every element, along lines. kRowsAtOnce: number of
    // rows whose loads are in flight together, where lines are rows.
    template <int kRowsAtOnce, typename Visit> __device__ void visit_lines(Visit visit) const {
        if constexpr (To::kByKey) {
#pragma unroll 1
            for (int row = 0; row < kRows; row += 32)
                visit_keys(row, visit);
        } else {
            visit_rows<kRowsAtOnce>(visit);
        }
    }
    template <int kRowsAtOnce, typename Visit> __device__ void visit_rows(Visit visit) const {
        const int key = ShiftedPanel::lane();
        float* to = lines_.line(0) + index_of(0, key);
#pragma unroll 1
        for (int row = 0; row < kRows; row += kRowsAtOnce) {
            float halves[kRowsAtOnce][2];
            panel_.load_rows(row, halves);
#pragma unroll
            for (int i = 0; i < kRowsAtOnce; ++i) {
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    visit(to + index_of(0, 32 * half), row + i, key + 32 * half, halves[i][half]);
                to += lines_.line_step() + To::kQueryStep;
                keep(to);
            }
        }
    }
    template <typename Visit> __device__ void visit_keys(int first_row, Visit visit) const {
        const int row = first_row + ShiftedPanel::lane();
        float* to = lines_.line(0) + index_of(row, 0);
#pragma unroll 1
        for (int key = 0; key < kKeys; key += 8) {
            int pairs[4];
            panel_.load_keys(first_row, key, pairs);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const unsigned pair = pairs[i / 2];
                visit(to, row, key + i,
                      i % 2 == 0 ? flexc_first(mod::Element{}, pair)
                                 : flexc_second(mod::Element{}, pair));
                to += lines_.line_step() + To::kKeyStep;
                keep(to);
            }
        }
    }

    // Adds elements beyond an end of the clamp, summed over their lines by products with ones,
    // which add 16-bit numbers exactly into floats.
    template <typename IsBeyond> __device__ void add_end(int end, IsBeyond is_beyond) const {
        constexpr int kLines = To::kByKey ? kKeys : kRows, kLength = To::kByKey ? kRows : kKeys;
        const int group = ShiftedPanel::lane() / 4, pair = ShiftedPanel::lane() % 4 * 2;
        const unsigned both = pack(mod::Element{}, 1, 1);
        const sm80::OperandB<mod::Element> ones = {{both, both}};
#pragma unroll 1
        for (int i = 0; i < kLines; i += 16) {
            float sums[4] = {};
#pragma unroll
            for (int position = 0; position < kLength; position += 16) {
                auto tile = panel_.template load_lines<To::kByKey>(i, position);
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const int line = i + group + j % 2 * 8, at = position + pair + j / 2 * 8;
                    const int index = To::kByKey ? index_of(at, line) : index_of(line, at);
                    tile.registers[j] &= (is_beyond(index) ? 0xffffu : 0u) |
                                         (is_beyond(index + Lines::kAlong) ? 0xffff0000u : 0u);
                }
                sm80::multiply(sums, tile, ones);
            }
            // Lanes of a group have the same sums: two of them add a line each.
            const float sum = pair == 0 ? sums[0] : sums[2];
            add_float_if(pair <= 2 && sum != 0, lines_.line(i + group + pair / 2 * 8) + end,
                         sum * To::kFactor);
        }
    }

    const AttentionArguments& attention_;
    const ShiftedPanel& panel_;
    const Lines lines_;
};

template <int kGradient = 0>
__device__ inline void add_shifted(const AttentionArguments& attention,
                                   const mod::Arguments& arguments, const HeadPlace& place,
                                   const ShiftedPanel& panel) {
    if constexpr (kGradient < mod::ShiftedGradients::kCount) {
        read_again(arguments);
        ShiftedSum<kGradient>(attention, arguments, place, panel).add();
        add_shifted<kGradient + 1>(attention, arguments, place, panel);
    }
}

// Called by one warp, for all of the block's tiles. With each of them, a part of the rest of lines
// is cleared.
__device__ inline void sum_shifts(const KernelArguments& attention, const mod::Arguments& arguments,
                                  Shared shared, const KeyTile& keys, int warp) {
    const auto clear = [&](const HeadPlace& place, auto visit) {
        visit_rests(attention, arguments, place, keys, warp, visit);
    };
    visit_panels(
        attention, arguments, shared, keys, warp,
        [&](const HeadPlace& place, const WarpPanel& panel, TileRange tiles, int tile) {
            add_shifted(attention, arguments, place, ShiftedPanel(panel));
            clear(place, [&](const auto& rest) { rest.clear_with(tile, tiles); });
        },
        [&](const HeadPlace& place, TileRange tiles) {
            clear(place, [&](const auto& rest) { rest.clear_others(tiles); });
        });
}

} // namespace sm90
