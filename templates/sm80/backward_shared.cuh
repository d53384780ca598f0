// What all sequences of a head share, in a block that computes them one after another: values that
// the score mod computes from h, q and kv alone, and sums of gradients of what it reads by h, q and
// kv. Each thread has those of its own elements.
#pragma once

#include "common/select.h"
#include "sm80/address_sums.cuh"
#include "sm80/scores_of_keys.cuh"

namespace sm80 {

// A float for each of a thread's elements.
class OwnElements {
  public:
    static constexpr int kCount = kQuerySteps * StepScores::kElements;
    static constexpr int kBytes = 4 * kThreads * kCount;
    static_assert(kBytes == tile_float_bytes(mod::kQueryTile, mod::kKeyTile));

    __device__ explicit OwnElements(unsigned base)
        : own_(base + 4 * static_cast<int>(threadIdx.x)) {}

    // element: of the thread's, step after step.
    __device__ float load(int element) const { return load_shared_float(at(element)); }
    __device__ void store(int element, float x) const { store_shared(at(element), x); }

    // Calls visit(i, element, inside) for each of the thread's elements. Those of a query come
    // together, so that the loads of their reads overlap.
    template <typename Visit>
    static __device__ void visit(const Surroundings& around, Visit visit_element) {
        const KeysOfThread keys(around);
#pragma unroll 1
        for (int i = 0; i < kCount; i += keys.kCount) {
            const ScoreRow query = query_at(around, StepScores::query_of_element(i));
#pragma unroll
            for (int key = 0; key < keys.kCount; ++key)
                visit_element(i + key, element_at(around, query, keys.of[key]),
                              query.inside && keys.of[key].inside);
        }
    }

  private:
    __device__ unsigned at(int element) const { return own_ + 4 * kThreads * element; }

    unsigned own_;
};

struct NoSharedValues {
    static constexpr int kBytes = 0;
    __device__ explicit NoSharedValues(unsigned) {}
    __device__ void find(const Surroundings&) {}
    __device__ float load(int element) const { return 0; }
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
    __device__ float load(int element) const { return elements_.load(element); }

  private:
    // Not inlined, so that it does not take registers from the main loop: it is called once a head.
    static __device__ __noinline__ void store_all(const KernelArguments& attention,
                                                  const mod::Arguments& arguments,
                                                  OwnElements elements, int b, int h, int h_kv) {
        const HeadPlace place(attention, arguments, b, h, h_kv);
        OwnElements::visit({attention, arguments, place, SequenceLength(attention, b)},
                           [&](int element, const mod::At& at, bool) {
                               elements.store(element, mod::shared_value(at));
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
    __device__ void add(int element, const mod::Joint&, float d_modified) const {}
    template <int kRoomBytes> __device__ void flush(const Surroundings&, unsigned room) const {}
};
class GradientsOfThreads {
  public:
    static constexpr int kBytes = OwnElements::kBytes;
    __device__ explicit GradientsOfThreads(unsigned base) : elements_(base) {}

    __device__ void clear() const {
#pragma unroll 1
        for (int i = 0; i < OwnElements::kCount; ++i)
            elements_.store(i, 0.0f);
    }
    __device__ void add(int element, const mod::Joint& joint, float d_modified) const {
        elements_.store(element, elements_.load(element) + mod::shared_gradient(joint, d_modified));
    }
    // Adds the sums to the gradient in global memory, after the last sequence of a head. room:
    // shared memory that nothing uses meanwhile.
    template <int kRoomBytes>
    __device__ void flush(const Surroundings& around, unsigned room) const {
        const auto& [attention, arguments, place, length] = around;
        flush_all<kRoomBytes>(attention, arguments, elements_, room, place.b, place.h, place.h_kv);
    }

  private:
    // Not inlined, as it is called once a head. Elements that share an address meet on chip first:
    // all blocks add to the same few addresses, which memory does one after another.
    template <int kRoomBytes>
    static __device__ __noinline__ void flush_all(const KernelArguments& attention,
                                                  const mod::Arguments& arguments,
                                                  OwnElements elements, unsigned room, int b, int h,
                                                  int h_kv) {
        const AddressSums<kThreads, kRoomBytes, mod::kQueryTile * mod::kKeyTile> shared(room);
        if constexpr (mod::kSharesAddresses) {
            shared.clear();
            __syncthreads();
        }
        const HeadPlace place(attention, arguments, b, h, h_kv);
        OwnElements::visit({attention, arguments, place, SequenceLength(attention, b)},
                           [&](int element, const mod::At& at, bool inside) {
                               mod::add_shared_gradient(at, inside ? elements.load(element) : 0,
                                                        shared);
                           });
        if constexpr (mod::kSharesAddresses) {
            __syncthreads();
            shared.flush();
            __syncthreads();
        }
    }

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
