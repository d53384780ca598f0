// What the program computes for one element, by functions that read its tables where they are; and
// the addend that each score has of its own.
#pragma once

#include "common/select.h"
#include "sm90/bias_tile.cuh"
#include "sm90/column_sums.cuh"
#include "sm90/logit_units.cuh"
#include "sm90/score_elements.cuh"

namespace sm90 {

__device__ inline float score_of(SourceOf<TableSource::inside>, const mod::At& at, float x) {
    return mod::staged_score(at, x);
}
__device__ inline float score_of(SourceOf<TableSource::conditional>, const mod::At& at, float x) {
    return mod::staged_score(at, x);
}
__device__ inline float score_of(SourceOf<TableSource::checked>, const mod::At& at, float x) {
    return mod::checked_score(at, x);
}
__device__ inline float score_of(SourceOf<TableSource::memory>, const mod::At& at, float x) {
    return mod::score(at, x);
}
#ifdef FLEXC_IS_AFFINE

__device__ inline float element_addend(SourceOf<TableSource::inside>, const mod::At& at,
                                       float bias) {
    return mod::staged_element_addend(at, bias);
}
__device__ inline float element_addend(SourceOf<TableSource::conditional>, const mod::At& at,
                                       float bias) {
    return mod::conditional_element_addend(at, bias);
}
__device__ inline float element_addend(SourceOf<TableSource::checked>, const mod::At& at,
                                       float bias) {
    return mod::checked_element_addend(at, bias);
}
__device__ inline float element_addend(SourceOf<TableSource::exact>, const mod::At& at,
                                       float bias) {
    return mod::exact_element_addend(at, bias);
}
__device__ inline float element_addend(SourceOf<TableSource::memory>, const mod::At& at,
                                       float bias) {
    return mod::element_addend(at, bias);
}

struct NoElementAddend {
    // Calls add(r, addend) for the rows of the j-th column; columns come in order.
    template <typename Source, typename Add>
    __device__ void visit(Source, const LogitUnits&, ScoreElements& elements, const BiasFragment&,
                          const Sums&, int, int j, Add add) {
        elements.load_tabulated(j);
        // Adding -0 leaves every float as it is; adding 0 would turn -0 into 0.
        add(0, -0.0f);
        add(1, -0.0f);
    }
};

struct ComputedElementAddend {
    template <typename Source, typename Add>
    __device__ void visit(Source source, const LogitUnits& units, ScoreElements& elements,
                          const BiasFragment& biases, const Sums& sums, int first_key, int j,
                          Add add) {
        elements.load_tabulated(j);
        elements.visit_element(first_key, j, [&](int r, const mod::At& at) {
            const float bias = kReadsBias ? biases.at(r, j) : 0;
            add(r, units.of_addend(element_addend(source, sums.given(at, r, j), bias)));
        });
    }
};

// Addends are guessed for several columns at once, so that none waits for another, and computed
// exactly if there is a doubt.
class GuessedElementAddend {
  public:
    template <typename Source, typename Add>
    __device__ void visit(Source source, const LogitUnits& units, ScoreElements& elements,
                          const BiasFragment&, const Sums&, int first_key, int j, Add add) {
        if (j % kAtOnce == 0) guess(source, elements, first_key, j);
        add(0, units.of_addend(addends_[j % kAtOnce][0]));
        add(1, units.of_addend(addends_[j % kAtOnce][1]));
    }

  private:
    static constexpr int kAtOnce = 4;

    template <typename Source>
    __device__ void guess(Source source, ScoreElements& elements, int first_key, int first) {
        bool doubt = false;
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
            elements.load_tabulated(first + j);
            elements.visit_element(first_key, first + j, [&](int r, mod::At at) {
                at.doubt = &doubt;
                addends_[j][r] = element_addend(source, at, 0);
            });
        }
        if (!doubt) return;
        // In a loop: unrolled, they would be most of the kernel's text.
#pragma unroll 1
        for (int which = 0; which < 2 * kAtOnce; ++which) {
            const float exact =
                elements.visit_one(first_key, first + which / 2, which % 2, [](const mod::At& at) {
                    return element_addend(SourceOf<TableSource::exact>{}, at, 0);
                });
#pragma unroll
            for (int i = 0; i < 2 * kAtOnce; ++i)
                addends_[i / 2][i % 2] = i == which ? exact : addends_[i / 2][i % 2];
        }
    }

    float addends_[kAtOnce][2];
};

template <typename Source>
constexpr bool kGuesses =
    mod::StagedTables::kLogsAreGuessed && Source::kSource != TableSource::memory;
template <typename Source>
using ElementAddend = Select<!kForm.has_element_addend, NoElementAddend,
                             Select<kGuesses<Source>, GuessedElementAddend, ComputedElementAddend>>;

#endif

} // namespace sm90
