#include "requests.h"

#include <algorithm>
#include <limits>

namespace flexc::fuzz {

Requests::Requests(Layout queries, Layout keys, const Sizes& most, Random& random)
    : queries_(queries), keys_(keys), most_(most) {
    pack(queries, most.q_len, most.batch, cu_seqlens_q_, seqused_q_, random);
    if (keys == Layout::paged)
        list_pages(random);
    else
        pack(keys, most.kv_len, most.batch, cu_seqlens_k_, seqused_k_, random);
    start_ = random.pick(std::array{QueryStart::automatic, QueryStart::zero, QueryStart::end});
    if (random.chance(20))
        for (std::int64_t b = 0; b < most.batch; ++b)
            query_starts_.push_back(static_cast<std::int32_t>(random.integer(-50, 200)));
}

void Requests::pack(Layout layout, std::int64_t most, std::int64_t batch, Numbers& cu_seqlens,
                    Numbers& used, Random& random) {
    const bool uses_all = random.chance(50);
    std::int64_t row = layout == Layout::ragged && random.chance(20) ? random.integer(1, 5) : 0;
    if (layout == Layout::ragged) cu_seqlens.push_back(static_cast<std::int32_t>(row));
    for (std::int64_t b = 0; b < batch; ++b) {
        const std::int64_t length = random.chance(15) ? 0 : random.integer(0, most);
        if (!uses_all) used.push_back(static_cast<std::int32_t>(length));
        if (layout != Layout::ragged) continue;
        row += length + (uses_all ? 0 : random.integer(0, 3));
        cu_seqlens.push_back(static_cast<std::int32_t>(row));
    }
}

void Requests::list_pages(Random& random) {
    page_size_ = random.pick(std::array{1, 2, 3, 16, 64, 100});
    pages_ = random.integer(1, 12);
    const auto page = [&] { return static_cast<std::int32_t>(random.integer(0, pages_ - 1)); };
    const bool is_table = random.chance(50);
    const std::int64_t width = (most_.kv_len + page_size_ - 1) / page_size_;
    // What a table lists beyond the keys may be anything.
    const auto entry_behind = [&] {
        return random.chance(50) ? page() : std::numeric_limits<std::int32_t>::min();
    };
    const bool says_last = !is_table && random.chance(50);
    if (!is_table) page_indptr_.push_back(0);
    for (std::int64_t b = 0; b < most_.batch; ++b) {
        const std::int64_t keys = random.chance(15) ? 0 : random.integer(0, most_.kv_len);
        const std::int64_t pages = (keys + page_size_ - 1) / page_size_;
        if (says_last)
            last_page_len_.push_back(
                static_cast<std::int32_t>(pages == 0 ? 0 : keys - (pages - 1) * page_size_));
        else
            seqused_k_.push_back(static_cast<std::int32_t>(keys));
        Numbers& list = is_table ? page_table_ : page_indices_;
        for (std::int64_t i = 0; i < pages; ++i)
            list.push_back(page());
        for (std::int64_t i = pages; is_table && i < width; ++i)
            list.push_back(entry_behind());
        if (!is_table) page_indptr_.push_back(static_cast<std::int32_t>(page_indices_.size()));
    }
}

Lengths Requests::lengths() const {
    return {.cu_seqlens_q = cu_seqlens_q_,
            .cu_seqlens_k = cu_seqlens_k_,
            .seqused_q = seqused_q_,
            .seqused_k = seqused_k_,
            .page_table = page_table_,
            .page_indptr = page_indptr_,
            .page_indices = page_indices_,
            .last_page_len = last_page_len_,
            .page_size = page_size_,
            .pages = pages_,
            .query_start = start_,
            .query_starts = query_starts_};
}

std::vector<std::int64_t> Requests::q_shape(std::int64_t columns) const {
    std::vector<std::int64_t> shape = q_rows_shape();
    shape.push_back(columns);
    return shape;
}

std::vector<std::int64_t> Requests::q_rows_shape() const {
    if (queries_ == Layout::ragged) return {cu_seqlens_q_.back(), most_.heads};
    return {most_.batch, most_.heads, most_.q_len};
}

std::vector<std::int64_t> Requests::kv_shape(std::int64_t columns) const {
    switch (keys_) {
    case Layout::ragged: return {cu_seqlens_k_.back(), most_.kv_heads, columns};
    case Layout::paged: return {pages_, page_size_, most_.kv_heads, columns};
    case Layout::dense: break;
    }
    return {most_.batch, most_.kv_heads, most_.kv_len, columns};
}

std::vector<std::int64_t> Requests::scale_shape() const {
    return {keys_ == Layout::paged ? pages_ : most_.batch, most_.kv_heads};
}

void Requests::damage(Random& random) {
    static constexpr std::array<std::int64_t, 9> kNumbers = {
        -1,
        0,
        1,
        7,
        1024,
        1025,
        1 << 30,
        std::numeric_limits<std::int32_t>::max(),
        std::numeric_limits<std::int32_t>::min()};
    const std::int64_t other = random.pick(kNumbers);
    if (random.chance(10)) {
        (random.chance(50) ? page_size_ : pages_) =
            random.chance(50) ? other : std::numeric_limits<std::int64_t>::max();
        return;
    }
    std::array<Numbers*, 9> arrays = {&cu_seqlens_q_, &cu_seqlens_k_,  &seqused_q_,
                                      &seqused_k_,    &page_table_,    &page_indptr_,
                                      &page_indices_, &last_page_len_, &query_starts_};
    Numbers* numbers = random.pick(arrays);
    for (int tries = 0; tries < 20 && numbers->empty(); ++tries)
        numbers = random.pick(arrays);
    if (numbers->empty() || random.chance(10))
        numbers->push_back(static_cast<std::int32_t>(other));
    else if (random.chance(20))
        numbers->pop_back();
    else
        (*numbers)[static_cast<std::size_t>(random.integer(
            0, static_cast<std::int64_t>(numbers->size()) - 1))] = static_cast<std::int32_t>(other);
}

} // namespace flexc::fuzz
