// What tells elements of one distance q - kv apart for reads by differences of digits: a digit's
// difference is that digit of the distance, but for what kv's digits borrow from the next ones. A
// place borrows where q has less than kv below it.
#pragma once

#include "sm90/distance.cuh"

namespace sm90 {

constexpr int kBorrowForms = 1 << mod::kBorrows; // a bit for each place that borrows

// Of positions as the program sees them.
struct Borrows {
    static __device__ int query_rest(int place, int query) {
        return rest(query + mod::kBorrowQueryOffsets[place], mod::kBorrowWidths[place]);
    }
    static __device__ int key_rest(int place, int key) {
        return rest(key + mod::kBorrowKeyOffsets[place], mod::kBorrowWidths[place]);
    }
    static __device__ int form_of(int query, int key) {
        int form = 0;
#pragma unroll
        for (int place = 0; place < mod::kBorrows; ++place)
            form |= (query_rest(place, query) < key_rest(place, key)) << place;
        return form;
    }
    // How many elements further along the diagonal the form may change.
    static __device__ int run_of(int query, int key) {
        int run = mod::kBorrowWidths[0];
#pragma unroll
        for (int place = 0; place < mod::kBorrows; ++place)
            run = min(run, mod::kBorrowWidths[place] -
                               max(query_rest(place, query), key_rest(place, key)));
        return run;
    }

  private:
    static __device__ int rest(int x, int width) {
        const int rest = x % width;
        return rest < 0 ? rest + width : rest;
    }
};

// Takes another element of the entry's distance, the first one of this form.
__device__ inline void find_form(Entry& entry, const AttentionArguments& attention, int form) {
    const int query = static_cast<int>(attention.q_offset),
              key = static_cast<int>(attention.kv_offset);
    while (Borrows::form_of(entry.row + query, entry.key + key) != form) {
        const int run = Borrows::run_of(entry.row + query, entry.key + key);
        if (entry.row + run >= attention.q_len || entry.key + run >= attention.kv_len) return;
        entry.row += run;
        entry.key += run;
    }
}

} // namespace sm90
