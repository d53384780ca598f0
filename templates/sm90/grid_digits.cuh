// Forms of elements, for reads indexed by differences of q's and kv's digits. The difference of two
// digits is that digit of the distance q - kv, but differs by one where the lower digits of kv
// borrow from it, because those of q are less. So elements of one distance may read different
// entries. Their form says which: a bit for each place that borrows.
//
// Given the distance, the parity of the digits' difference says the same. It is the sum of a number
// of q and one of kv, which change only where digits begin. So it is the form where digits may
// begin at any position.
#pragma once

#include "sm90/backward_layout.h"
#include "sm90/distance.cuh"

namespace sm90 {

constexpr int kGridForms = 1 << mod::GridGradients::kPlaces; // a bit for each place that borrows

// Returns whether digits begin at multiples of eight positions only, and no element is left out.
constexpr bool is_grid_aligned() {
    for (int place = 0; place < mod::GridGradients::kPlaces; ++place)
        if (mod::GridGradients::width(place) % kGridStep != 0 ||
            mod::GridGradients::query_offset(place) % kGridStep != 0 ||
            mod::GridGradients::key_offset(place) % kGridStep != 0)
            return false;
    return !mod::GridGradients::kHasConditions;
}
constexpr bool kGridIsAligned = is_grid_aligned();
// What is added to a distance's index for the index of its sum in memory.
constexpr int kGridShift = kGridIsAligned ? 0 : -1;

// Digits of positions, which are as the program sees them.
struct GridDigits {
    static __device__ int query_rest(int place, int query) {
        return rest(query + mod::GridGradients::query_offset(place),
                    mod::GridGradients::width(place));
    }
    static __device__ int key_rest(int place, int key) {
        return rest(key + mod::GridGradients::key_offset(place), mod::GridGradients::width(place));
    }
    static __device__ int form_of(int query, int key) {
        int form = 0;
#pragma unroll
        for (int place = 0; place < mod::GridGradients::kPlaces; ++place)
            form |= (query_rest(place, query) < key_rest(place, key)) << place;
        return form;
    }
    // Returns after how many elements along the diagonal the form may change.
    static __device__ int run_of(int query, int key) {
        int run = mod::GridGradients::width(0);
#pragma unroll
        for (int place = 0; place < mod::GridGradients::kPlaces; ++place)
            run = min(run, mod::GridGradients::width(place) -
                               max(query_rest(place, query), key_rest(place, key)));
        return run;
    }
    // Forms by parity: that of an element is that of its query xor that of its key.
    static __device__ int query_form(int query) {
        return form_of([&](int place) { return query + mod::GridGradients::query_offset(place); });
    }
    static __device__ int key_form(int key) {
        return form_of([&](int place) { return key + mod::GridGradients::key_offset(place); });
    }

  private:
    template <typename Position> static __device__ int form_of(Position position) {
        int form = 0;
#pragma unroll
        for (int place = 0; place < mod::GridGradients::kPlaces; ++place)
            form |= parity(position(place), mod::GridGradients::width(place)) << place;
        return form;
    }
    static __device__ int parity(int x, int width) {
        return (x / width - (x % width < 0 ? 1 : 0)) & 1;
    }
    static __device__ int rest(int x, int width) {
        const int rest = x % width;
        return rest < 0 ? rest + width : rest;
    }
};

// Returns whether the element is of this form and has a part in the gradients.
__device__ inline bool is_of_form(const Entry& entry, const AttentionArguments& attention,
                                  const mod::Arguments& arguments, int form) {
    const int query = entry.row + static_cast<int>(attention.q_offset),
              key = entry.key + static_cast<int>(attention.kv_offset);
    if constexpr (kGridIsAligned) {
        return GridDigits::form_of(query, key) == form;
    } else {
        if ((GridDigits::query_form(query) ^ GridDigits::key_form(key)) != form) return false;
        bool takes = true;
        entry.visit(attention, arguments, [&](const mod::At& at) {
            takes = mod::GridGradients::takes_query(at) && mod::GridGradients::takes_key(at);
        });
        return takes;
    }
}

// Moves the entry to the first element of its distance that is of this form.
__device__ inline void find_form(Entry& entry, const AttentionArguments& attention,
                                 const mod::Arguments& arguments, int form) {
    const int query = static_cast<int>(attention.q_offset),
              key = static_cast<int>(attention.kv_offset);
    while (!is_of_form(entry, attention, arguments, form)) {
        const int run = mod::GridGradients::kHasConditions
                            ? 1
                            : GridDigits::run_of(entry.row + query, entry.key + key);
        if (entry.row + run >= attention.q_len || entry.key + run >= attention.kv_len) return;
        entry.row += run;
        entry.key += run;
    }
}

} // namespace sm90
