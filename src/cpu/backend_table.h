// The boundary between the core library and libflexc_cpu.so: one C function that returns a table.
// No exception, no allocation and no C++ library type crosses it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/arguments.h"
#include "common/sequences.h"
#include "flexc/types.h"

namespace flexc::cpu {

inline constexpr std::uint32_t kBackendVersion = 11;
inline constexpr char kBackendSymbol[] = "flexc_cpu_backend";

// Tile sizes of AttentionArguments::block_mask, whose rows are tiles of queries, and of
// evaluations of the mask.
inline constexpr int kMaskQueryTile = 64, kMaskKeyTile = 128;

// Receives bytes during the call that it is handed to. Throws nothing.
struct ByteSink {
    void (*write)(void* user, const char* data, std::size_t size) = nullptr;
    void* user = nullptr;
};

// Polled by a compile: whether nobody waits for it any more. Does not throw.
struct StopQuery {
    bool (*is_over)(void* user) = nullptr; // nullptr: goes on
    void* user = nullptr;

    bool operator()() const { return is_over != nullptr && is_over(user); }
};

// Variables of the loops over tiles; a read that has one of them as an index of its own reaches
// other elements when it changes.
enum Separation : std::uint32_t { kSeparatesB = 1, kSeparatesHKv = 2, kSeparatesKv = 4 };

// What the loops need to know of a module besides its machine code.
struct KernelShape {
    DType dtype = DType::f32;    // of q
    DType kv_dtype = DType::f32; // of k, v; the same, or of eight bits
    int head_dim = 0;
    int head_dim_v = 0;
    int threads = 1;
    int scratch_arrays = 0;
    bool has_band = false;
    bool band_is_exact = false;
    bool hides_scores = false;        // a known score of -inf hides elements too
    bool shares_mask_results = false; // the mask shows every head the same
    bool reads_key_rows = false;  // Tile::kv_rows
    bool learns_sink = false;     // there is kSinkBackwardFunction
    bool batch_invariant = false; // see list_work()
};

// The gradient of one captured buffer: f32, added to. words: where the emitted code finds its
// pointer and strides among the arguments; -1 if it does not read them.
struct GradientTarget {
    float* data = nullptr;
    int rank = 0;
    std::int64_t shape[kMaxDims] = {};
    std::int64_t strides[kMaxDims] = {};
    int data_word = -1;
    int stride_words[kMaxDims] = {};
    std::uint32_t separation = 0; // by every read of the buffer
};

struct Launch {
    const KernelShape* shape = nullptr;
    const AttentionArguments* arguments = nullptr;
    // Null for dense tensors. Otherwise the lengths in `arguments` are the maxima over all
    // requests.
    const SequenceArguments* sequences = nullptr;
    // For a launch that is a single one of those requests: b, and its first rows in packed tensors.
    std::int64_t request = 0, q_row = 0, kv_row = 0;
    const std::uint64_t* words = nullptr;
    std::size_t word_count = 0;
    const GradientTarget* gradients = nullptr; // backward
    std::size_t gradient_count = 0;
    int threads = 1;
    const CpuThreads* pool = nullptr;
    bool backward = false;
    void* workspace = nullptr; // 64-byte aligned
};

struct BackendModule;

struct BackendTable {
    std::uint32_t version = kBackendVersion;
    // Changes together with the kernels' templates: if both sides disagree, nothing is computed.
    std::uint32_t arguments_bytes = sizeof(AttentionArguments);

    // One line: versions of LLVM, libxsmm and oneTBB, and the processor that code is made for.
    // Two equal lines mean that object bytes may be exchanged.
    void (*describe)(ByteSink out) = nullptr;
    int (*default_threads)() = nullptr; // what oneTBB finds

    // nullptr on failure, with the reason in `error`. `compile` hands out the relocatable object.
    BackendModule* (*compile)(const char* text, std::size_t size, StopQuery stop, ByteSink object,
                              ByteSink error) = nullptr;
    BackendModule* (*load)(const char* object, std::size_t size, ByteSink error) = nullptr;
    void (*release)(BackendModule* module) = nullptr;
    // Address of a function of the module; nullptr when it has none of that name.
    void* (*find)(BackendModule* module, const char* name) = nullptr;

    std::size_t (*workspace_bytes)(const Launch& launch) = nullptr;
    bool (*forward)(BackendModule* module, const Launch& launch, ByteSink error) = nullptr;
    bool (*backward)(BackendModule* module, const Launch& launch, ByteSink error) = nullptr;
};

using BackendEntry = const BackendTable* (*)();

} // namespace flexc::cpu
