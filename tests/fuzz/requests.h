// Requests of ragged and paged tensors: lengths that go together, and what is made of them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "flexc/kernel.h"
#include "fuzz.h"

namespace flexc::fuzz {

class Requests {
  public:
    // `most.batch` of them, none longer than `most` says.
    Requests(Layout queries, Layout keys, const Sizes& most, Random& random);

    Lengths lengths() const; // lives as long as this
    // Of tensors that hold these requests and nothing behind them; without columns, of their rows.
    std::vector<std::int64_t> q_shape(std::int64_t columns) const;
    std::vector<std::int64_t> q_rows_shape() const;
    std::vector<std::int64_t> kv_shape(std::int64_t columns) const;
    // Of k_scale and v_scale: one for each page, or for each request.
    std::vector<std::int64_t> scale_shape() const;

    // One number or one array is another. Often that cannot be, and never is memory missing.
    void damage(Random& random);

  private:
    using Numbers = std::vector<std::int32_t>;

    // Of one axis: rows of each request, of which it uses some.
    static void pack(Layout layout, std::int64_t most, std::int64_t batch, Numbers& cu_seqlens,
                     Numbers& used, Random& random);
    void list_pages(Random& random);

    Layout queries_, keys_;
    Sizes most_;
    Numbers cu_seqlens_q_, cu_seqlens_k_, seqused_q_, seqused_k_;
    Numbers page_table_, page_indptr_, page_indices_, last_page_len_, query_starts_;
    std::int64_t page_size_ = 0, pages_ = 0;
    QueryStart start_ = QueryStart::automatic;
};

} // namespace flexc::fuzz
