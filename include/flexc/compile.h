// Compiles the text of a program to a kernel.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flexc/kernel.h"
#include "flexc/options.h"
#include "flexc/result.h"

namespace flexc {

// Compiles for options.device. Thread-safe; holds no lock while a compiler runs. Calls for the same
// program, types and device share one compile and one module.
Result<Kernel> compile(std::string_view text, const CompileOptions& options = {});

// What a program declares, without compiling it for a device.
struct BufferInfo {
    std::string name;
    DType dtype = DType::f32;
    std::vector<std::string> dims;
    bool grad = false;
};
struct ParamInfo {
    std::string name;
    std::string type; // "f32", "int" or "bool"
    double default_value = 0;
    bool has_default = true;
};
struct Signature {
    std::vector<BufferInfo> buffers;
    std::vector<ParamInfo> params;
    std::vector<std::string> sizes;      // that the program reads
    std::vector<std::string> mask_sizes; // those of them that the mask reads
    std::string score_depends_on;        // "score, h, q_idx, kv_idx"
    std::string mask_depends_on;         // "" when there is no mask
    std::string sink_depends_on;         // "" when there is no sink
    std::vector<std::string> warnings;   // as a user reads them
};
Result<Signature> check(std::string_view text, const CompileOptions& options = {});

// Whether compile(), or with an architecture compile_offline(), has kernels for this program with
// these options here; if not, returns the error that it would give. No backend compiler runs, so
// every call but a process's first, which opens the backend, is as fast as check(). Errors that
// only that compiler finds remain unknown: that it rejects a program, exceeds the limits, or leaves
// Hopper's kernels, if these were asked for, without enough registers. If NVRTC is missing, only
// kernels in a pack or the cache count.
Result<void> supports(std::string_view text, const CompileOptions& options = {},
                      std::string_view arch = {});

// The architecture for offline compiles if none is given.
inline constexpr std::string_view kDefaultArch = "sm_90a";

// Returns a stage of the compiler as stable text: tokens, ast, ir, grad, deps, mask, plan, cuda,
// llvm.
Result<std::string> explain(std::string_view text, std::string_view stage,
                            const CompileOptions& options = {},
                            std::string_view arch = kDefaultArch);

// Compiles for an architecture that need not be present; each entry is one module. A folder with
// files of these names and bytes is a pack: with CacheOptions::pack set to it, the same program
// compiles there without NVRTC. Packs of several programs can share a folder.
struct Cubin {
    KernelInfo info;
    std::string bytes; // of the module, an ELF file
    std::string pack_name;
    std::string pack_bytes;
};
struct OfflineResult {
    std::vector<Cubin> kernels;
    double compile_ms = 0;
    bool cached = false;
};
// Kinds of calls that need kernels of their own, which a pack should then include.
struct OfflineCalls {
    bool any_layout = false;      // of unusual strides or alignment, or with unusually large tables
    bool short_sequences = false; // at least 1,024 sequences, heads counted, of at most 512 rows
    bool few_queries = false;     // dense, with at most 64 queries of all heads that share keys
};
Result<OfflineResult> compile_offline(std::string_view text, const CompileOptions& options,
                                      std::string_view arch, OfflineCalls calls = {});

// Returns the schedules (ways of dividing its work) of a program's forward kernel on `arch` (empty:
// on options.device), flexc's own choice first; empty if there is only one.
Result<std::vector<std::string>> forward_schedules(std::string_view text,
                                                   const CompileOptions& options = {},
                                                   std::string_view arch = {});
// Compiles with options.schedule and stores that schedule in the disk cache: from then on,
// compile() of the same program, type and head dims for `arch` without a schedule uses it. Kernels
// that this process has in memory are not replaced. An empty schedule removes the stored one.
Result<void> keep_schedule(std::string_view text, const CompileOptions& options,
                           std::string_view arch = {});

// The library of mods that ships inside flexc.
struct LibraryEntry {
    std::string name;
    std::string group;                    // "mask" or "score"
    std::string page;                     // what it is listed under: "Windows"
    std::string summary;                  // one line
    std::string text;                     // whole source
    std::vector<std::string> also_called; // what others call it, such as "natten"
};
std::vector<LibraryEntry> library();
// Finds a mod by its name, or by another name for it; the error suggests the closest name.
Result<LibraryEntry> library_mod(std::string_view name);

struct CacheStatistics {
    std::uint64_t memory_hits = 0, disk_hits = 0, misses = 0, corrupt = 0, evicted = 0;
    std::uint64_t disk_entries = 0, disk_bytes = 0;
    std::string directory; // empty when the disk cache is off
};
CacheStatistics cache_statistics(const CacheOptions& options = {});
Result<void> clear_cache(const CacheOptions& options = {});

// What was searched, found and missing (driver, NVRTC, CPU backend, GPUs), one line each.
struct Finding {
    std::string what;
    bool found = false;
    std::string detail; // version and path, or every path that was tried
    std::string remedy; // how to get it; empty when found
};
std::vector<Finding> doctor();

// Device memory and streams for programs without CUDA code of their own (the command line, tests).
// The memory is zero-filled and aligned to 256 bytes.
class DeviceMemory {
  public:
    static Result<DeviceMemory> allocate(Device device, std::size_t bytes);
    DeviceMemory() = default;
    DeviceMemory(DeviceMemory&& other) noexcept;
    DeviceMemory& operator=(DeviceMemory&& other) noexcept;
    ~DeviceMemory();

    void* data() const { return data_; }
    std::size_t bytes() const { return bytes_; }
    Result<void> upload(const void* host, std::size_t bytes);
    Result<void> download(void* host, std::size_t bytes) const;
    Result<void> fill(std::uint8_t byte);

  private:
    Device device_;
    void* data_ = nullptr;
    std::size_t bytes_ = 0;
};
Result<void> synchronize(Device device);
// Measures calls of `work`, in milliseconds on the device, like triton.testing.do_bench. After an
// estimate from five calls, it runs calls for warm_up_ms, then measures calls for load_ms, but at
// least five; on CUDA without pauses, and with the L2 cache flushed before each measured call. A
// chip that is limited by its power slows down after some milliseconds of load, so only times under
// equal load are comparable.
struct Timer {
    struct Load {
        double warm_up_ms = 15, load_ms = 60;
    };
    static Result<std::vector<double>> measure(Device device, Load load,
                                               Result<void> (*work)(void*), void* user);
};
// The device to which "automatic" resolves here: the first GPU that flexc can use, else the CPU.
Device default_device();
std::string_view version();

} // namespace flexc
