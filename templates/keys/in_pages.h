// Keys of a request in pages of a cache. The table's numbers are its pages, in order.
#pragma once

#include "common/length_arrays.h"
#include "common/sequences.h"

class KeysInPages {
  public:
    static constexpr bool kAreInOrder = false;
    static constexpr int kLayout = 1;

    // KeyTable::size is the number of keys in a page.
    FLEXC_SHARED KeysInPages(const KeyTable& table, const Sequence& sequence, int /*request*/)
        : pages_(table.numbers + sequence.first_number), page_size_(table.size) {}

    // Reads the request's keys from arrays of lengths, into its record.
    FLEXC_SHARED static lengths::Numbers read_lengths(const LengthArrays& arrays, int request,
                                                      Sequence& sequence, bool& is_wrong) {
        const Pages pages = pages_of(arrays, request, is_wrong);
        sequence.kv_len = sequence.kv_rows = keys_of(arrays, request, pages.count, is_wrong);
        return {pages.ids, pages_that_hold(sequence.kv_len, arrays.entry_rows), arrays.entries,
                arrays.entry_rows};
    }
    FLEXC_SHARED static int pages_that_hold(int keys, int page_size) {
        return (keys + page_size - 1) / page_size;
    }

    // Returns where a key lies. It has to exist: behind the last one there may be no page.
    FLEXC_SHARED KeyPlace place(int key) const {
        const int page =
            static_cast<int>(static_cast<unsigned>(key) / static_cast<unsigned>(page_size_));
        return {load_constant(pages_ + page), key - page * page_size_};
    }
    // Returns the longest run from key `key` on, up to `most` keys.
    FLEXC_SHARED KeyRun run(int key, int most) const {
        const int slot = key % page_size_, left = page_size_ - slot;
        return {pages_[key / page_size_], slot, left < most ? left : most};
    }
    // Returns kv_row of the language: the row of the cache, whose pages follow each other.
    FLEXC_SHARED long long row(int key) const {
        const KeyRun at = run(key, 1);
        return at.entry * page_size_ + at.row;
    }

  private:
    // Pages of one request, in order.
    struct Pages {
        const int* ids;
        int count;
    };
    FLEXC_SHARED static Pages pages_of(const LengthArrays& arrays, int request, bool& is_wrong) {
        if (arrays.page_table != nullptr)
            return {arrays.page_table + static_cast<long long>(request) * arrays.table_width,
                    arrays.table_width};
        const long long first =
            lengths::within(arrays.page_indptr[request], 0, arrays.page_index_count, is_wrong);
        const long long end = lengths::within(arrays.page_indptr[request + 1], first,
                                              arrays.page_index_count, is_wrong);
        return {arrays.page_indices + first, static_cast<int>(end - first)};
    }
    FLEXC_SHARED static int keys_of(const LengthArrays& arrays, int request, int pages,
                                    bool& is_wrong) {
        const int page_size = arrays.entry_rows;
        long long slots = static_cast<long long>(pages) * page_size;
        if (arrays.last_page_len != nullptr && pages > 0)
            slots +=
                lengths::within(arrays.last_page_len[request], 1, page_size, is_wrong) - page_size;
        const long long used = arrays.seqused_k != nullptr ? arrays.seqused_k[request] : slots;
        return static_cast<int>(lengths::within(
            used, 0, slots < arrays.most_keys ? slots : arrays.most_keys, is_wrong));
    }

    const int* pages_; // of the request
    int page_size_;
};
