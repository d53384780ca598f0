// The CUDA driver and NVRTC without a device and without a compiler: the driver answers as an H200
// or an A100 would and writes down every fill, launch and wait instead of doing it; NVRTC writes
// down what it was given. Memory has addresses and no contents.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cache/digest.h"
#include "common/exact_sum.h"
#include "common/length_arrays.h"
#include "common/rounding.h"
#include "common/tensor_maps.h"
#include "cuda/driver_api.h"
#include "ranks/moves.h"
#include "ranks/partial_sums.h"
#include "ranks/rank_sums.h"
#include "ranks/sinks.h"
#include "sm80/arguments.h"
#include "sm90/arguments.h"
#include "support/text.h"

namespace {

using flexc::formatted;
using flexc::cuda::DevicePointer;

struct Function {
    std::string name;
    std::string source;                 // its template, and a digest of the generated text
    std::vector<std::size_t> arguments; // bytes of each
    const void* module;                 // null when it has been unloaded
};

// What NVRTC hands out as machine code.
struct Program {
    std::string source;
    std::size_t argument_words = 0; // of mod::Arguments
    std::string text() const { return formatted("{} {}", argument_words, source); }
    // As ptxas reports a kernel that spills, for the template that the environment names.
    std::string log() const {
        const char* spilling = std::getenv("FLEXC_RECORDED_SPILLS");
        if (spilling == nullptr || !source.starts_with(spilling)) return "";
        return "Compiling entry function 'recorded' for 'sm_90a'\n"
               "Function properties for recorded\n"
               "    4000 bytes stack frame, 4000 bytes spill stores, 4000 bytes spill loads\n"
               "Used 255 registers\n";
    }
};

// Of the first one.
std::size_t first_argument_bytes(std::string_view name) {
    if (name == "flexc_backward_references" || name == "flexc_forward" ||
        name.starts_with("flexc_block_mask_"))
        return sizeof(AttentionArguments);
    return name.ends_with("_sm90") ? sizeof(sm90::KernelArguments) : sizeof(sm80::KernelArguments);
}

// The arguments of a kernel by its name, as templates/*.cu declare them.
std::vector<std::size_t> arguments_of(std::string_view name, std::size_t words) {
    if (name.starts_with("flexc_round_sums")) return {sizeof(exact::Rounding)};
    if (name.starts_with("flexc_round_gradients")) return {offsetof(Rounding, type)};
    if (name == "flexc_read_lengths" || name == "flexc_divide_keys")
        return {sizeof(LengthArrays), sizeof(SequenceRecords)};
    if (name == "flexc_move") return {sizeof(ranks::Moves)};
    if (name == "flexc_merge") return {sizeof(ranks::PartialSums), sizeof(ranks::Part)};
    if (name == "flexc_finish") return {sizeof(ranks::FinishedRows)};
    if (name == "flexc_add_sinks") return {sizeof(ranks::SinkRows)};
    if (name == "flexc_sink_gradients") return {sizeof(ranks::SinkGradients)};
    if (name == "flexc_sum_ranks") return {sizeof(ranks::RankSums)};
    std::vector<std::size_t> bytes = {first_argument_bytes(name), words * sizeof(std::uint64_t)};
    if (name.starts_with("flexc_block_mask_")) bytes.push_back(sizeof(BlockMaskArguments));
    if (name == "flexc_forward_sm90") {
        bytes.push_back(sizeof(ForwardTensorMaps));
        bytes.push_back(sizeof(int*));
    }
    if (name == "flexc_backward_sm90" || name == "flexc_backward_wide_sm90")
        bytes.push_back(sizeof(BackwardTensorMaps));
    return bytes;
}

struct Recorder {
    std::mutex mutex;
    std::string text;
    DevicePointer next_address = 0x10'0000'0000;
    std::vector<std::unique_ptr<Function>> functions;
};
Recorder& recorder() {
    static Recorder instance;
    return instance;
}

constexpr int kInvalidValue = 1, kInvalidHandle = 400;
bool is_unloaded(const void* function) {
    const std::lock_guard lock(recorder().mutex);
    return static_cast<const Function*>(function)->module == nullptr;
}

void record(const std::string& line) {
    const std::lock_guard lock(recorder().mutex);
    recorder().text += line + "\n";
}

int arch() {
    const char* text = std::getenv("FLEXC_RECORDED_ARCH");
    return text == nullptr ? 90 : std::atoi(text);
}

std::string address(const void* pointer) {
    return formatted("{:x}", reinterpret_cast<std::uintptr_t>(pointer));
}

// Members that are not zero.
struct Fields {
    std::string text;

    void tensor(const char* name, const TensorArgument& t) {
        if (t.data != nullptr)
            text += formatted(" {}={}[{},{},{},{}]", name, address(t.data), t.stride_b, t.stride_h,
                              t.stride_s, t.stride_d);
    }
    void pointer(const char* name, const void* p) {
        if (p != nullptr) text += formatted(" {}={}", name, address(p));
    }
    void number(const char* name, auto value) {
        if (value != 0) text += formatted(" {}={}", name, value);
    }
    void all(const AttentionArguments& a);
    void of_family(const sm80::KernelArguments& w);
    void of_family(const sm90::KernelArguments& w);
};

void Fields::all(const AttentionArguments& a) {
    tensor("q", a.q), tensor("k", a.k), tensor("v", a.v), tensor("o", a.o);
    tensor("lse", a.lse), tensor("d_lse", a.d_lse), tensor("d_out", a.d_out);
    tensor("dq", a.dq), tensor("dk", a.dk), tensor("dv", a.dv);
    pointer("row_statistics", a.row_statistics), number("statistic_rows", a.statistic_rows);
    number("q_offset", a.q_offset);
    number("kv_offset", a.kv_offset), number("batch", a.batch), number("heads", a.heads);
    number("kv_heads", a.kv_heads), number("q_len", a.q_len), number("kv_len", a.kv_len);
    number("scale", a.scale), number("o_flags", a.o_flags), number("dq_flags", a.dq_flags);
    number("dk_flags", a.dk_flags), number("dv_flags", a.dv_flags);
    pointer("map", a.block_mask.rows), number("map_rows", a.block_mask.row_count);
}

void Fields::of_family(const sm80::KernelArguments& w) {
    pointer("delta", w.delta), pointer("dq_accumulator", w.dq_accumulator);
    number("entry_parts", w.entry_parts);
}

void Fields::of_family(const sm90::KernelArguments& w) {
    pointer("dq_accumulator", w.dq_accumulator);
    pointer("distance_sums", w.distance_sums), pointer("distance_values", w.distance_values);
    pointer("key_values", w.key_values), pointer("stored_tiles", w.stored_tiles);
    pointer("blocks_done", w.blocks_done), number("blocks_of_head", w.blocks_of_head);
    pointer("row_block_states", w.row_block_states), pointer("tiles_taken", w.tiles_taken);
}

std::string text_of_first(const void* argument, std::size_t bytes) {
    Fields fields;
    fields.all(*static_cast<const AttentionArguments*>(argument));
    if (bytes == sizeof(sm80::KernelArguments))
        fields.of_family(*static_cast<const sm80::KernelArguments*>(argument));
    if (bytes == sizeof(sm90::KernelArguments))
        fields.of_family(*static_cast<const sm90::KernelArguments*>(argument));
    return fields.text;
}

std::string words_of(const void* data, std::size_t bytes) {
    std::string text;
    for (std::size_t at = 0; at + 8 <= bytes; at += 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, static_cast<const char*>(data) + at, sizeof(word));
        text += formatted(" {:x}", word);
    }
    return text;
}

std::string in_stream(const void* stream) {
    return stream == nullptr ? "" : " in stream " + address(stream);
}

int record_wait() { return record("wait"), 0; }

// A copy from the host's memory, and what was there when it was asked for.
struct HostCopy {
    const void* from;
    std::string bytes;
    bool is_whole() const { return std::memcmp(from, bytes.data(), bytes.size()) == 0; }
};
std::vector<HostCopy>& host_copies() {
    static std::vector<HostCopy> copies;
    return copies;
}
// Events that have not happened: the device does nothing before somebody waits for them.
bool is_busy() { return std::getenv("FLEXC_RECORDED_BUSY") != nullptr; }

// What a driver refuses: a launch of nothing.
bool is_empty(const unsigned* grid, unsigned threads) {
    return grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || threads == 0;
}

void record_launch(const Function& function, const unsigned* grid, unsigned threads,
                   unsigned shared, bool early, void* stream, void** arguments) {
    std::string text = formatted("{} of {} grid {} {} {} threads {} shared {}{}{}\n", function.name,
                                 function.source, grid[0], grid[1], grid[2], threads, shared,
                                 early ? " starts early" : "", in_stream(stream));
    for (std::size_t i = 0; i < function.arguments.size(); ++i) {
        const std::size_t bytes = function.arguments[i];
        text += formatted("  {} bytes:", bytes);
        text += bytes >= sizeof(AttentionArguments) && i == 0 ? text_of_first(arguments[i], bytes)
                                                              : words_of(arguments[i], bytes);
        text += "\n";
    }
    text.pop_back();
    record(text);
}

} // namespace

extern "C" {

#define EXPORT __attribute__((visibility("default")))

// Hands over what was recorded since the last call.
EXPORT void flexc_take_recorded(void (*sink)(void* user, const char* text), void* user) {
    const std::lock_guard lock(recorder().mutex);
    sink(user, recorder().text.c_str());
    recorder().text.clear();
}

// Whether the sources of all copies that nobody has waited for are still what they were.
EXPORT bool flexc_copies_are_whole() {
    const std::lock_guard lock(recorder().mutex);
    bool are_whole = true;
    for (const HostCopy& copy : host_copies())
        are_whole &= copy.is_whole();
    return are_whole;
}

EXPORT int nvrtcVersion(int* major, int* minor) { return *major = 13, *minor = 0, 0; }
EXPORT const char* nvrtcGetErrorString(int) { return "recorded"; }
EXPORT int nvrtcCreateProgram(Program** program, const char*, const char* name, int count,
                              const char* const* texts, const char* const* names) {
    *program = new Program{.source = name};
    for (int i = 0; i < count; ++i) {
        if (std::strcmp(names[i], "mod.cuh") != 0) continue;
        const std::string_view text = texts[i];
        const std::size_t start = text.find("struct Arguments {");
        const std::size_t end = text.find("};", start);
        for (std::size_t at = text.find("alignas(8)", start); at < end;
             at = text.find("alignas(8)", at + 1))
            ++(*program)->argument_words;
        (*program)->source += " " + flexc::cache::digest_of(text).hex().substr(0, 12);
    }
    return 0;
}
EXPORT int nvrtcDestroyProgram(Program** program) { return delete *program, 0; }
// Not of the template that the environment names.
EXPORT int nvrtcCompileProgram(Program* program, int, const char* const*) {
    constexpr int kCompilationError = 6;
    const char* refused = std::getenv("FLEXC_RECORDED_REFUSES");
    if (refused == nullptr || !program->source.starts_with(refused)) return 0;
    record(formatted("refused {}", refused));
    return kCompilationError;
}
EXPORT int nvrtcGetProgramLogSize(Program* program, std::size_t* size) {
    return *size = program->log().size() + 1, 0;
}
EXPORT int nvrtcGetProgramLog(Program* program, char* log) {
    const std::string text = program->log();
    return std::memcpy(log, text.c_str(), text.size() + 1), 0;
}
EXPORT int nvrtcGetCUBINSize(Program* program, std::size_t* size) {
    return *size = program->text().size() + 1, 0;
}
EXPORT int nvrtcGetCUBIN(Program* program, char* cubin) {
    const std::string text = program->text();
    return std::memcpy(cubin, text.c_str(), text.size() + 1), 0;
}

EXPORT int cuInit(unsigned) { return 0; }
EXPORT int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
EXPORT int cuGetErrorName(int, const char** name) { return *name = "CUDA_ERROR", 0; }
EXPORT int cuGetErrorString(int, const char** text) { return *text = "recorded", 0; }
EXPORT int cuDeviceGetCount(int* count) { return *count = 1, 0; }
EXPORT int cuDeviceGet(int* handle, int) { return *handle = 0, 0; }
EXPORT int cuDeviceGetName(char* name, int size, int) {
    return std::snprintf(name, static_cast<std::size_t>(size), "recorded"), 0;
}
EXPORT int cuDeviceTotalMem_v2(std::size_t* bytes, int) { return *bytes = 1ull << 37, 0; }
EXPORT int cuDeviceGetAttribute(int* value, int attribute, int) {
    using namespace flexc::cuda;
    switch (attribute) {
    case kMultiprocessors: *value = arch() == 90 ? 132 : 108; break;
    case kMajor: *value = arch() / 10; break;
    case kMinor: *value = arch() % 10; break;
    default: *value = 1 << 20;
    }
    return 0;
}
EXPORT int cuDevicePrimaryCtxRetain(void** context, int) {
    return *context = reinterpret_cast<void*>(1), 0;
}
EXPORT int cuCtxPushCurrent_v2(void*) { return 0; }
EXPORT int cuCtxPopCurrent_v2(void**) { return 0; }
EXPORT int cuCtxGetCurrent(void** context) { return *context = reinterpret_cast<void*>(1), 0; }
EXPORT int cuCtxGetDevice(int* device) { return *device = 0, 0; }
EXPORT int cuCtxSynchronize() { return record_wait(); }
EXPORT int cuModuleLoadData(void** module, const void* cubin) {
    auto program = std::make_unique<Program>();
    char* rest = nullptr;
    program->argument_words = std::strtoull(static_cast<const char*>(cubin), &rest, 10);
    program->source = rest + 1;
    return *module = program.release(), 0;
}
// Its functions end with it, as the driver's do.
EXPORT int cuModuleUnload(void* module) {
    const std::lock_guard lock(recorder().mutex);
    for (const auto& function : recorder().functions)
        if (function->module == module) function->module = nullptr;
    return delete static_cast<Program*>(module), 0;
}
EXPORT int cuModuleGetFunction(void** function, void* module, const char* name) {
    const std::lock_guard lock(recorder().mutex);
    auto& all = recorder().functions;
    const auto& program = *static_cast<const Program*>(module);
    all.push_back(std::make_unique<Function>(
        Function{name, program.source, arguments_of(name, program.argument_words), module}));
    return *function = all.back().get(), 0;
}
EXPORT int cuFuncGetAttribute(int* value, int, void*) { return *value = 128, 0; }
EXPORT int cuFuncSetAttribute(void*, int, int) { return 0; }
EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int, std::size_t) {
    return *blocks = 1, 0;
}
EXPORT int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads_x,
                          unsigned threads_y, unsigned threads_z, unsigned shared, void* stream,
                          void** arguments, void**) {
    const unsigned grid[] = {x, y, z};
    const unsigned threads = threads_x * threads_y * threads_z;
    if (is_unloaded(function)) return kInvalidHandle;
    if (is_empty(grid, threads)) return kInvalidValue;
    record_launch(*static_cast<Function*>(function), grid, threads, shared, false, stream,
                  arguments);
    return 0;
}
EXPORT int cuLaunchKernelEx(const flexc::cuda::LaunchConfig* config, void* function,
                            void** arguments, void**) {
    if (is_unloaded(function)) return kInvalidHandle;
    const unsigned threads = config->threads[0] * config->threads[1] * config->threads[2];
    if (is_empty(config->grid, threads)) return kInvalidValue;
    record_launch(*static_cast<Function*>(function), config->grid, threads, config->shared_bytes,
                  true, config->stream, arguments);
    return 0;
}
EXPORT int cuMemAlloc_v2(DevicePointer* memory, std::size_t bytes) {
    const std::lock_guard lock(recorder().mutex);
    *memory = recorder().next_address;
    recorder().next_address += (bytes + 0xFFFF) / 0x10000 * 0x10000;
    return 0;
}
EXPORT int cuMemFree_v2(DevicePointer) { return 0; }
EXPORT int cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) {
    return *memory = std::malloc(bytes), *memory == nullptr ? kInvalidValue : 0;
}
EXPORT int cuMemFreeHost(void* memory) { return std::free(memory), 0; }
EXPORT int cuThreadExchangeStreamCaptureMode(int*) { return 0; }
EXPORT int cuMemsetD8Async(DevicePointer memory, unsigned char byte, std::size_t bytes,
                           void* stream) {
    record(formatted("fill {:x} with {} for {} bytes{}", memory, byte, bytes, in_stream(stream)));
    return 0;
}
EXPORT int cuMemcpyHtoD_v2(DevicePointer, const void*, std::size_t) { return 0; }
EXPORT int cuMemcpyDtoH_v2(void* to, DevicePointer, std::size_t bytes) {
    return std::memset(to, 0, bytes), 0;
}
EXPORT int cuMemcpyHtoDAsync_v2(DevicePointer, const void* from, std::size_t bytes, void*) {
    constexpr std::size_t kMostInCall = 1 << 16; // of pageable memory, taken along with the call
    if (!is_busy() || bytes <= kMostInCall) return 0;
    const std::lock_guard lock(recorder().mutex);
    host_copies().push_back({from, std::string(static_cast<const char*>(from), bytes)});
    return 0;
}
EXPORT int cuMemcpyDtoHAsync_v2(void* to, DevicePointer, std::size_t bytes, void*) {
    return std::memset(to, 0, bytes), 0;
}
EXPORT int cuMemcpyAsync(DevicePointer, DevicePointer, std::size_t, void*) { return 0; }
EXPORT int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    return *least = 0, *greatest = -5, 0;
}
EXPORT int cuStreamCreateWithPriority(void** stream, unsigned, int) {
    return *stream = reinterpret_cast<void*>(16), 0;
}
EXPORT int cuStreamDestroy_v2(void*) { return 0; }
EXPORT int cuStreamSynchronize(void*) { return record_wait(); }
EXPORT int cuStreamWaitEvent(void*, void*, unsigned) { return 0; }
EXPORT int cuStreamGetCtx(void*, void** context) {
    return *context = reinterpret_cast<void*>(1), 0;
}
EXPORT int cuStreamGetId(void* stream, unsigned long long* id) {
    return *id = reinterpret_cast<std::uintptr_t>(stream), 0;
}
EXPORT int cuStreamIsCapturing(void*, int* capturing) {
    return *capturing = std::getenv("FLEXC_RECORDED_CAPTURES") != nullptr, 0;
}
EXPORT int cuEventCreate(void** event, unsigned) { return *event = reinterpret_cast<void*>(16), 0; }
EXPORT int cuEventDestroy_v2(void*) { return 0; }
EXPORT int cuEventRecord(void*, void*) { return 0; }
EXPORT int cuEventQuery(void*) { return is_busy() ? flexc::cuda::kDriverNotReady : 0; }
EXPORT int cuEventSynchronize(void*) {
    record_wait();
    const std::lock_guard lock(recorder().mutex);
    return host_copies().clear(), 0;
}
EXPORT int cuEventElapsedTime(float* milliseconds, void*, void*) { return *milliseconds = 1, 0; }
// The map holds what it was made of.
EXPORT int cuTensorMapEncodeTiled(void* map, int type, std::uint32_t rank, void* data,
                                  const std::uint64_t* dims, const std::uint64_t* strides,
                                  const std::uint32_t* box, const std::uint32_t*, int, int swizzle,
                                  int, int) {
    std::uint64_t words[16] = {static_cast<std::uint64_t>(type), rank,
                               reinterpret_cast<std::uintptr_t>(data),
                               static_cast<std::uint64_t>(swizzle)};
    for (std::uint32_t i = 0; i < rank; ++i) {
        words[4 + i] = dims[i];
        words[8 + i] = i + 1 < rank ? strides[i] : 0;
        words[12 + i] = box[i];
    }
    std::memcpy(map, words, sizeof(words));
    return 0;
}

} // extern "C"
