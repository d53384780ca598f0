#include "distributed/merged_rows.h"

namespace flexc::distributed {

Result<MergedRows> MergedRows::make(TensorWork& work, std::int64_t batch, std::int64_t heads,
                                    std::int64_t rows, std::int64_t columns,
                                    std::int64_t most_rows) {
    MergedRows merged(work);
    merged.batch_ = batch;
    merged.outputs_ = merged.memory_.unset(DType::f32, {batch, heads, rows, columns});
    merged.largest_ = merged.memory_.unset(DType::f32, {batch, heads, rows});
    const TensorView weights = merged.memory_.zeros(DType::f64, {batch, heads, rows});
    merged.part_o_ = merged.memory_.unset(DType::f32, {batch * heads * most_rows, columns});
    merged.part_lse_ = merged.memory_.unset(DType::f32, {batch * heads * most_rows});
    if (!merged.memory_.made()) return merged.memory_.made().error();
    merged.sums_ = {.outputs = static_cast<float*>(merged.outputs_.data),
                    .largest = static_cast<float*>(merged.largest_.data),
                    .weights = static_cast<double*>(weights.data),
                    .heads = heads,
                    .rows = rows,
                    .columns = static_cast<int>(columns)};
    return merged;
}

MergedRows::PartViews MergedRows::part(const RowRange& heads, std::int64_t rows) const {
    return {TensorView::contiguous(part_o_.data, DType::f32,
                                   {batch_, heads.count(), rows, sums_.columns}),
            TensorView::contiguous(part_lse_.data, DType::f32, {batch_, heads.count(), rows})};
}

ranks::Part MergedRows::part_of(const RowRange& heads, const RowRange& rows) const {
    return {.o = static_cast<const float*>(part_o_.data),
            .lse = static_cast<const float*>(part_lse_.data),
            .first_head = heads.begin,
            .heads = heads.count(),
            .first_row = rows.begin,
            .rows = rows.count(),
            .count = batch_ * heads.count() * rows.count()};
}

Result<void> MergedRows::add(const RowRange& heads, const RowRange& rows) const {
    return work_->merge(sums_, part_of(heads, rows));
}

MergedRows::PartViews MergedRows::first_part(const RowRange& heads, const RowRange& rows) const {
    const auto view = [&](const TensorView& sums) {
        return rows_of(rows_of(sums, heads.begin, heads.count(), 1), rows.begin, rows.count());
    };
    return {view(outputs_), view(largest_)};
}

Result<void> MergedRows::add_first(const RowRange& heads, const RowRange& rows) const {
    ranks::Part part = part_of(heads, rows);
    part.o = nullptr;
    return work_->merge(sums_, part);
}

Result<void> MergedRows::finish(const RowRange& rows, bool with_part, const float* sinks,
                                const TensorView& o, const TensorView& lse) const {
    const auto last = [&](const TensorView& part) {
        return with_part ? static_cast<const float*>(part.data) : nullptr;
    };
    ranks::FinishedRows finished{.sums = sums_,
                                 .part_o = last(part_o_),
                                 .part_lse = last(part_lse_),
                                 .sinks = sinks,
                                 .batch = batch_,
                                 .first_row = rows.begin,
                                 .rows = rows.count(),
                                 .o = static_cast<char*>(o.data),
                                 .lse = static_cast<char*>(lse.data),
                                 .o_type = o.dtype == DType::f16    ? ranks::FinishedRows::kF16
                                           : o.dtype == DType::bf16 ? ranks::FinishedRows::kBf16
                                                                    : ranks::FinishedRows::kF32};
    for (std::size_t dim = 0; dim < 4; ++dim)
        finished.o_strides[dim] = o.strides[dim] * static_cast<std::int64_t>(size_of(o.dtype));
    for (std::size_t dim = 0; dim < 3; ++dim)
        finished.lse_strides[dim] = lse.strides[dim] * static_cast<std::int64_t>(sizeof(float));
    return work_->finish(finished);
}

} // namespace flexc::distributed
