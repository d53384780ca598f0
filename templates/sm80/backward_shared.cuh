// What all sequences of a head share, in a block that computes them one after another: values that
// the score mod computes from h, q and kv alone, and sums of gradients of what it reads by h, q and
// kv. Each thread has those of its own elements.
#pragma once

#include "common/select.h"
#include "sm80/backward_tiles.cuh"

namespace sm80 {

// The scores of a whole sequence, in registers of the block.
using SequenceScores = WarpResult<mod::kQueryTile, mod::kKeyTile, mod::kWarps>;

// A float for each of a thread's elements.
class OwnElements {
  public:
    static constexpr int kRows = SequenceScores::kRows, kColumns = 2 * SequenceScores::kColumns;
    static constexpr int kBytes = 4 * kThreads * kRows * kColumns;
    static_assert(kBytes == tile_float_bytes(mod::kQueryTile, mod::kKeyTile));

    __device__ explicit OwnElements(unsigned base)
        : own_(base + 4 * static_cast<int>(threadIdx.x)) {}

    __device__ float load(int row, int column) const { return load_shared_float(at(row, column)); }
    __device__ void store(int row, int column, float x) const { store_shared(at(row, column), x); }

    // Calls visit(row, column, element, inside) for each of the thread's elements. Those of a
    // column come together, so that the loads of their reads overlap.
    template <typename Visit>
    static __device__ void visit(const Surroundings& around, Visit visit_element) {
        const auto& [attention, arguments, place, length] = around;
        const auto query_of = [](int row) { return SequenceScores::row(row); };
        mod::Row rows[kRows];
#pragma unroll
        for (int row = 0; row < kRows; ++row)
            rows[row] = mod::at_row(arguments, place.launch, place.head, place.b, place.h,
                                    place.h_kv, length.q_idx(query_of(row)));
#pragma unroll 1
        for (int column = 0; column < kColumns; ++column) {
            const int key = SequenceScores::column(column / 2) + column % 2;
            const int kv = length.kv_idx(key);
            const mod::Column of_key = mod::at_column(arguments, place.launch, place.head, place.b,
                                                      place.h, place.h_kv, kv);
#pragma unroll
            for (int row = 0; row < kRows; ++row) {
                const int query = query_of(row);
                const mod::At at{arguments, place.launch, place.head, rows[row],           of_key,
                                 place.b,   place.h,      place.h_kv, length.q_idx(query), kv};
                visit_element(row, column, at, query < length.queries() && key < length.keys());
            }
        }
    }

  private:
    __device__ unsigned at(int row, int column) const {
        return own_ + 4 * kThreads * (row * kColumns + column);
    }

    unsigned own_;
};

struct NoSharedValues {
    static constexpr int kBytes = 0;
    __device__ explicit NoSharedValues(unsigned) {}
    __device__ void find(const Surroundings&) {}
    __device__ float load(int row, int column) const { return 0; }
};
class ValuesOfThreads {
  public:
    static constexpr int kBytes = OwnElements::kBytes;
    __device__ explicit ValuesOfThreads(unsigned base) : elements_(base) {}

    // Computes the values of the head, unless the sequence before had the same head.
    __device__ void find(const Surroundings& around) {
        const auto& [attention, arguments, place, length] = around;
        if (place.h == head_) return;
        head_ = place.h;
        store_all(attention, arguments, elements_, place.b, place.h, place.h_kv);
    }
    __device__ float load(int row, int column) const { return elements_.load(row, column); }

  private:
    // Not inlined, so that it does not take registers from the main loop: it is called once a head.
    static __device__ __noinline__ void store_all(const KernelArguments& attention,
                                                  const mod::Arguments& arguments,
                                                  OwnElements elements, int b, int h, int h_kv) {
        const HeadPlace place(attention, arguments, b, h, h_kv);
        OwnElements::visit({attention, arguments, place, SequenceLength(attention, b)},
                           [&](int row, int column, const mod::At& at, bool) {
                               elements.store(row, column, mod::shared_value(at));
                           });
    }

    OwnElements elements_;
    int head_ = -1;
};
using SharedValues = Select<mod::kHasSharedValue, ValuesOfThreads, NoSharedValues>;

struct NoSharedGradients {
    static constexpr int kBytes = 0;
    __device__ explicit NoSharedGradients(unsigned) {}
    __device__ void clear() const {}
    __device__ void add(int row, int column, const mod::Joint&, float d_modified) const {}
    __device__ void flush(const Surroundings&) const {}
};
class GradientsOfThreads {
  public:
    static constexpr int kBytes = OwnElements::kBytes;
    __device__ explicit GradientsOfThreads(unsigned base) : elements_(base) {}

    __device__ void clear() const {
#pragma unroll 1
        for (int i = 0; i < OwnElements::kRows * OwnElements::kColumns; ++i)
            elements_.store(0, i, 0.0f);
    }
    __device__ void add(int row, int column, const mod::Joint& joint, float d_modified) const {
        elements_.store(row, column,
                        elements_.load(row, column) + mod::shared_gradient(joint, d_modified));
    }
    // Adds the sums to the gradient in global memory, after the last sequence of a head.
    __device__ void flush(const Surroundings& around) const {
        OwnElements::visit(around, [&](int row, int column, const mod::At& at, bool inside) {
            const float sum = elements_.load(row, column);
            if (inside && sum != 0) mod::add_shared_gradient(at, sum);
        });
    }

  private:
    OwnElements elements_;
};
using SharedGradients = Select<mod::kHasSharedGradient, GradientsOfThreads, NoSharedGradients>;

struct SharedByHead {
    static constexpr int kBytes = SharedValues::kBytes + SharedGradients::kBytes;
    SharedValues values;
    SharedGradients gradients;

    __device__ explicit SharedByHead(unsigned base)
        : values(base), gradients(base + SharedValues::kBytes) {}
};

} // namespace sm80
