// What is added by key comes with the products: the MMAs of QK sum over eight more columns.
// Operands of keys are computed before the forward (sm90/tabulate_keys.cuh) and arrive with their
// keys.
#pragma once

#include "common/select.h"
#include "sm90/distance.cuh"
#include "sm90/forward_index_2d.cuh"
#include "sm90/forward_slope.cuh"
#include "sm90/key_addend.cuh"
#include "sm90/tma.cuh"

namespace sm90 {

struct NoKeyAddends {
    static __device__ void load(const KernelArguments&, const Task&, int, const Shared&, int) {}
};

struct LoadedKeyAddends;
struct LoadedKeyFactors;
class KeyAddendStep;
class Index2dStep;
class SlopeStep;
class RowFactorStep;

#ifdef FLEXC_HAS_OPERANDS

struct LoadedKeyAddends {
    // Called by the producer before it loads the keys of a tile into a stage.
    static __device__ void load(const KernelArguments& attention, const Task& task, int tile,
                                const Shared& shared, int stage) {
        const Barrier full = shared.keys.full(stage);
        const float* operands = key_operands(attention, vector_head(attention, task.b, task.h)) +
                                kOperandFloats * tile * mod::kKeyStep;
        full.expect(KeyAddendRing::kBytes);
        load_bytes(shared.key_addends.at(stage), operands, KeyAddendRing::kBytes, full);
    }
};

// Of products of rows and keys, a tile's keys have several operands.
struct LoadedKeyFactors {
    static __device__ void load(const KernelArguments& attention, const Task& task, int tile,
                                const Shared& shared, int stage) {
        constexpr int kBytes = mod::kKeyTile * ForwardLayout::kAddendBytes;
        const Barrier full = shared.keys.full(stage);
        const int head = vector_head(attention, task.b, task.h);
        full.expect(KeyAddendRing::kBytes);
#pragma unroll
        for (int i = 0; i < kKeyOperands; ++i)
            load_bytes(shared.key_addends.at(stage) + i * kBytes,
                       key_operands(attention, head, i) + kOperandFloats * tile * mod::kKeyStep,
                       kBytes, full);
    }
};

// The operands of a consumer warpgroup.
class KeyAddendStep : public NoAddendStep {
  public:
    // Stores what all addends are multiplied with, for eight queries: eight threads store one each.
    static __device__ void store_unit(const AttentionArguments&, const Shared& shared) {
        if (threadIdx.x >= 8) return;
        store_key_unit(shared.unit + ForwardLayout::kAddendBytes * threadIdx.x);
        publish_shared();
    }

    __device__ KeyAddendStep(const Shared& shared, const ConsumerThread& thread)
        : NoAddendStep(shared, thread), keys_(held_operand(shared.key_addends.at(0))),
          unit_(held_operand(shared.unit)) {}
    __device__ unsigned of_queries(int) const { return unit_; }
    __device__ unsigned of_keys(int stage) const {
        return keys_ + stage * (KeyAddendRing::kBytes >> 4);
    }

  private:
    unsigned keys_, unit_; // of the first stage
};

// The operands of products of rows and keys. The halves of a step's columns are two of them.
class RowFactorStep : public NoAddendStep {
    static constexpr int kRows = ForwardLayout::kOperandRows;
    static constexpr int kRowsBytes = kRows * ForwardLayout::kAddendBytes;

  public:
    // Stores the queries' operands of a tile, when all of the warpgroup have left the tile before.
    static __device__ void store_queries(const AttentionArguments& attention,
                                         const mod::Arguments& arguments, const HeadPlace& place,
                                         int first_row, const Shared& shared,
                                         const ConsumerThread& thread) {
        const int barrier = 1 + kConsumers + thread.warpgroup;
        const int index = 32 * thread.warp + thread.lane, row = index % kRows;
        synchronize(barrier, 128);
        visit_element(
            attention, arguments, place, min(first_row + row, attention.q_len - 1), 0,
            [&](const mod::At& at) {
#pragma unroll
                for (int i = 0; i < kKeyOperands; i += 2) {
                    const int which = i + index / kRows;
                    store_row_factor(queries(shared, thread) + kRowsBytes * which +
                                         ForwardLayout::kAddendBytes * row,
                                     which < kRowKeyProducts
                                         ? mod::TabulatedVectors::row_factor(at, which)
                                         : 0);
                }
                return 0;
            });
        publish_shared();
        synchronize(barrier, 128);
    }

    __device__ RowFactorStep(const Shared& shared, const ConsumerThread& thread)
        : NoAddendStep(shared, thread),
          keys_(held_operand(shared.key_addends.at(0),
                             mod::kKeyTile * ForwardLayout::kAddendBytes)),
          queries_(held_operand(queries(shared, thread), kRowsBytes)) {}
    __device__ unsigned of_queries(int) const { return queries_; }
    __device__ unsigned of_keys(int stage) const {
        return keys_ + stage * (KeyAddendRing::kBytes >> 4);
    }

  private:
    static __device__ unsigned queries(const Shared& shared, const ConsumerThread& thread) {
        return shared.row_factors + kKeyOperands * kRowsBytes * thread.warpgroup;
    }

    unsigned keys_, queries_; // of the first stage
};

#endif

using KeyAddends =
    Select<kMultipliesKeyAddend, LoadedKeyAddends,
           Select<(kRowKeyProducts > 0), LoadedKeyFactors, NoKeyAddends>>;
using AddendStep =
    Select<kMultipliesKeyAddend, KeyAddendStep,
           Select<kMultipliesIndex2dRows, Index2dStep,
                  Select<kMultipliesSlope, SlopeStep,
                         Select<(kRowKeyProducts > 0), RowFactorStep, NoAddendStep>>>>;

} // namespace sm90
