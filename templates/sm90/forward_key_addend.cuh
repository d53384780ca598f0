// What is added by key comes with the products: the MMAs of QK sum over eight more columns.
// Operands of keys are computed before the forward (sm90/expand_keys.cuh) and arrive with their
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

using KeyAddends = Select<kMultipliesKeyAddend, LoadedKeyAddends, NoKeyAddends>;

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

using AddendStep =
    Select<kMultipliesKeyAddend, KeyAddendStep,
           Select<kMultipliesIndex2dRows, Index2dStep,
                  Select<kMultipliesSlope, SlopeStep, NoAddendStep>>>;

} // namespace sm90
