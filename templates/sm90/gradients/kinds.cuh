// Sums the gradient of a table that is indexed by a kind of the query and a kind of the key, with
// products by matrices of ones and zeros. The first matrix has a one where a key is of a kind: dS
// becomes sums over the keys of each kind, for each query, as floats. The second has a one where a
// query is of a kind: these sums are added to those of the table, which stay in shared memory until
// the head's last tile. Between the products a sum is split into two bf16 numbers.
//
// Rows of a warp's products are sixteen kinds of keys. Where there are more kinds, the other warp
// has the rest of them; else it has the rest of a tile's keys or, where a warp can have all of
// them, the rest of the queries.
#pragma once

#include "sm80/mma.cuh"
#include "sm90/backward_heads.cuh"
#include "sm90/backward_query_tiles.cuh"
#include "sm90/gradients/table.cuh"
#include "sm90/pack.cuh"

namespace sm90 {

// Kinds are multiplied if their table's memory has as many words as they need at most: that of all
// tables where there is no other, else what is behind it.
constexpr bool kHasOtherTables = mod::TableGradients::kCount > 1;
constexpr int kFirstKindWord = kHasOtherTables ? mod::TableGradients::kWords : 0;
constexpr bool kMultipliesKinds =
    mod::TableGradients::kOfKinds >= 0 && kTableWords - kFirstKindWord >= kMostKindWords;

// One warp's part of the sums of a table in a head.
template <int kTable> class KindSums {
    using Read = mod::TableGradient<kTable>;
    using A = sm80::OperandA<SummedElement>;
    using B = sm80::OperandB<SummedElement>;
    static constexpr int kRowKinds = 16;
    static constexpr bool kSharesKinds = Read::kKeyKinds > kRowKinds;
    static constexpr bool kSharesQueries = kSharesKeys && !kSharesKinds;
    static constexpr int kKeys = kSharesKinds ? mod::kKeyTile : kPanelColumns;
    static constexpr int kSteps = kKeys / 16, kColumns = (Read::kQueryKinds + 7) / 8;
    static constexpr int kRows = kSharesQueries ? mod::kQueryTile / 2 : mod::kQueryTile;
    static constexpr int kLaneRows = (kRows + 31) / 32;
    // Queries that are multiplied at once, in groups of sixteen: products of several groups do not
    // wait for each other. Beside other tables, two groups would spill.
    static constexpr bool kHasRoom = kSparesRegisters || (kSharesKinds && !kSharesKeys);
    static constexpr int kGroups = kHasRoom && !kHasOtherTables ? 2 : 1, kAtOnce = 16 * kGroups;
    // Columns of the table's sums that are multiplied at once, likewise; each has eight kinds of
    // queries.
    static constexpr int kColumnsAtOnce = kSparesRegisters ? kColumns : kColumns % 2 == 0 ? 2 : 1;
    static constexpr int kLaneBytes = 16; // of a lane's ones in a step, and of its sums in a column
    static_assert(Read::kKeyKinds <= kSumWarps * kRowKinds);
    static_assert((kSteps + kColumns) * 32 * kLaneBytes <= 4 * kMostKindWords);

  public:
    // Stores the ones of the head's keys, and zeros for the table's sums.
    __device__ KindSums(const KernelArguments& attention, const mod::Arguments& arguments,
                        const HeadPlace& place, Shared shared, int first_kv, int warp)
        : attention_(attention), arguments_(arguments), place_(place),
          tiles_(shared.base + kSummedTile +
                 (kSharesKinds ? 0 : warp * (kSharesKeys ? kRows * kRowBytes : kQueryPanel))),
          memory_(shared.base + kLayout.tables + 4 * (warp * kTableWords + kFirstKindWord) +
                  lane() * kLaneBytes),
          first_row_(kSharesQueries ? warp * kRows : 0),
          first_key_(first_kv + (kSharesKinds || kSharesKeys ? 0 : warp * kKeys)),
          first_kind_(kSharesKinds ? warp * kRowKinds : 0) {
#pragma unroll 1
        for (int step = 0; step < kSteps; ++step)
            store_ones(step);
#pragma unroll
        for (int column = 0; column < kColumns; ++column)
            store_shared(sums_of(column), 0, 0, 0, 0);
    }

    // Adds the tile of dS in a stage. tile_query: the tile's first query.
    __device__ void add(int stage, int tile_query) const {
        const unsigned tile = tiles_ + stage * kDScoresBytes;
        unsigned kinds = 0; // kinds of the lane's queries, a byte each
#pragma unroll
        for (int i = 0; i < kLaneRows; ++i)
            kinds |= kind_of_query(tile_query + first_row_ + 32 * i + lane()) << 8 * i;
#pragma unroll 1
        for (int first = 0; first < kRows; first += kAtOnce) {
            Sums sums[kGroups] = {};
            multiply_keys(sums, tile, first);
            if (are_finite(sums))
                multiply_queries(sums, kinds >> first / 32 * 8, first % 32);
            else
                add_each(tile, first, tile_query);
        }
    }

    // Adds the warp's sums to the gradient in memory.
    __device__ void flush() const {
        const Entries entries(table());
        if (!entries.exist()) return;
#pragma unroll 1
        for (int i = 0; i < 4 * kColumns; ++i)
            add_entry(entries, i / 4 * 8 + lane() % 4 * 2 + i % 2,
                      first_kind_ + lane() / 4 + i % 4 / 2 * 8,
                      __uint_as_float(load_shared_word(sums_of(i / 4) + i % 4 * 4)));
    }

  private:
    using Entries = TableEntries<kTable>;
    // Sums of a group of queries, as the accumulators of two products: rows are kinds of keys,
    // columns eight queries.
    using Sums = float[2][4];
    static constexpr unsigned kNoKind = 0xff;

    static __device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
    __device__ TableTile table() const {
        return {attention_, arguments_, place_, WarpPanel(Shared{0}, 0, 0, first_key_, 0), 0};
    }
    // Returns the index along a dim (of queries or of keys) that a query and a key read; kNoKind
    // outside of the table.
    template <int kDim, int kKinds> __device__ unsigned kind_at(int query, int key) const {
        int index[Entries::kDims], extents[Entries::kDims];
        visit_element(attention_, arguments_, place_, min(query, attention_.q_len - 1),
                      min(key, attention_.kv_len - 1), [&](const mod::At& at) {
                          Read::indices(at, index);
                          Read::extents(at, extents);
                      });
        const auto kind = static_cast<unsigned>(index[kDim]);
        return kind < static_cast<unsigned>(min(kKinds, extents[kDim])) ? kind : kNoKind;
    }
    __device__ unsigned kind_of_query(int query) const {
        return kind_at<Read::kQueryDim, Read::kQueryKinds>(query, first_key_);
    }
    __device__ unsigned kind_of_key(int key) const {
        return kind_at<1 - Read::kQueryDim, Read::kKeyKinds>(0, first_key_ + key);
    }

    // Packs two elements: 1 where a query or key is of this kind, else 0.
    template <typename E>
    static __device__ unsigned ones(E, unsigned first, unsigned second, int kind) {
        return pack(E{}, static_cast<int>(first) == kind ? 1.0f : 0.0f,
                    static_cast<int>(second) == kind ? 1.0f : 0.0f);
    }
    // Stores the lane's part of the left operand for a step of sixteen keys.
    __device__ void store_ones(int step) const {
        unsigned kinds[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            kinds[i] = kind_of_key(16 * step + lane() % 4 * 2 + i % 2 + i / 2 * 8);
        const int kind = first_kind_ + lane() / 4;
        int words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            words[i] = static_cast<int>(
                ones(SummedElement{}, kinds[i / 2 * 2], kinds[i / 2 * 2 + 1], kind + i % 2 * 8));
        store_shared(ones_of(step), words[0], words[1], words[2], words[3]);
    }
    // Return the addresses of the lane's ones for the keys of a step, and of the table's sums that
    // are in its accumulators.
    __device__ unsigned ones_of(int step) const { return memory_ + 32 * step * kLaneBytes; }
    __device__ unsigned sums_of(int column) const { return ones_of(kSteps + column); }

    // The operands of the first product for sixteen keys.
    struct KeyStep {
        A kinds;
        unsigned d_scores[kGroups][4];

        // row: the address of dS of the lane's query. chunk: the lane's eight keys in the first
        // step, as a chunk of that row.
        __device__ void load(unsigned ones, unsigned row, int chunk, int step) {
            int words[4];
            load_shared(ones, words[0], words[1], words[2], words[3]);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                kinds.registers[i] = static_cast<unsigned>(words[i]);
            const unsigned from = row + step / 4 * kQueryPanel + (2 * step % 8 ^ chunk) * 16;
#pragma unroll
            for (int group = 0; group < kGroups; ++group)
                sm80::load_matrices(d_scores[group], from + 16 * group * kRowBytes);
        }
        __device__ void add_to(Sums (&sums)[kGroups]) const {
#pragma unroll
            for (int group = 0; group < kGroups; ++group)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    sm80::multiply(sums[group][half], kinds,
                                   B{{d_scores[group][2 * half], d_scores[group][2 * half + 1]}});
        }
    };
    // Computes sums over keys for the queries from `first` on. A step's operands are loaded under
    // the products of the step before.
    __device__ void multiply_keys(Sums (&sums)[kGroups], unsigned tile, int first) const {
        static_assert(kSteps % 2 == 0);
        const int lane = lane_again();
        const unsigned row = tile + (first + lane / 16 * 8 + lane % 8) * kRowBytes;
        const int chunk = lane / 8 % 2 ^ lane % 8;
        KeyStep even, odd;
        even.load(ones_of(0), row, chunk, 0);
#pragma unroll 1
        for (int step = 0; step < kSteps; step += 2) {
            odd.load(ones_of(step + 1), row, chunk, step + 1);
            even.add_to(sums);
            const int next = min(step + 2, kSteps - 2);
            even.load(ones_of(next), row, chunk, next);
            odd.add_to(sums);
        }
    }
    // Returns whether all sums of the warp are finite.
    static __device__ bool are_finite(const Sums (&sums)[kGroups]) {
        float zeros[2] = {0, 0}; // NaN after a sum that is not finite
#pragma unroll
        for (int i = 0; i < 8 * kGroups; ++i)
            zeros[i % 2] = fmaf(sums[i / 8][i / 4 % 2][i % 4], 0.0f, zeros[i % 2]);
        return __all_sync(0xffffffffu, zeros[0] + zeros[1] == 0);
    }
    // The left operand of the second product for a group, in two parts, and kinds for the right
    // one.
    struct Group {
        sm80::OperandA<flexc_bf16> high, low;
        unsigned kinds[4]; // of the lane's queries in the right operand

        // of_lane: the kind of the lane's query among 32, of which the group's begin at `first`.
        __device__ void find(const Sums& sums, unsigned of_lane, int first) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float x = sums[i / 2][i % 2 * 2], y = sums[i / 2][i % 2 * 2 + 1];
                const unsigned both = high.registers[i] = pack(flexc_bf16{}, x, y);
                low.registers[i] = pack(flexc_bf16{}, x - flexc_first(flexc_bf16{}, both),
                                        y - flexc_second(flexc_bf16{}, both));
                kinds[i] =
                    __shfl_sync(0xffffffffu, of_lane, first + lane() % 4 * 2 + i % 2 + i / 2 * 8) &
                    0xff;
            }
        }
        // kind: the one of the lane's column in the first of these columns.
        __device__ void add_to(float (&of_table)[kColumnsAtOnce][4], int kind) const {
            sm80::OperandB<flexc_bf16> queries[kColumnsAtOnce];
#pragma unroll
            for (int i = 0; i < kColumnsAtOnce; ++i) {
                queries[i] = {{ones(flexc_bf16{}, kinds[0], kinds[1], kind + 8 * i),
                               ones(flexc_bf16{}, kinds[2], kinds[3], kind + 8 * i)}};
                sm80::multiply(of_table[i], high, queries[i]);
            }
            for (float(&sums)[4] : of_table)
                pin(sums);
#pragma unroll
            for (int i = 0; i < kColumnsAtOnce; ++i)
                sm80::multiply(of_table[i], low, queries[i]);
            for (float(&sums)[4] : of_table)
                pin(sums);
        }
    };
    // Adds sums over queries to those of the table. kinds: of the lane's query among 32.
    __device__ void multiply_queries(const Sums (&sums)[kGroups], unsigned kinds,
                                     int first_query) const {
        Group groups[kGroups];
#pragma unroll
        for (int group = 0; group < kGroups; ++group)
            groups[group].find(sums[group], kinds, first_query + 16 * group);
#pragma unroll 1
        for (int first = 0; first < kColumns; first += kColumnsAtOnce) {
            float of_table[kColumnsAtOnce][4];
#pragma unroll
            for (int i = 0; i < kColumnsAtOnce; ++i)
                load_shared(sums_of(first + i), of_table[i]);
#pragma unroll
            for (const Group& group : groups)
                group.add_to(of_table, 8 * first + lane() / 4);
#pragma unroll
            for (int i = 0; i < kColumnsAtOnce; ++i)
                store_shared(sums_of(first + i), of_table[i][0], of_table[i][1], of_table[i][2],
                             of_table[i][3]);
        }
    }

    __device__ void add_entry(const Entries& entries, int of_query, int of_key, float sum) const {
        if (of_query >= Read::kQueryKinds || of_key >= Read::kKeyKinds || sum == 0) return;
        typename Entries::Index index;
        index.of[Read::kQueryDim] = of_query;
        index.of[1 - Read::kQueryDim] = of_key;
        entries.add(index, sum);
    }
    // Adds dS of the queries from `first` on element by element: in a product, infinities would
    // meet zeros.
    __device__ void add_each(unsigned tile, int first, int tile_query) const {
        const Entries entries(table());
        if (!entries.exist()) return;
#pragma unroll 1
        for (int element = lane(); element < kAtOnce * kKeys; element += 32) {
            const int row = first + element / kKeys, key = element % kKeys;
            const unsigned half =
                load_shared_half(tile + key / kPanelColumns * kQueryPanel + row * kRowBytes +
                                 (key % kPanelColumns / 8 ^ row % 8) * 16 + key % 8 * 2);
            const unsigned of_key = kind_of_key(key) - first_kind_;
            if (of_key < kRowKinds)
                add_entry(entries, kind_of_query(tile_query + first_row_ + row),
                          first_kind_ + of_key, flexc_first(SummedElement{}, half));
        }
    }

    const KernelArguments& attention_;
    const mod::Arguments& arguments_;
    const HeadPlace& place_;
    const unsigned tiles_,
        memory_; // addresses of the warp's part of dS, and of the lane's ones and sums
    const int first_row_, first_key_, first_kind_;
};

// Sums the gradient of this table by products, and those of others beside it, over the block's
// tiles. Called by each of the warps that sum.
template <int kTable>
__device__ inline void sum_kinds(const KernelArguments& attention, const mod::Arguments& arguments,
                                 Shared shared, const KeyTile& keys, int warp) {
    int stage = 0;
    if constexpr (kHasOtherTables) clear_tables(shared, warp);
    visit_heads(attention, arguments, keys, [&](const HeadPlace& place, TileRange tiles) {
        const KindSums<kTable> sums(attention, arguments, place, shared, keys.first_kv, warp);
#pragma unroll 1
        for (QueryTiles walk(attention, place, keys, tiles); !walk.is_done();
             walk.advance(), stage ^= 1) {
            __syncwarp();
            synchronize_d_scores();
            const int first_query = walk.tile() * mod::kQueryTile;
            sums.add(stage, first_query);
            const WarpPanel panel(shared, stage, first_query, keys.first_kv, warp);
            if constexpr (kHasOtherTables)
                add_tables_of<kTable>(TableTile(attention, arguments, place, panel,
                                                tables_of(shared, warp)));
            add_biases(attention, arguments, place, panel);
        }
        sums.flush();
    });
}

} // namespace sm90
