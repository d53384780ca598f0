// Sums dS over a 2-D key index where tiles of keys are whole rows of it, by products with matrices
// of ones and zeros, which add 16-bit numbers exactly into floats.
#pragma once

#include "sm80/mma.cuh"
#include "sm90/backward_heads.cuh"
#include "sm90/backward_query_tiles.cuh"
#include "sm90/gradients/index_2d.cuh"
#include "sm90/pack.cuh"
#include "sm90/tma.cuh"

namespace sm90 {

// One warp's queries of every tile of a head. A lane has two neighbouring columns of two queries
// that are eight apart, as products leave them; the matrices of ones and zeros are such that the
// next product has the two columns after these. Sums of columns go to shared memory, and from there
// to the gradients by TMA. Gradients have their queries at even distances.
class Index2dMma {
  public:
    // columns: address of the warp's sums in shared memory.
    __device__ Index2dMma(const Index2dSums& sums, int first_query, unsigned columns)
        : sums_(sums), first_query_(first_query), columns_(columns),
          width_(min(kKeyWidth, sums.keys)) {
        const int last = sums.attention.q_len - 1;
        if constexpr (mod::KeyIndex2d::kSumsRemainders) {
            bool in_order = mod::KeyIndex2d::kColumnsAreLinear && width_ == kKeyWidth;
            find(mod::Sum::remainder, column_, sums.first_key, in_order);
            const int last_key = sums.first_key + width_ - 1;
            for (int query = 0; query <= last; query += max(last, 1))
                sums.visit(mod::Sum::remainder, query, last_key, [&](int gradient, auto* to) {
                    const float* const first = column_[gradient].at(query);
                    in_order = in_order && reinterpret_cast<float*>(to) == first + kKeyWidth - 1 &&
                               reinterpret_cast<unsigned long long>(first) % 16 == 0 &&
                               column_[gradient].step % 4 == 0;
                });
            in_order_ = __all_sync(0xffffffffu, in_order);
        }
        if constexpr (mod::KeyIndex2d::kSumsQuotients)
#pragma unroll
            for (int i = 0; i < kRowsOfLane; ++i) {
                const int row = row_of(2 * (lane() % 4) + i);
                has_row_[i] = row * kKeyWidth < sums.keys;
                bool found = true;
                if (has_row_[i])
                    find(mod::Sum::quotient, row_[i], sums.first_key + row * kKeyWidth, found);
            }
    }

    // Adds a tile. d_scores: address of its stage.
    __device__ void add(unsigned d_scores, int tile_query) const {
        const int query = tile_query + first_query_;
        if constexpr (mod::KeyIndex2d::kSumsRemainders) wait_until_added();
#pragma unroll 1
        for (int i = 0; i < kQueriesOfWarp; i += 16)
            add_queries(d_scores, i, query + i);
        if constexpr (mod::KeyIndex2d::kSumsRemainders) {
            publish_shared();
            __syncwarp();
            add_columns(query, min(sums_.attention.q_len - query, kQueriesOfWarp));
            end_additions();
        }
    }

  private:
    using A = sm80::OperandA<mod::Element>;
    using B = sm80::OperandB<mod::Element>;
    static constexpr int kRows = mod::kKeyTile / kKeyWidth; // of the 2-D key index
    // Lanes that have the same queries share the rows of the 2-D key index: as many columns of a
    // product are one row.
    static constexpr int kSharing = kRows <= 2 ? 2 : kRows < 8 ? 8 / kRows : 1;
    static constexpr int kPuts = kRows <= 2 ? 1 : kRows / 2;
    static constexpr int kRowsOfLane = kPuts == 4 ? 2 : 1;

    // Where the sums of queries go; null if some of them go nowhere.
    struct Place {
        float* first;
        int step;
        __device__ float* at(int query) const {
            return first + static_cast<long long>(step) * query;
        }
    };
    using Places = Place[kGradientSlots];

    // Finds where the sums of what is read at a key go, from the addresses for the tensor's first
    // and last query. Clears `found` if some go nowhere.
    __device__ void find(mod::Sum kind, Places& places, int key, bool& found) const {
        const int last = sums_.attention.q_len - 1;
        sums_.visit(kind, 0, key, [&](int gradient, auto* to) {
            places[gradient] = {reinterpret_cast<float*>(to), 0};
        });
        sums_.visit(kind, last, key, [&](int gradient, auto* to) {
            Place& place = places[gradient];
            const long long step = (reinterpret_cast<float*>(to) - place.first) / max(last, 1);
            if (to == nullptr || place.first == nullptr || step != static_cast<int>(step)) {
                place.first = nullptr;
                found = false;
            }
            place.step = static_cast<int>(step);
        });
    }

    static __device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
    static __device__ unsigned ones(bool low, bool high) {
        return pack(mod::Element{}, low ? 1.0f : 0.0f, high ? 1.0f : 0.0f);
    }
    // Returns the row of the 2-D key index that a column of the products for rows belongs to.
    static __device__ int row_of(int column) { return column / kSharing % kRows; }

    // Returns the matrix whose product gives every lane, as columns 2 t and 2 t + 1, keys 4 t + 2
    // half and the next.
    static __device__ B columns_of(int half) {
        const int g = lane() / 4, t = lane() % 4;
        const int key = g / 2 * 4 + 2 * half + g % 2;
        return {{ones(2 * t == key, 2 * t + 1 == key), ones(2 * t + 8 == key, 2 * t + 9 == key)}};
    }

    // Sums sixteen queries. first: the first of them, among the warp's; query: the same in the
    // tensor.
    __device__ void add_queries(unsigned d_scores, int first, int query) const {
        const int g = lane() / 4, t = lane() % 4;
        const B halves[2] = {columns_of(0), columns_of(1)};
        // Sixteen keys at a time: all rows of the 2-D key index, then the next columns. The next
        // are loaded before these are multiplied.
        constexpr int kAhead = 2, kTiles = mod::kKeyTile / 16;
        A tiles[kAhead + 1];
        const unsigned rows = d_scores + (first_query_ + first + lane() % 16) * kRowBytes;
        const unsigned chunk = (lane() / 16 ^ lane() % 8) * 16;
        const auto load = [&](int i) {
            const int key = i % kRows * kKeyWidth + i / kRows * 16;
            sm80::load_matrices(tiles[i % (kAhead + 1)].registers,
                                rows + key / kPanelColumns * kQueryPanel +
                                    (chunk ^ static_cast<unsigned>(key % kPanelColumns * 2)));
        };
#pragma unroll
        for (int i = 0; i < kAhead; ++i)
            load(i);
        float of_rows[4] = {}, of_columns[2][4];
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
            if (i + kAhead < kTiles) load(i + kAhead);
            const A& tile = tiles[i % (kAhead + 1)];
            const int row = i % kRows;
            if constexpr (mod::KeyIndex2d::kSumsRemainders)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    if (row == 0)
                        sm80::multiply_first(of_columns[half], tile, halves[half]);
                    else
                        sm80::multiply(of_columns[half], tile, halves[half]);
            if constexpr (mod::KeyIndex2d::kSumsQuotients) {
                const unsigned of_row = ones(row_of(g) == row, row_of(g) == row);
                sm80::multiply(of_rows, tile, B{{of_row, of_row}});
            }
            if (mod::KeyIndex2d::kSumsRemainders && row == kRows - 1)
#pragma unroll
                for (int r = 0; r < 2; ++r)
                    store_shared(columns_ + (first + g + 8 * r) * kSumsRowBytes +
                                     4 * (i / kRows * 16 + 4 * t),
                                 of_columns[0][2 * r], of_columns[0][2 * r + 1],
                                 of_columns[1][2 * r], of_columns[1][2 * r + 1]);
        }
        if constexpr (mod::KeyIndex2d::kSumsQuotients) put_rows(query + g, of_rows);
    }

    // Waits until TMA has read what it was to add.
    static __device__ void wait_until_added() {
        wait_for_additions<0>();
        __syncwarp();
    }

    // Adds the sums of columns of `count` queries: a lane adds some of them, or the first adds all
    // where they are one piece of memory.
    __device__ void add_columns(int query, int count) const {
#pragma unroll
        for (int gradient = 0; gradient < mod::kGradients; ++gradient) {
            if (mod::ReadGradients::sum_of(gradient) != mod::Sum::remainder || !in_order_) continue;
            const Place& place = column_[gradient];
            if (place.step == kKeyWidth) {
                if (lane() == 0 && count > 0)
                    add_bytes(place.at(query), columns_, count * kSumsRowBytes);
            } else {
#pragma unroll 1
                for (int i = lane(); i < count; i += 32)
                    add_bytes(place.at(query + i), columns_ + i * kSumsRowBytes, kSumsRowBytes);
            }
        }
        if (in_order_) return;
#pragma unroll 1
        for (int i = lane(); i < count * width_; i += 32) {
            const int column = i % width_;
            const unsigned from = columns_ + i / width_ * kSumsRowBytes + 4 * column;
            sums_.put(mod::Sum::remainder, query + i / width_, sums_.first_key + column,
                      __uint_as_float(load_shared_word(from)));
        }
        __syncwarp();
    }

    // Adds the sums of rows, each by one of the lanes and registers that have it.
    __device__ void put_rows(int query, const float (&x)[4]) const {
        const int t = lane() % 4;
#pragma unroll
        for (int i = 0; i < kPuts; ++i) {
            // Registers 0 and 1 belong to the first query, 2 and 3 to the other.
            const int r = kPuts == 1 ? t / kRows : i * 2 / kPuts;
            const int of_pair = kPuts == 4 ? i % 2 : 0;
            const float sum = r == 0 ? x[of_pair] : x[2 + of_pair];
            const bool has_one = (kPuts > 1 || r < 2) && has_row_[of_pair];
            if (!has_one || query + 8 * r >= sums_.attention.q_len || sum == 0) continue;
            const int row = row_of(2 * t + of_pair);
#pragma unroll
            for (int gradient = 0; gradient < mod::kGradients; ++gradient)
                if (mod::ReadGradients::sum_of(gradient) == mod::Sum::quotient) {
                    const Place& place = row_[of_pair][gradient];
                    if (place.first != nullptr) add_float(place.at(query + 8 * r), sum);
                }
        }
    }

    const Index2dSums& sums_;
    const int first_query_; // of the warp, in a tile
    const unsigned columns_;
    const int width_; // columns of the 2-D key index that there are
    // Whether columns are side by side in memory, and rows where TMA can add.
    bool in_order_;
    Places column_; // of the tile's first key
    Places row_[kRowsOfLane];
    bool has_row_[kRowsOfLane];
};

// Called by two warps. warp: which of them this is.
__device__ inline void sum_index_2d(const AttentionArguments& attention,
                                    const mod::Arguments& arguments, Shared shared,
                                    const KeyTile& keys, int warp) {
    int stage = 0;
    visit_heads(attention, arguments, keys, [&](const HeadPlace& place, TileRange tiles) {
        const Index2dSums sums{attention, arguments, place, keys.first_kv,
                               min(mod::kKeyTile, attention.kv_len - keys.first_kv)};
        const auto visit_tiles = [&](auto add) {
#pragma unroll 1
            for (QueryTiles walk(attention, place, keys, tiles); !walk.is_done();
                 walk.advance(), stage ^= 1) {
                __syncwarp(); // some lanes had no column to sum
                synchronize_d_scores();
                add(shared.base + kLayout.d_scores + stage * kDScoresBytes,
                    walk.tile() * mod::kQueryTile);
            }
        };
        if constexpr (kSumsByMma) {
            const int first = kQueriesOfWarp * warp;
            const Index2dMma products(sums, first,
                                      shared.base + kLayout.sums + first * kSumsRowBytes);
            visit_tiles(
                [&](unsigned d_scores, int tile_query) { products.add(d_scores, tile_query); });
        } else {
            visit_tiles([&](unsigned d_scores, int tile_query) {
                if constexpr (mod::KeyIndex2d::kSumsQuotients)
                    sums.add_quotients(d_scores, tile_query, warp);
                if constexpr (mod::KeyIndex2d::kSumsRemainders)
                    sums.add_remainders(d_scores, tile_query, warp);
            });
        }
    });
}

} // namespace sm90
