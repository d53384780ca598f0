// Defines what the threads of the forward kernel share: sizes, shared memory as forward_layout.h
// divides it, and the task of a tile.
#pragma once

#include "common/select.h"
#include "mod.cuh"
#include "sm90/bias_tile.cuh"
#include "sm90/forward_layout.h"
#include "sm90/key_order.h"
#include "sm90/mask_tile.cuh"
#include "sm90/ring.cuh"
#include "sm90/warpgroup.cuh"
#include "sm90/wgmma.cuh"

namespace sm90 {

constexpr int kConsumers = mod::kQueryTile / 64; // warpgroups
constexpr int kConsumerThreads = 128 * kConsumers, kThreads = kConsumerThreads + 128;
static_assert(kThreads == 32 * mod::kWarps);

constexpr bool kCopiesBiases = kReadsBias || kReadsShifts;
constexpr bool kCopiesKeys = mod::kSizes.copies_keys;
// Where most tiles are beyond clamps, the few others, which take long to copy, are spread among
// them.
using KeyOrder = Select<mod::kSizes.shifted_end_bytes != 0, Interleaved, Descending>;
constexpr bool kHasCopiers = kCopiesBiases || kCopiesKeys; // threads beside the producer
// Registers of a thread after setmaxnreg; in sum no more than the launch gave the block.
constexpr int kProducerRegisters = kConsumers >= 3 ? 32 : kReadsShifts ? 88 : kHasCopiers ? 72 : 40;
constexpr int kConsumerRegisters = kConsumers == 4   ? 112
                                   : kConsumers == 3 ? 160
                                   : kReadsShifts  ? 208
                                   : kHasCopiers   ? 216
                                                   : 232;

// Whether what is added to products is loaded while they run, as there are registers to spare.
constexpr bool kPreparesEarly = kConsumers == 2 && mod::kHeadDimV <= 128;

constexpr int round_up_16(int x) { return (x + 15) / 16 * 16; }

constexpr ForwardLayout kLayout = forward_layout(mod::kSizes);
static_assert(kLayout.header_bytes <= kLayout.unit);
static_assert(kLayout.bytes <= mod::kSharedBytes);

constexpr KindCopiesLayout kKindCopies = kind_copies_layout(mod::kKeyTile, mod::kSizes.kind_copies);

constexpr bool kHasPairKinds = mod::kSizes.pair_kinds != 0;
constexpr PairKindsLayout kPairKinds =
    pair_kinds_layout(mod::kQueryTile, mod::kKeyTile, mod::kSizes.pair_kinds);

constexpr int kRowBytes = ForwardLayout::kRowBytes; // of a panel's row
static_assert(kRowBytes == 2 * kPanelColumns);
constexpr int kQueryPanel = mod::kQueryTile * kRowBytes, kKeyPanel = mod::kKeyTile * kRowBytes;
constexpr int kPanels = ForwardLayout::panels(mod::kSizes.head_dim);
constexpr int kValuePanels = ForwardLayout::panels(mod::kSizes.head_dim_v);

using Queries = Stages<kLayout.queries.stages, kLayout.queries.bytes>;
using Keys = Stages<kLayout.keys.stages, kLayout.keys.bytes>;
using Values = Stages<kLayout.values.stages, kLayout.values.bytes>;
using BiasRing = Stages<kLayout.biases.stages, kLayout.biases.bytes>;
using ShiftedEndRing = Stages<kLayout.shifted_ends.stages, kLayout.shifted_ends.bytes>;
using TabulatedRing = Stages<kLayout.tabulated.stages, kLayout.tabulated.bytes>;
// Addends of rows of the 2-D key index, by row, then by query. Where tiles are single rows they are
// an operand of products (see forward_index_2d.cuh), full and empty with their keys; else floats.
using Index2dRing = Stages<kLayout.index_2d_rows.stages, kLayout.index_2d_rows.bytes>;
using KeyAddendRing = Stages<kLayout.key_addends.stages, kLayout.key_addends.bytes>;
using PairKindRing = Stages<kLayout.pair_kinds.stages, kLayout.pair_kinds.bytes>;
using TableRing = Stages<kLayout.tables.stages, kLayout.tables.bytes>;
using KeyTasks = Stages<kLayout.key_tasks.stages, kLayout.key_tasks.bytes>;

constexpr bool kStagesTables = mod::kSizes.table_words != 0 && !kHasPairKinds;
constexpr bool kMultipliesKeyAddend = mod::kSizes.multiplies_key_addend;
constexpr bool kMultipliesSlope = mod::kSizes.multiplies_slope;
// Vectors by key whose slices are staged begin with this one.
constexpr int kRowKeyProducts = mod::kSizes.row_key_products;
constexpr int kKeyOperands = mod::kSizes.key_operands();
constexpr int kFirstStagedKey = kMultipliesKeyAddend ? 1 : kRowKeyProducts;
constexpr bool kHasTabulated =
    mod::TabulatedVectors::kByKey != kFirstStagedKey || mod::TabulatedVectors::kByDistance != 0;
constexpr bool kMultipliesIndex2dRows = mod::kSizes.multiplies_index_2d_rows;
constexpr int kIndex2dRows = mod::kSizes.index_2d_rows;
constexpr int kIndex2dRowBytes = ForwardLayout::addend_bytes(kMultipliesIndex2dRows);
constexpr bool kLoadsIndex2dRows = kIndex2dRows > 0 && !kMultipliesIndex2dRows;
// Threads of the producer warpgroup that stage addends of the 2-D key index, if there are any.
constexpr int kIndex2dThreads = 32 * kConsumers;
// Whether all that is staged with keys and values is full and empty with them, so that tiles of
// keys can be skipped.
constexpr bool kKeysMayPass = !kCopiesBiases && !kHasTabulated && !kLoadsIndex2dRows;
// Threads that copy tables, beside those that copy biases.
constexpr int kFirstTableThread = 32, kTableThreads = kCopiesBiases ? 32 : 96;

// A consumer thread: the number of its warpgroup, its lane, and its warp in the warpgroup.
struct ConsumerThread {
    int warpgroup, lane, warp;

    // Return the first row of the warp, and of the thread's two, in the tile of queries.
    __device__ int warp_row() const { return 64 * warpgroup + 16 * warp; }
    __device__ int first_row() const { return 64 * warpgroup + 16 * warp + lane / 4; }
};

// A tile of queries. The producer stores it for the consumers with each stage of queries.
struct Task {
    int b, h, h_kv, first_row;
    int begin, end; // range of tiles of keys; with a block mask, 0 and their number
    int low, high;  // of the mask's band, see HeadPlace
    int end_row;    // behind the tile's last row

    static constexpr int kBytes = ForwardLayout::kTaskBytes;
    __device__ void store(unsigned to) const {
        store_shared(to, b, h, h_kv, first_row);
        store_shared(to + 16, begin, end, low, high);
        store_shared_word(to + 32, static_cast<unsigned>(end_row));
    }
    static __device__ Task load(unsigned from) {
        Task task;
        load_shared(from, task.b, task.h, task.h_kv, task.first_row);
        load_shared(from + 16, task.begin, task.end, task.low, task.high);
        task.end_row = static_cast<int>(load_shared_word(from + 32));
        return task;
    }
    // Loads a task with values that are uniform over the warp. Called by the whole warp: a shuffle
    // that waits for lanes that never come is undefined.
    static __device__ Task load_by_warp(unsigned from) {
        const Task task = load(from);
        return {uniform(task.b),         uniform(task.h),     uniform(task.h_kv),
                uniform(task.first_row), uniform(task.begin), uniform(task.end),
                uniform(task.low),       uniform(task.high),  uniform(task.end_row)};
    }
    // Returns the task that follows the last one.
    static __device__ Task none() { return {-1, 0, 0, 0, 0, 0, 0, 0, 0}; }
    __device__ bool is_none() const { return b < 0; }
};

struct Shared {
    Queries queries;
    Keys keys;
    Values values;
    BiasRing biases;
    ShiftedEndRing shifted_ends;
    TabulatedRing tabulated;
    Index2dRing index_2d_rows;
    TableRing tables;
    KeyTasks key_tasks;        // tasks for the threads that copy keys
    KeyAddendRing key_addends; // operands, full and empty with their keys
    PairKindRing pair_kinds;   // of pairs, full and empty with their keys
    unsigned unit;             // what addends are multiplied with, for eight rows
    unsigned tasks;            // one for each stage of queries
    unsigned spare;            // a word that is never read
    unsigned key_blocks;       // a word for each stage of keys
    unsigned lengths;          // of requests, one for each stage of queries
    unsigned kind_places;      // which copy of addends each key takes
    unsigned kind_copies;      // the copies of addends by kinds of keys
    unsigned slopes, slope_keys; // operands of a slope
    unsigned row_factors;        // operands of queries in products of rows and keys

    __device__ explicit Shared(unsigned memory)
        : queries(at<Queries>(memory, kLayout.queries)), keys(at<Keys>(memory, kLayout.keys)),
          values(at<Values>(memory, kLayout.values)), biases(at<BiasRing>(memory, kLayout.biases)),
          shifted_ends(at<ShiftedEndRing>(memory, kLayout.shifted_ends)),
          tabulated(at<TabulatedRing>(memory, kLayout.tabulated)),
          index_2d_rows(at<Index2dRing>(memory, kLayout.index_2d_rows)),
          tables(at<TableRing>(memory, kLayout.tables)),
          key_tasks(at<KeyTasks>(memory, kLayout.key_tasks)),
          key_addends(at<KeyAddendRing>(memory, kLayout.key_addends)),
          pair_kinds(at<PairKindRing>(memory, kLayout.pair_kinds)), unit(memory + kLayout.unit),
          tasks(memory + kLayout.tasks), spare(memory + kLayout.spare),
          key_blocks(memory + kLayout.key_blocks), lengths(memory + kLayout.lengths),
          kind_places(memory + kLayout.kind_places), kind_copies(memory + kLayout.kind_copies),
          slopes(memory + kLayout.slopes), slope_keys(memory + kLayout.slope_keys),
          row_factors(memory + kLayout.row_factors) {}

    __device__ unsigned task(int stage) const { return tasks + stage * Task::kBytes; }
    // Returns the address of the word that says which tile of keys a stage holds, where consumers
    // cannot tell from the range.
    __device__ unsigned key_block(int stage) const { return key_blocks + 4 * stage; }

  private:
    template <typename S> static __device__ S at(unsigned memory, const RingLayout& ring) {
        return {memory + ring.memory, memory + ring.barriers};
    }
};

} // namespace sm90
