// The C ABI of everything around kernels: explanations, packs, masks, the library, the cache,
// memory.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "api/c_call.h"
#include "api/c_convert.h"
#include "flexc/flexc.h"
#include "flexc/flexc_c.h"

struct flexc_offline {
    flexc::OfflineResult result;
};

struct flexc_schedules {
    std::vector<std::string> texts;
};

struct flexc_mask_map {
    flexc::MaskMap map;
};

struct flexc_library {
    std::vector<flexc::LibraryEntry> entries;
    std::vector<std::vector<const char*>> also_called; // of each entry
};

struct flexc_doctor {
    std::vector<flexc::Finding> findings;
};

struct flexc_memory {
    flexc::DeviceMemory memory;
};

namespace {

using flexc::Result;
using flexc::api::call;
using flexc::api::CompileCall;
using flexc::api::fill_struct;
using flexc::api::invalid;
using flexc::api::text_or;

// Returns `value` as a handle, the first argument of its functions.
template <typename Handle, typename Value> void hand_out(Handle** out, Value value) {
    *out = new Handle{std::move(value)};
}

Result<flexc::Device> named_device(std::int32_t kind, std::int32_t index) {
    auto device = flexc::api::read_device(kind, index);
    if (device && device->kind == flexc::Device::Kind::automatic) return flexc::default_device();
    return device;
}

Result<void> fill_entry(const flexc_library& library, std::size_t index, flexc_library_entry* out) {
    const flexc::LibraryEntry& from = library.entries[index];
    flexc_library_entry value{};
    value.name = from.name.c_str();
    value.group = from.group.c_str();
    value.page = from.page.c_str();
    value.summary = from.summary.c_str();
    value.text = from.text.c_str();
    value.also_called = library.also_called[index].data();
    value.also_called_count = from.also_called.size();
    return fill_struct(out, value, "entry");
}

// A C function as Timer calls it.
struct Work {
    flexc_status (*function)(void* user);
    void* user;

    static Result<void> run(void* self) {
        const auto& work = *static_cast<const Work*>(self);
        const flexc_status status = work.function(work.user);
        if (status == FLEXC_OK) return {};
        const char* name = flexc_status_name(status);
        return flexc::Error{name != nullptr ? static_cast<flexc::ErrorCode>(status - 1)
                                            : flexc::ErrorCode::invalid_option,
                            "the work ended with status " + std::to_string(status) +
                                (name != nullptr ? std::string(", ") + name : "")};
    }
};

} // namespace

const char* flexc_text_data(const flexc_text* text) {
    return text == nullptr ? "" : text->text.c_str();
}
size_t flexc_text_size(const flexc_text* text) { return text == nullptr ? 0 : text->text.size(); }
void flexc_text_free(flexc_text* text) { delete text; }

flexc_status flexc_explain(const char* text, const char* stage,
                           const flexc_compile_options* options, const char* arch,
                           flexc_text** explanation, flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (explanation == nullptr) return invalid("explanation is NULL");
        *explanation = nullptr;
        if (stage == nullptr) return invalid("stage is NULL");
        CompileCall compile;
        if (auto read = compile.read(text, options); !read) return read;
        auto explained = flexc::explain(text, stage, compile.options(),
                                        text_or(arch, std::string(flexc::kDefaultArch)));
        if (!explained) return explained.error();
        hand_out(explanation, std::move(*explained));
        return {};
    });
}

flexc_status flexc_compile_offline(const char* text, const flexc_compile_options* options,
                                   const char* arch, uint32_t calls, flexc_offline** offline,
                                   flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (offline == nullptr) return invalid("offline is NULL");
        *offline = nullptr;
        if (arch == nullptr) return invalid("arch is NULL");
        CompileCall compile;
        if (auto read = compile.read(text, options); !read) return read;
        constexpr uint32_t kKnown =
            FLEXC_OFFLINE_ANY_LAYOUT | FLEXC_OFFLINE_SHORT_SEQUENCES | FLEXC_OFFLINE_FEW_QUERIES;
        if ((calls & ~kKnown) != 0)
            return invalid("calls is no sum of FLEXC_OFFLINE_ANY_LAYOUT, "
                           "FLEXC_OFFLINE_SHORT_SEQUENCES and FLEXC_OFFLINE_FEW_QUERIES");
        auto compiled =
            flexc::compile_offline(text, compile.options(), arch,
                                   {.any_layout = (calls & FLEXC_OFFLINE_ANY_LAYOUT) != 0,
                                    .short_sequences = (calls & FLEXC_OFFLINE_SHORT_SEQUENCES) != 0,
                                    .few_queries = (calls & FLEXC_OFFLINE_FEW_QUERIES) != 0});
        if (!compiled) return compiled.error();
        hand_out(offline, std::move(*compiled));
        return {};
    });
}

void flexc_offline_free(flexc_offline* offline) { delete offline; }

flexc_status flexc_offline_get(const flexc_offline* offline, flexc_offline_info* info,
                               flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (offline == nullptr) return invalid("offline is NULL");
        flexc_offline_info value{};
        value.from_cache = offline->result.cached ? 1 : 0;
        value.compile_ms = offline->result.compile_ms;
        value.cubin_count = offline->result.kernels.size();
        return fill_struct(info, value, "info");
    });
}

flexc_status flexc_offline_cubin(const flexc_offline* offline, size_t index, flexc_cubin_info* info,
                                 flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (offline == nullptr) return invalid("offline is NULL");
        if (index >= offline->result.kernels.size()) return invalid("no such cubin");
        const flexc::Cubin& from = offline->result.kernels[index];
        flexc_cubin_info value{};
        value.registers = from.info.registers;
        value.spill_bytes = from.info.spill_bytes;
        value.shared_bytes = from.info.shared_bytes;
        value.compile_ms = from.info.compile_ms;
        value.name = from.info.name.c_str();
        value.reason = from.info.reason.c_str();
        value.schedule = from.info.schedule.c_str();
        value.data = from.bytes.data();
        value.size = from.bytes.size();
        value.pack_name = from.pack_name.c_str();
        value.pack_data = from.pack_bytes.data();
        value.pack_size = from.pack_bytes.size();
        return fill_struct(info, value, "info");
    });
}

flexc_status flexc_schedules_create(const char* text, const flexc_compile_options* options,
                                    const char* arch, flexc_schedules** schedules,
                                    flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (schedules == nullptr) return invalid("schedules is NULL");
        *schedules = nullptr;
        CompileCall compile;
        if (auto read = compile.read(text, options); !read) return read;
        auto found = flexc::forward_schedules(text, compile.options(), text_or(arch, ""));
        if (!found) return found.error();
        hand_out(schedules, std::move(*found));
        return {};
    });
}

void flexc_schedules_free(flexc_schedules* schedules) { delete schedules; }
size_t flexc_schedules_count(const flexc_schedules* schedules) {
    return schedules == nullptr ? 0 : schedules->texts.size();
}
const char* flexc_schedules_get(const flexc_schedules* schedules, size_t index) {
    return schedules == nullptr ? nullptr : flexc::api::text_at(schedules->texts, index);
}

flexc_status flexc_keep_schedule(const char* text, const flexc_compile_options* options,
                                 const char* arch, flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        CompileCall compile;
        if (auto read = compile.read(text, options); !read) return read;
        return flexc::keep_schedule(text, compile.options(), text_or(arch, ""));
    });
}

flexc_status flexc_mask_map_create(const char* text, const flexc_compile_options* options,
                                   const flexc_sizes* sizes, const flexc_named_tensor* buffers,
                                   size_t buffer_count, const flexc_mask_tile* tile,
                                   const flexc_plan_options* plan, flexc_mask_map** map,
                                   flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (map == nullptr) return invalid("map is NULL");
        *map = nullptr;
        CompileCall compile;
        if (auto read = compile.read(text, options); !read) return read;
        const auto read_sizes = flexc::api::read_sizes(sizes);
        if (!read_sizes) return read_sizes.error();
        const auto read_buffers = flexc::api::read_tensors(buffers, buffer_count);
        if (!read_buffers) return read_buffers.error();
        const auto read_tile = flexc::api::read_mask_tile(tile);
        if (!read_tile) return read_tile.error();
        const auto read_plan = flexc::api::read_plan_options(plan);
        if (!read_plan) return read_plan.error();
        auto made = flexc::mask_map(text, compile.options(), *read_sizes, *read_buffers, *read_tile,
                                    read_plan->options);
        if (!made) return made.error();
        hand_out(map, std::move(*made));
        return {};
    });
}

void flexc_mask_map_free(flexc_mask_map* map) { delete map; }

flexc_status flexc_mask_map_get(const flexc_mask_map* map, flexc_mask_info* info,
                                flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (map == nullptr) return invalid("map is NULL");
        flexc_mask_info value{};
        value.batches = map->map.batches;
        value.heads = map->map.heads;
        value.query_tiles = map->map.query_tiles;
        value.key_tiles = map->map.key_tiles;
        value.tiles = map->map.tiles.c_str();
        return fill_struct(info, value, "info");
    });
}

flexc_status flexc_library_create(flexc_library** library, flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (library == nullptr) return invalid("library is NULL");
        *library = nullptr;
        auto made = std::make_unique<flexc_library>();
        made->entries = flexc::library();
        if (made->entries.empty()) return flexc::out_of_memory(); // or there would be some
        for (const flexc::LibraryEntry& entry : made->entries)
            made->also_called.push_back(flexc::api::pointers_to(entry.also_called));
        *library = made.release();
        return {};
    });
}

void flexc_library_free(flexc_library* library) { delete library; }
size_t flexc_library_count(const flexc_library* library) {
    return library == nullptr ? 0 : library->entries.size();
}

flexc_status flexc_library_get(const flexc_library* library, size_t index,
                               flexc_library_entry* entry, flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (library == nullptr) return invalid("library is NULL");
        if (index >= library->entries.size()) return invalid("no such mod");
        return fill_entry(*library, index, entry);
    });
}

flexc_status flexc_library_find(const flexc_library* library, const char* name,
                                flexc_library_entry* entry, flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (library == nullptr) return invalid("library is NULL");
        if (name == nullptr) return invalid("name is NULL");
        const auto found = flexc::library_mod(name);
        if (!found) return found.error();
        const auto at =
            std::ranges::find(library->entries, found->name, &flexc::LibraryEntry::name);
        return fill_entry(*library, static_cast<std::size_t>(at - library->entries.begin()), entry);
    });
}

flexc_status flexc_cache_get(const flexc_compile_options* options, flexc_cache_info* info,
                             flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        const auto read = flexc::api::read_options(options);
        if (!read) return read.error();
        const flexc::CacheStatistics from = flexc::cache_statistics(read->cache);
        flexc_cache_info value{};
        value.has_directory = from.directory.empty() ? 0 : 1;
        value.memory_hits = from.memory_hits;
        value.disk_hits = from.disk_hits;
        value.misses = from.misses;
        value.corrupt = from.corrupt;
        value.evicted = from.evicted;
        value.disk_entries = from.disk_entries;
        value.disk_bytes = from.disk_bytes;
        return fill_struct(info, value, "info");
    });
}

flexc_status flexc_cache_directory(const flexc_compile_options* options, flexc_text** directory,
                                   flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (directory == nullptr) return invalid("directory is NULL");
        *directory = nullptr;
        const auto read = flexc::api::read_options(options);
        if (!read) return read.error();
        hand_out(directory, flexc::cache_statistics(read->cache).directory);
        return {};
    });
}

flexc_status flexc_cache_clear(const flexc_compile_options* options, flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        const auto read = flexc::api::read_options(options);
        if (!read) return read.error();
        return flexc::clear_cache(read->cache);
    });
}

flexc_status flexc_doctor_create(flexc_doctor** doctor, flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (doctor == nullptr) return invalid("doctor is NULL");
        *doctor = nullptr;
        auto findings = flexc::doctor();
        if (findings.empty()) return flexc::out_of_memory(); // or there would be some
        hand_out(doctor, std::move(findings));
        return {};
    });
}

void flexc_doctor_free(flexc_doctor* doctor) { delete doctor; }
size_t flexc_doctor_count(const flexc_doctor* doctor) {
    return doctor == nullptr ? 0 : doctor->findings.size();
}

flexc_status flexc_doctor_get(const flexc_doctor* doctor, size_t index, flexc_finding* finding,
                              flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (doctor == nullptr) return invalid("doctor is NULL");
        if (index >= doctor->findings.size()) return invalid("no such finding");
        const flexc::Finding& from = doctor->findings[index];
        flexc_finding value{};
        value.found = from.found ? 1 : 0;
        value.what = from.what.c_str();
        value.detail = from.detail.c_str();
        value.remedy = from.remedy.c_str();
        return fill_struct(finding, value, "finding");
    });
}

flexc_status flexc_memory_create(int32_t device, int32_t device_index, size_t bytes,
                                 flexc_memory** memory, flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (memory == nullptr) return invalid("memory is NULL");
        *memory = nullptr;
        const auto on = named_device(device, device_index);
        if (!on) return on.error();
        auto made = flexc::DeviceMemory::allocate(*on, bytes);
        if (!made) return made.error();
        hand_out(memory, std::move(*made));
        return {};
    });
}

void flexc_memory_free(flexc_memory* memory) { delete memory; }
void* flexc_memory_data(const flexc_memory* memory) {
    return memory == nullptr ? nullptr : memory->memory.data();
}
size_t flexc_memory_bytes(const flexc_memory* memory) {
    return memory == nullptr ? 0 : memory->memory.bytes();
}

flexc_status flexc_memory_upload(flexc_memory* memory, const void* host, size_t bytes,
                                 flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (memory == nullptr) return invalid("memory is NULL");
        if (host == nullptr && bytes != 0) return invalid("host is NULL");
        return memory->memory.upload(host, bytes);
    });
}

flexc_status flexc_memory_download(const flexc_memory* memory, void* host, size_t bytes,
                                   flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (memory == nullptr) return invalid("memory is NULL");
        if (host == nullptr && bytes != 0) return invalid("host is NULL");
        return memory->memory.download(host, bytes);
    });
}

flexc_status flexc_memory_fill(flexc_memory* memory, uint8_t byte, flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (memory == nullptr) return invalid("memory is NULL");
        return memory->memory.fill(byte);
    });
}

flexc_status flexc_synchronize(int32_t device, int32_t device_index, flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        const auto on = named_device(device, device_index);
        if (!on) return on.error();
        return flexc::synchronize(*on);
    });
}

flexc_status flexc_measure(int32_t device, int32_t device_index, double warm_up_ms, double load_ms,
                           flexc_status (*work)(void* user), void* user, double* times, size_t room,
                           size_t* count, flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (count == nullptr) return invalid("count is NULL");
        *count = 0;
        if (work == nullptr) return invalid("work is NULL");
        if (times == nullptr && room != 0) return invalid("times is NULL");
        const auto on = named_device(device, device_index);
        if (!on) return on.error();
        flexc::Timer::Load load;
        if (warm_up_ms != 0) load.warm_up_ms = warm_up_ms;
        if (load_ms != 0) load.load_ms = load_ms;
        Work asked{work, user};
        const auto measured = flexc::Timer::measure(*on, load, &Work::run, &asked);
        if (!measured) return measured.error();
        *count = measured->size();
        std::copy_n(measured->begin(), std::min(room, measured->size()), times);
        return {};
    });
}
