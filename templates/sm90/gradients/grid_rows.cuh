// Sums dS over the diagonals of tiles that follow each other, with a sum for each way in which
// digits borrow, where digits begin anywhere, or where some queries and keys have no part. Two
// warps of the producer warpgroup do so, each for half of a tile's queries.
//
// All lanes take the same query at once, each at keys of its own that follow each other. What a
// lane's diagonals have so far it carries from one query to the next, and that of its last key is
// complete. As many complete sums as it has keys, of distances that follow each other, are added to
// the warp's in shared memory together; other lanes have other distances there. Where a digit
// begins at a query, what is carried is added before it. Where one begins between a lane's keys,
// the fewer of them to one side are added by themselves afterwards, with a query for each lane.
#pragma once

#include "sm90/backward_heads.cuh"
#include "sm90/backward_query_tiles.cuh"
#include "sm90/gradients/grid_memory.cuh"

namespace sm90 {

// Says which of a word's two elements count; others are read as zeros, whatever they hold.
class KeptPair {
  public:
    KeptPair() = default;
    __device__ KeptPair(bool first, bool second)
        : first_(first ? factor(mod::Element{}) : 0), second_(second ? 0xffff0000u : 0) {}

    __device__ float first(flexc_bf16, unsigned word) const {
        return __uint_as_float(word * first_);
    }
    __device__ float first(flexc_f16 kind, unsigned word) const {
        return flexc_first(kind, word * first_);
    }
    template <typename Element> __device__ float second(Element kind, unsigned word) const {
        return flexc_second(kind, word & second_);
    }

  private:
    static __device__ constexpr unsigned factor(flexc_bf16) { return 0x10000u; }
    static __device__ constexpr unsigned factor(flexc_f16) { return 1; }

    unsigned first_ = 0, second_ = 0;
};

class GridRowSums {
  public:
    // Rows of a warp: one for each lane in what is added by itself.
    static constexpr int kRows = 32;

    // memory: address of the warp's sums, which are zeros. first_key: that of the tile.
    __device__ GridRowSums(const KernelArguments& attention, const mod::Arguments& arguments,
                           const HeadPlace& place, unsigned memory, int first_key)
        : attention_(attention), arguments_(arguments), place_(place), memory_(memory),
          first_key_(first_key) {
        bool takes[kKeys];
        int forms[kKeys], split = kKeys; // where a digit begins
#pragma unroll
        for (int j = kKeys - 1; j >= 0; --j) {
            const int key = first_key + kKeys * lane() + j;
            forms[j] = GridDigits::key_form(key + static_cast<int>(attention.kv_offset));
            if (j + 1 < kKeys && forms[j] != forms[j + 1]) split = j + 1;
            takes[j] = takes_element(
                0, key, [](const mod::At& at) { return mod::GridGradients::takes_key(at); });
        }
        const bool keeps_last = split <= kKeys / 2;
        form_ = keeps_last ? forms[kKeys - 1] : forms[0];
        other_form_ = keeps_last ? forms[0] : forms[kKeys - 1];
#pragma unroll
        for (int j = 0; j < kKeys; ++j)
            if (takes[j] && (j >= split) != keeps_last) left_out_ |= 1 << j;
#pragma unroll
        for (int pair = 0; pair < kKeys / 2; ++pair) {
            const auto keeps = [&](int j) { return takes[j] && (j >= split) == keeps_last; };
            kept_[pair] = KeptPair(keeps(2 * pair), keeps(2 * pair + 1));
        }
    }

    // d_scores: address of the warp's rows, which start with first_query.
    __device__ void add_tile(unsigned d_scores, int first_query) {
        move_to(first_query - first_key_);
        const Rows rows(*this, first_query);
        float carried[kKeys - 1] = {};
#pragma unroll 1
        for (int first = 0; first < kRows; first += kRowsAtOnce) {
            Words words[kRowsAtOnce];
            load(words, d_scores, first, rows);
#pragma unroll
            for (int i = 0; i < kRowsAtOnce; i += kKeys)
                add_rows(words + i, first + i, rows, carried);
        }
        add_carried(carried, kRows, rows);
        add_left_out(d_scores, rows);
    }
    // Called after the last tile: adds the remaining sums to memory.
    __device__ void flush() { move_to(distance_ + kDistances); }

  private:
    static constexpr bool kIsUsed = mod::GridGradients::kPlaces > 0 && !kGridIsAligned;
    static constexpr int kKeys = kIsUsed ? mod::kKeyTile / 32 : 2; // of a lane
    // Number of rows whose loads are in flight.
    static constexpr int kRowsAtOnce = kSparesRegisters ? 8 : 4;
    // Number of distances that have sums at once: there is room for those of a tile, and for as
    // many as a tile moves by.
    static constexpr int kDistances = 2 * mod::kKeyTile, kStep = 64;
    static_assert(!kIsUsed ||
                  (mod::kQueryTile == kStep && kRows * kSumWarps == kStep &&
                   (kKeys == 2 || kKeys == 4) &&
                   kDistances << mod::GridGradients::kPlaces <= mod::TableGradients::kWords));
    static constexpr unsigned kAll = 0xffffffffu;
    using Words = unsigned[kKeys / 2];

    // The form of a lane's query, and facts of all lanes' queries, a bit for each.
    struct Rows {
        int form = 0; // of the lane's query
        unsigned forms[mod::GridGradients::kPlaces > 0 ? mod::GridGradients::kPlaces : 1];
        unsigned begins = 0; // a digit begins there
        unsigned takes = kAll;

        __device__ Rows(const GridRowSums& sums, int first_query) {
            const int query = first_query + sums.lane();
            form = GridDigits::query_form(query + static_cast<int>(sums.attention_.q_offset));
#pragma unroll
            for (int place = 0; place < mod::GridGradients::kPlaces; ++place) {
                forms[place] = __ballot_sync(kAll, (form >> place & 1) != 0);
                begins |= forms[place] ^ forms[place] << 1;
            }
            begins &= ~1u; // nothing is carried to the first
            if constexpr (mod::GridGradients::kHasConditions)
                takes = __ballot_sync(kAll, sums.takes_element(query, 0, [](const mod::At& at) {
                    return mod::GridGradients::takes_query(at);
                }));
        }
        __device__ int form_of(int row) const {
            int form = 0;
#pragma unroll
            for (int place = 0; place < mod::GridGradients::kPlaces; ++place)
                form |= (forms[place] >> row & 1) << place;
            return form;
        }
    };

    __device__ int lane() const { return kSparesRegisters ? lane_ : lane_again(); }

    // Returns whether a query or a key, which may be past the end, has a part in the sums.
    template <typename Takes> __device__ bool takes_element(int query, int key, Takes takes) const {
        if constexpr (mod::GridGradients::kHasConditions)
            return visit_element(attention_, arguments_, place_, min(query, attention_.q_len - 1),
                                 min(key, attention_.kv_len - 1), takes);
        else
            return true;
    }

    static __device__ void load_words(unsigned from, unsigned (&words)[1]) {
        words[0] = load_shared_word(from);
    }
    static __device__ void load_words(unsigned from, unsigned (&words)[2]) {
        load_shared(from, words);
    }
    static __device__ void store_sums(unsigned to, const float (&sums)[2]) {
        store_shared(to, sums[0], sums[1]);
    }
    static __device__ void store_sums(unsigned to, const float (&sums)[4]) {
        store_shared(to, sums[0], sums[1], sums[2], sums[3]);
    }

    // Returns the offset of an element from the first row's first key; panels have 64 keys.
    static __device__ unsigned place_of(unsigned row, unsigned key) {
        return row * kRowBytes + ((key / 8 ^ row) % 8 * 16 | key % 8 * 2) + key / 64 * kQueryPanel;
    }

    __device__ void load(Words (&words)[kRowsAtOnce], unsigned d_scores, int first,
                         const Rows& rows) const {
        // The row that is i further on is found by adding i * 128, and for the swizzle i * 16,
        // without carries.
        const unsigned from = d_scores + place_of(first, kKeys * lane());
#pragma unroll
        for (int i = 0; i < kRowsAtOnce; ++i)
            load_words(from ^ i * (kRowBytes + 16), words[i]);
        if constexpr (mod::GridGradients::kHasConditions) {
            if (rows.takes == kAll) return;
#pragma unroll
            for (int i = 0; i < kRowsAtOnce; ++i)
#pragma unroll
                for (unsigned& word : words[i])
                    if ((rows.takes >> (first + i) & 1) == 0) word = 0;
        }
    }

    // Adds a row to the lane's diagonals; returns the sum of the one that ends at the lane's last
    // key.
    __device__ float add_row(const Words& words, float (&carried)[kKeys - 1]) const {
        constexpr mod::Element kKind{};
        float of[kKeys];
#pragma unroll
        for (int pair = 0; pair < kKeys / 2; ++pair) {
            of[2 * pair] = kept_[pair].first(kKind, words[pair]);
            of[2 * pair + 1] = kept_[pair].second(kKind, words[pair]);
        }
        const float sum = of[kKeys - 1] + carried[kKeys - 2];
#pragma unroll
        for (int j = kKeys - 2; j > 0; --j)
            carried[j] = of[j] + carried[j - 1];
        carried[0] = of[0];
        return sum;
    }

    // Adds as many rows as a lane has keys.
    __device__ void add_rows(const Words* words, int first, const Rows& rows,
                             float (&carried)[kKeys - 1]) const {
        const unsigned begins = rows.begins >> first & ((1 << kKeys) - 1);
        const int distance = first - kKeys * lane() - kKeys;
        float sums[kKeys];
        if (begins == 0) {
            const unsigned to = address(form_ ^ rows.form_of(first), distance);
            float more[kKeys];
            load_shared(to, more);
#pragma unroll
            for (int i = 0; i < kKeys; ++i)
                sums[i] = more[i] + add_row(words[i], carried);
            store_sums(to, sums);
        } else {
#pragma unroll
            for (int i = 0; i < kKeys; ++i) {
                if ((begins >> i & 1) != 0) {
                    add_carried(carried, first + i, rows);
#pragma unroll
                    for (float& sum : carried)
                        sum = 0;
                }
                sums[i] = add_row(words[i], carried);
            }
            const int begin = __ffs(static_cast<int>(begins)) - 1;
            if (begin > 0) add_part(sums, 0, begin, address(form_ ^ rows.form_of(first), distance));
            add_part(sums, begin, kKeys,
                     address(form_ ^ rows.form_of(first + kKeys - 1), distance));
        }
        __syncwarp();
    }
    // Adds the sums of rows begin ... end - 1.
    static __device__ void add_part(const float (&sums)[kKeys], int begin, int end, unsigned to) {
        float of[kKeys];
        load_shared(to, of);
#pragma unroll
        for (int i = 0; i < kKeys; ++i)
            of[i] += begin <= i && i < end ? sums[i] : 0;
        store_sums(to, of);
    }

    // Adds what is carried from the row before this one.
    __device__ void add_carried(const float (&carried)[kKeys - 1], int row,
                                const Rows& rows) const {
        const int form = form_ ^ rows.form_of(row - 1);
        unsigned to[kKeys - 1];
        float of[kKeys - 1];
#pragma unroll
        for (int j = 0; j < kKeys - 1; ++j) {
            to[j] = address(form, row - 2 - kKeys * lane() - j);
            of[j] = __uint_as_float(load_shared_word(to[j]));
        }
#pragma unroll
        for (int j = 0; j < kKeys - 1; ++j)
            store_shared_word(to[j], __float_as_uint(of[j] + carried[j]));
        __syncwarp();
    }

    // Adds elements at keys that lanes have left out.
    __device__ void add_left_out(unsigned d_scores, const Rows& rows) const {
        constexpr mod::Element kKind{};
        const bool takes = (rows.takes >> lane() & 1) != 0;
#pragma unroll
        for (int j = 0; j < kKeys; ++j) {
#pragma unroll 1
            for (unsigned lanes = __ballot_sync(kAll, (left_out_ >> j & 1) != 0); lanes != 0;
                 lanes &= lanes - 1) {
                const int other = __ffs(static_cast<int>(lanes)) - 1, key = kKeys * other + j;
                const int form = __shfl_sync(kAll, other_form_, other) ^ rows.form;
                const unsigned word = load_shared_half(d_scores + place_of(lane(), key));
                const unsigned to = address(form, lane() - key - 1);
                const float sum =
                    __uint_as_float(load_shared_word(to)) + flexc_first(kKind, takes ? word : 0);
                store_shared_word(to, __float_as_uint(sum));
                __syncwarp();
            }
        }
    }

    // Returns the address of a sum. distance: less one, from that of the tile's first query and
    // key.
    __device__ unsigned address(int form, int distance) const {
        const int place = form * kDistances + ((distance_ + distance) & (kDistances - 1));
        return memory_ + 4 * place;
    }

    // Moves to the tile of this distance: adds the sums that have no part in it to memory.
    __device__ void move_to(int distance) {
#pragma unroll 1
        for (int first = distance_ - mod::kKeyTile; first <= distance_; first += kStep)
            if (first < distance - mod::kKeyTile || first > distance) flush_step(first);
        distance_ = distance;
    }
    __device__ void flush_step(int first) const {
        const int distance = first + lane() % 16 * 4;
#pragma unroll 1
        for (int form = lane() / 16; form < kGridForms; form += 2) {
            const unsigned from = memory_ + 4 * (form * kDistances + (distance & (kDistances - 1)));
            float sums[4];
            load_shared(from, sums);
            store_shared(from, 0.0f, 0.0f, 0.0f, 0.0f);
            GridMemory::add(attention_, place_.b * attention_.heads + place_.h, form, distance,
                            sums);
        }
        __syncwarp();
    }

    const KernelArguments& attention_;
    const mod::Arguments& arguments_;
    const HeadPlace& place_;
    const unsigned memory_;
    const int first_key_;
    const int lane_ = lane_again();
    int distance_ = 0;      // of the tile's first query and key
    int form_, other_form_; // forms of the keys that the lane keeps, and leaves out
    unsigned left_out_ = 0; // a bit for each key
    KeptPair kept_[kKeys / 2];
};

// Called by one warp, for all of the block's tiles.
__device__ inline void sum_grid_rows(const KernelArguments& attention,
                                     const mod::Arguments& arguments, Shared shared,
                                     const KeyTile& keys, int warp) {
    const unsigned memory = shared.base + kLayout.tables + warp * 4 * mod::TableGradients::kWords;
    for (int i = static_cast<int>(threadIdx.x) % 32; i < mod::TableGradients::kWords; i += 32)
        store_shared_word(memory + 4 * i, 0);
    const int first_row = warp * GridRowSums::kRows;
    const unsigned d_scores = shared.base + kLayout.d_scores + first_row * kRowBytes;
    sum_tiles(attention, arguments, keys, d_scores, first_row, [&](const HeadPlace& place) {
        return GridRowSums(attention, arguments, place, memory, keys.first_kv);
    });
}

} // namespace sm90
