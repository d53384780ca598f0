// What the threads of the forward kernel share: sizes, shared memory, and the task of a tile.
#pragma once

#include "mod.cuh"
#include "sm90/barrier.cuh"
#include "sm90/bias_tile.cuh"
#include "sm90/forward_terms.cuh"
#include "sm90/mapped_tile.cuh"
#include "sm90/warpgroup.cuh"
#include "sm90/wgmma.cuh"

namespace sm90 {

constexpr int kConsumers = mod::kQueryTile / 64; // warpgroups
constexpr int kThreads = 128 * (kConsumers + 1);
static_assert(kThreads == 32 * mod::kWarps);

// Registers of a thread; together no more than the launch gave the block.
constexpr int kProducerRegisters = kConsumers == 3 ? 32 : mod::kReadsBias ? 72 : 40;
constexpr int kConsumerRegisters = kConsumers == 3 ? 160 : mod::kReadsBias ? 216 : 232;

constexpr bool kPreparesEarly = kConsumers == 2 && mod::kHeadDimV <= 128;

constexpr int panels(int columns) { return (columns + kPanelColumns - 1) / kPanelColumns; }
constexpr int round_up_16(int x) { return (x + 15) / 16 * 16; }

constexpr int kRowBytes = 2 * kPanelColumns; // of a panel
constexpr int kQueryPanel = mod::kQueryTile * kRowBytes, kKeyPanel = mod::kKeyTile * kRowBytes;
constexpr int kPanels = panels(mod::kHeadDim), kValuePanels = panels(mod::kHeadDimV);

// The output leaves through the memory of its queries.
constexpr int kWidestPanels = kPanels > kValuePanels ? kPanels : kValuePanels;
using Queries = Stages<mod::kQueryStages, kQueryPanel * kWidestPanels>;
using Keys = Stages<mod::kStages, kPanels * kKeyPanel>;
using Values = Stages<mod::kStages, kValuePanels * kKeyPanel>;
using Biases = Stages<mod::kStages, mod::kReadsBias ? kBiasPanels * kBiasPanelBytes : 0>;
using TermSlices = Stages<mod::kStages, kTermBytes>;
// That copy them, where there are any and the copy engine does not, beside the producer.
constexpr int kBiasThreads = 64;

// What is added for rows of keys as a grid, by row, then by query. Where tiles are single rows it
// is an operand of products, see forward_grid.cuh, full and empty with its keys. Else floats.
constexpr int kGridRows = mod::kHasQuotientAddend ? mod::kKeyTile / mod::kKeyWidth : 0;
constexpr int kGridRowBytes = mod::kMultipliesGridRows ? 16 : 4; // of a query
using GridRows = Stages<mod::kStages, kGridRows * mod::kQueryTile * kGridRowBytes>;
constexpr bool kLoadsGridRows = kGridRows > 0 && !mod::kMultipliesGridRows;
// Nothing comes with keys and values but what is full and empty with them: a warpgroup may let them
// pass.
constexpr bool kKeysMayPass = !mod::kReadsBias && !kHasTerms && !kLoadsGridRows;
// The last operand ends so much earlier than it would if the two halves of its columns, which are
// the same memory, lay side by side: compute-sanitizer sees it so.
constexpr int kGridRowsReach = mod::kMultipliesGridRows ? 1024 : 0;
constexpr int kGridThreads =
    32 * kConsumers; // that stage it, where there is any, beside the producer

// A tile of queries, as the producer hands it to the consumers, beside the queries.
struct Task {
    int b, h, h_kv, first_row;
    int begin, end; // tiles of keys; where there is a map, 0 and their number
    int low, high;  // of the mask's band, see HeadPlace
    int end_row;    // after the last

    static constexpr int kBytes = 48;
    __device__ void store(unsigned to) const {
        store_shared(to, b, h, h_kv, first_row);
        store_shared(to + 16, begin, end, low, high);
        store_shared_word(to + 32, static_cast<unsigned>(end_row));
    }
    // The same for the whole warp.
    static __device__ Task load(unsigned from) {
        Task task;
        load_shared(from, task.b, task.h, task.h_kv, task.first_row);
        load_shared(from + 16, task.begin, task.end, task.low, task.high);
        task.end_row = static_cast<int>(load_shared_word(from + 32));
        return {uniform(task.b),         uniform(task.h),     uniform(task.h_kv),
                uniform(task.first_row), uniform(task.begin), uniform(task.end),
                uniform(task.low),       uniform(task.high),  uniform(task.end_row)};
    }
    // After the last tile.
    static __device__ Task none() { return {-1, 0, 0, 0, 0, 0, 0, 0, 0}; }
    __device__ bool is_none() const { return b < 0; }
};

struct Shared {
    Queries queries;
    Keys keys;
    Values values;
    Biases biases;
    TermSlices terms;
    GridRows grid_rows;
    unsigned grid_unit; // what rows of the grid are multiplied with, for eight keys
    unsigned tasks;     // one for each stage of queries
    unsigned spare;     // a word that is never read

    static constexpr int kTiles = 1024; // where tiles start, aligned for the swizzle
    static constexpr int kGridUnitBytes = 128;
    static constexpr int kHeaderBytes = // tasks, barriers, a spare word, and keys that a map chose
        Queries::kStages * Task::kBytes + Queries::kBarrierBytes + Keys::kBarrierBytes +
        Values::kBarrierBytes + Biases::kBarrierBytes + TermSlices::kBarrierBytes +
        GridRows::kBarrierBytes + 4 + 4 * Keys::kStages;
    static_assert(kHeaderBytes <= kTiles - kGridUnitBytes);
    static constexpr int kBytes = kTiles + Queries::kStages * Queries::kBytes +
                                  Keys::kStages * Keys::kBytes + Values::kStages * Values::kBytes +
                                  Biases::kStages * Biases::kBytes +
                                  TermSlices::kStages * TermSlices::kBytes +
                                  GridRows::kStages * GridRows::kBytes + kGridRowsReach;

    __device__ explicit Shared(unsigned memory)
        : queries{memory + kTiles, memory + Queries::kStages * Task::kBytes},
          keys{queries.at(Queries::kStages), queries.barriers + Queries::kBarrierBytes},
          values{keys.at(Keys::kStages), keys.barriers + Keys::kBarrierBytes},
          biases{values.at(Values::kStages), values.barriers + Values::kBarrierBytes},
          terms{biases.at(Biases::kStages), biases.barriers + Biases::kBarrierBytes},
          grid_rows{terms.at(TermSlices::kStages), terms.barriers + TermSlices::kBarrierBytes},
          grid_unit(memory + kTiles - kGridUnitBytes), tasks(memory),
          spare(grid_rows.barriers + GridRows::kBarrierBytes) {}

    __device__ unsigned task(int stage) const { return tasks + stage * Task::kBytes; }
    // Where a map chooses the tiles of keys: which one each stage holds.
    __device__ unsigned key_block(int stage) const { return spare + 4 + 4 * stage; }
    // bias_threads: that produce biases.
    __device__ void initialise(int bias_threads) const {
        constexpr int kConsumerWarps = 4 * kConsumers;
        // What threads read they release themselves; for what products read, a warp arrives once.
        queries.initialise(1, 32 * kConsumerWarps + (mod::kReadsBias ? bias_threads : 0) +
                                  (kGridRows > 0 ? kGridThreads : 0));
        keys.initialise(1 + (mod::kMultipliesGridRows ? kGridThreads : 0), kConsumerWarps);
        values.initialise(1, kConsumerWarps);
        if constexpr (mod::kReadsBias) biases.initialise(bias_threads, 32 * kConsumerWarps);
        if constexpr (kLoadsGridRows) grid_rows.initialise(kGridThreads, 32 * kConsumerWarps);
        if constexpr (kHasTerms) terms.initialise(1, 32 * kConsumerWarps);
        publish_barriers();
    }
};
static_assert(Shared::kBytes <= mod::kSharedBytes);

} // namespace sm90
