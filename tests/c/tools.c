/* What surrounds kernels: explanations, packs, masks, the library, the cache, memory, time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

static flexc_error* error = NULL;

static void test_explain(void) {
    static const char* const stages[] = {"tokens", "ast",  "ir",   "grad", "deps",
                                         "mask",   "plan", "cuda", "llvm"};
    for (size_t i = 0; i < sizeof stages / sizeof *stages; ++i) {
        flexc_text* text = NULL;
        CHECK_OK(flexc_explain("tanh(score)", stages[i], NULL, i % 2 == 0 ? NULL : "sm_80", &text,
                               &error));
        CHECK(flexc_text_size(text) > 0);
        CHECK(strlen(flexc_text_data(text)) == flexc_text_size(text));
        flexc_text_free(text);
    }
    flexc_text* text = NULL;
    CHECK_REFUSED(flexc_explain("score", "trees", NULL, NULL, &text, &error),
                  FLEXC_ERROR_INVALID_OPTION, "there is no stage 'trees'");
    CHECK(text == NULL);
    CHECK_NULL(flexc_explain("score", NULL, NULL, NULL, &text, &error), "stage");
    CHECK_NULL(flexc_explain("score", "ir", NULL, NULL, NULL, &error), "explanation");
    CHECK(flexc_text_data(NULL)[0] == '\0' && flexc_text_size(NULL) == 0);
    flexc_text_free(NULL);
}

static void test_schedules(void) {
    flexc_schedules* schedules = NULL;
    flexc_compile_options options = {.struct_size = sizeof options, .head_dim = 128};
    CHECK_OK(flexc_schedules_create("score", &options, "sm_90a", &schedules, &error));
    const size_t count = flexc_schedules_count(schedules);
    CHECK(count > 1);
    for (size_t i = 0; i < count; ++i)
        CHECK(flexc_schedules_get(schedules, i)[0] != '\0');
    CHECK(flexc_schedules_get(schedules, count) == NULL && flexc_schedules_get(NULL, 0) == NULL);
    options.schedule = flexc_schedules_get(schedules, 1);
    options.no_disk_cache = 1; /* where there is nowhere to keep it, nothing is compiled */
    CHECK_REFUSED(flexc_keep_schedule("score", &options, "sm_90a", &error),
                  FLEXC_ERROR_INVALID_OPTION, "the cache on disk is off");
    flexc_schedules_free(schedules);
    flexc_schedules_free(NULL);
    CHECK(flexc_schedules_count(NULL) == 0);
    CHECK_NULL(flexc_schedules_create("score", NULL, "sm_90a", NULL, &error), "schedules");
    options.device = FLEXC_DEVICE_CPU;
    CHECK_REFUSED(flexc_schedules_create("score", &options, NULL, &schedules, &error),
                  FLEXC_ERROR_INVALID_OPTION, "");
}

/* A pack, written as a program would; it is enough to find the kernels again. */
static void test_offline(const char* folder) {
    flexc_compile_options options = {
        .struct_size = sizeof options, .head_dim = 24, .forward_only = 1, .no_disk_cache = 1};
    flexc_offline* offline = NULL;
    const flexc_status can = flexc_supports("score", &options, "sm_80", NULL);
    CHECK(can == FLEXC_OK || can == FLEXC_ERROR_LIBRARY_MISSING);
    CHECK_REFUSED(flexc_compile_offline("score", &options, "sm_80", 1, &offline, &error), can, "");
    CHECK((offline != NULL) == (can == FLEXC_OK));
    flexc_offline_info info = {.struct_size = sizeof info};
    flexc_cubin_info cubin = {.struct_size = sizeof cubin};
    if (offline != NULL) {
        CHECK_OK(flexc_offline_get(offline, &info, &error));
        CHECK(info.cubin_count >= 1 && info.from_cache == 0 && info.compile_ms > 0);
        for (size_t i = 0; i < info.cubin_count; ++i) {
            CHECK_OK(flexc_offline_cubin(offline, i, &cubin, &error));
            CHECK(cubin.size > 4 && memcmp(cubin.data, "\177ELF", 4) == 0 && cubin.registers > 0);
            CHECK(cubin.name[0] != '\0' && cubin.reason[0] != '\0' && cubin.schedule[0] == '\0');
            CHECK(cubin.pack_size > cubin.size && strchr(cubin.pack_name, '/') == NULL);
            char path[4096];
            snprintf(path, sizeof path, "%s/%s", folder, cubin.pack_name);
            FILE* file = fopen(path, "wb");
            CHECK(file != NULL);
            if (file == NULL) continue;
            CHECK(fwrite(cubin.pack_data, 1, cubin.pack_size, file) == cubin.pack_size);
            CHECK(fclose(file) == 0);
        }
        CHECK_REFUSED(flexc_offline_cubin(offline, info.cubin_count, &cubin, &error),
                      FLEXC_ERROR_INVALID_OPTION, "no such cubin");
        flexc_offline_free(offline);
        options.pack = folder;
        CHECK_OK(flexc_compile_offline("score", &options, "sm_80", 0, &offline, &error));
        CHECK_OK(flexc_offline_get(offline, &info, &error));
        CHECK(info.from_cache == 1);
        flexc_offline_free(offline);
    }
    flexc_offline_free(NULL);
    CHECK_NULL(flexc_offline_get(NULL, &info, &error), "offline");
    CHECK_NULL(flexc_offline_cubin(NULL, 0, &cubin, &error), "offline");
    CHECK_NULL(flexc_compile_offline("score", NULL, NULL, 0, &offline, &error), "arch");
    CHECK_NULL(flexc_compile_offline("score", NULL, "sm_80", 0, NULL, &error), "offline");
    CHECK_REFUSED(flexc_compile_offline("score", NULL, "sm_80", 8, &offline, &error),
                  FLEXC_ERROR_INVALID_OPTION, "FLEXC_OFFLINE_FEW_QUERIES");
    CHECK_REFUSED(flexc_compile_offline("score", NULL, "sm_8", 0, &offline, &error),
                  FLEXC_ERROR_INVALID_OPTION, "sm_8");
}

void test_masks(void) {
    enum { LENGTH = 13 };
    int32_t documents[LENGTH];
    for (int i = 0; i < LENGTH; ++i)
        documents[i] = random_float() < 0 ? 0 : 1;
    const flexc_tensor tensor = {.struct_size = sizeof tensor,
                                 .dtype = FLEXC_I32,
                                 .const_data = documents,
                                 .rank = 1,
                                 .shape = {LENGTH}};
    const flexc_named_tensor buffer = {
        .struct_size = sizeof buffer, .name = "doc", .tensor = &tensor};
    const flexc_sizes sizes = {.struct_size = sizeof sizes,
                               .batch = 2,
                               .heads = 3,
                               .kv_heads = 1,
                               .q_len = LENGTH,
                               .kv_len = LENGTH};
    const char* text = "buffer doc: i32[Q_LEN]\n"
                       "mask_mod = doc[q_idx] == doc[kv_idx] and kv_idx >= h";
    const flexc_mask_tile one = {.struct_size = sizeof one, .queries = 1, .keys = 1};
    flexc_mask_map* map = NULL;
    CHECK_OK(flexc_mask_map_create(text, NULL, &sizes, &buffer, 1, &one, NULL, &map, &error));
    flexc_mask_info info = {.struct_size = sizeof info};
    CHECK_OK(flexc_mask_map_get(map, &info, &error));
    CHECK(info.batches == 1 && info.heads == 3);
    CHECK(info.query_tiles == LENGTH && info.key_tiles == LENGTH);
    CHECK(strlen(info.tiles) == 3 * LENGTH * LENGTH);
    for (int h = 0; h < 3; ++h)
        for (int q = 0; q < LENGTH; ++q)
            for (int kv = 0; kv < LENGTH; ++kv)
                CHECK(info.tiles[(h * LENGTH + q) * LENGTH + kv] ==
                      (documents[q] == documents[kv] && kv >= h ? '#' : '.'));
    flexc_mask_map_free(map);

    const flexc_plan_options shard = {.struct_size = sizeof shard, .q_offset = 200};
    CHECK_OK(flexc_mask_map_create("mask_mod = q_idx >= kv_idx", NULL, &sizes, NULL, 0, NULL,
                                   &shard, &map, &error));
    CHECK_OK(flexc_mask_map_get(map, &info, &error));
    CHECK(strcmp(info.tiles, "#") == 0);
    flexc_mask_map_free(map);
    const flexc_mask_tile huge = {
        .struct_size = sizeof huge, .queries = INT64_MAX, .keys = INT64_MAX};
    CHECK_OK(flexc_mask_map_create("mask_mod = kv_idx > 0", NULL, &sizes, NULL, 0, &huge, NULL,
                                   &map, &error));
    CHECK_OK(flexc_mask_map_get(map, &info, &error));
    CHECK(strcmp(info.tiles, "/") == 0);
    flexc_mask_map_free(map);

    CHECK_REFUSED(flexc_mask_map_create(text, NULL, &sizes, NULL, 0, NULL, NULL, &map, &error),
                  FLEXC_ERROR_INVALID_OPTION, "'doc': missing");
    CHECK(map == NULL);
    CHECK_NULL(flexc_mask_map_create(text, NULL, NULL, NULL, 0, NULL, NULL, &map, &error), "sizes");
    CHECK_NULL(flexc_mask_map_create(text, NULL, &sizes, NULL, 0, NULL, NULL, NULL, &error), "map");
    CHECK_NULL(flexc_mask_map_get(NULL, &info, &error), "map");
    flexc_mask_map_free(NULL);
}

static void test_library(void) {
    flexc_library* library = NULL;
    CHECK_OK(flexc_library_create(&library, &error));
    flexc_library_entry entry = {.struct_size = sizeof entry}, found = entry;
    const size_t count = flexc_library_count(library);
    CHECK(count > 20 && flexc_library_count(NULL) == 0);
    for (size_t i = 0; i < count; ++i) {
        CHECK_OK(flexc_library_get(library, i, &entry, &error));
        CHECK(strcmp(entry.group, "mask") == 0 || strcmp(entry.group, "score") == 0);
        CHECK(entry.page[0] != '\0' && entry.summary[0] != '\0');
        CHECK_OK(flexc_library_find(library, entry.name, &found, &error));
        CHECK(found.text == entry.text);
        for (size_t other = 0; other < entry.also_called_count; ++other) {
            CHECK_OK(flexc_library_find(library, entry.also_called[other], &found, &error));
            CHECK(found.text == entry.text);
        }
    }
    CHECK_REFUSED(flexc_library_get(library, count, &entry, &error), FLEXC_ERROR_INVALID_OPTION,
                  "no such mod");
    CHECK_REFUSED(flexc_library_find(library, "alibbi", &entry, &error), FLEXC_ERROR_INVALID_OPTION,
                  "did you mean 'alibi'?");
    CHECK_NULL(flexc_library_find(library, NULL, &entry, &error), "name");
    CHECK_NULL(flexc_library_get(NULL, 0, &entry, &error), "library");
    CHECK_NULL(flexc_library_create(NULL, &error), "library");
    flexc_library_free(library);
    flexc_library_free(NULL);
}

static void test_cache(const char* folder) {
    char path[4096];
    snprintf(path, sizeof path, "%s/cache", folder);
    flexc_compile_options options = {.struct_size = sizeof options,
                                     .cache_directory = path,
                                     .dtype = FLEXC_F32,
                                     .head_dim = 4,
                                     .device = FLEXC_DEVICE_CPU};
    flexc_text* directory = NULL;
    CHECK_OK(flexc_cache_directory(&options, &directory, &error));
    CHECK(strcmp(flexc_text_data(directory), path) == 0);
    flexc_text_free(directory);
    CHECK_OK(flexc_cache_clear(&options, &error));
    flexc_cache_info before = {.struct_size = sizeof before}, after = before;
    CHECK_OK(flexc_cache_get(&options, &before, &error));
    CHECK(before.has_directory == 1 && before.disk_entries == 0 && before.disk_bytes == 0);
    if (FLEXC_WITH_CPU) {
        for (int i = 0; i < 3; ++i) { /* made, then found in memory, then on disk */
            flexc_kernel* kernel = NULL;
            if (i == 2) options.no_memory_cache = 1;
            CHECK_OK(flexc_compile("score + 0.375", &options, &kernel, &error));
            flexc_kernel_free(kernel);
        }
        CHECK_OK(flexc_cache_get(&options, &after, &error));
        CHECK(after.memory_hits == before.memory_hits + 1);
        CHECK(after.misses == before.misses + 1 && after.disk_hits == before.disk_hits + 1);
        CHECK(after.disk_entries == 1 && after.disk_bytes > 0 && after.corrupt == 0);
        CHECK_OK(flexc_cache_clear(&options, &error));
        CHECK_OK(flexc_cache_get(&options, &after, &error));
        CHECK(after.disk_entries == 0);
    }
    options.no_disk_cache = 1;
    CHECK_OK(flexc_cache_get(&options, &after, &error));
    CHECK(after.has_directory == 0);
    CHECK_NULL(flexc_cache_get(&options, NULL, &error), "info");
    CHECK_NULL(flexc_cache_directory(NULL, NULL, &error), "directory");
    options.struct_size = 0;
    CHECK_REFUSED(flexc_cache_clear(&options, &error), FLEXC_ERROR_INVALID_OPTION, "struct_size");
}

static void test_doctor(void) {
    flexc_doctor* doctor = NULL;
    CHECK_OK(flexc_doctor_create(&doctor, &error));
    const size_t count = flexc_doctor_count(doctor);
    CHECK(count >= 3 && flexc_doctor_count(NULL) == 0);
    flexc_finding finding = {.struct_size = sizeof finding};
    int has_backend = 0;
    for (size_t i = 0; i < count; ++i) {
        CHECK_OK(flexc_doctor_get(doctor, i, &finding, &error));
        CHECK(finding.what[0] != '\0' && finding.detail[0] != '\0' && finding.remedy != NULL);
        if (strcmp(finding.what, "CPU backend") == 0) has_backend = finding.found;
    }
    CHECK(has_backend == FLEXC_WITH_CPU);
    CHECK_REFUSED(flexc_doctor_get(doctor, count, &finding, &error), FLEXC_ERROR_INVALID_OPTION,
                  "no such finding");
    CHECK_NULL(flexc_doctor_get(doctor, 0, NULL, &error), "finding");
    CHECK_NULL(flexc_doctor_get(NULL, 0, &finding, &error), "doctor");
    CHECK_NULL(flexc_doctor_create(NULL, &error), "doctor");
    flexc_doctor_free(doctor);
    flexc_doctor_free(NULL);
}

static flexc_status count_calls(void* user) {
    ++*(int*)user;
    return FLEXC_OK;
}
static flexc_status fail(void* user) {
    (void)user;
    return FLEXC_ERROR_IO;
}

static void test_memory_and_time(void) {
    enum { BYTES = 1001 };
    flexc_memory* memory = NULL;
    CHECK_OK(flexc_memory_create(FLEXC_DEVICE_CPU, 0, BYTES, &memory, &error));
    CHECK(flexc_memory_bytes(memory) == BYTES);
    CHECK((uintptr_t)flexc_memory_data(memory) % 256 == 0);
    unsigned char sent[BYTES], got[BYTES];
    for (int i = 0; i < BYTES; ++i)
        sent[i] = (unsigned char)(i * 7);
    CHECK_OK(flexc_memory_download(memory, got, BYTES, &error));
    for (int i = 0; i < BYTES; ++i)
        CHECK(got[i] == 0);
    CHECK_OK(flexc_memory_upload(memory, sent, BYTES, &error));
    CHECK_OK(flexc_memory_download(memory, got, BYTES, &error));
    CHECK(memcmp(sent, got, BYTES) == 0);
    CHECK_OK(flexc_memory_fill(memory, 0x5a, &error));
    CHECK(((const unsigned char*)flexc_memory_data(memory))[BYTES - 1] == 0x5a);
    CHECK_REFUSED(flexc_memory_upload(memory, sent, BYTES + 1, &error), FLEXC_ERROR_INVALID_OPTION,
                  "do not fit");
    CHECK_REFUSED(flexc_memory_download(memory, got, BYTES + 1, &error), FLEXC_ERROR_INVALID_OPTION,
                  "were asked of");
    CHECK_NULL(flexc_memory_upload(memory, NULL, 1, &error), "host");
    CHECK_NULL(flexc_memory_download(memory, NULL, 1, &error), "host");
    CHECK_NULL(flexc_memory_fill(NULL, 0, &error), "memory");
    CHECK_NULL(flexc_memory_create(FLEXC_DEVICE_CPU, 0, 1, NULL, &error), "memory");
    CHECK(flexc_memory_data(NULL) == NULL && flexc_memory_bytes(NULL) == 0);
    flexc_memory_free(memory);
    flexc_memory_free(NULL);
    CHECK_REFUSED(flexc_memory_create(99, 0, 1, &memory, &error), FLEXC_ERROR_INVALID_OPTION,
                  "device has no value 99");

    CHECK_OK(flexc_synchronize(FLEXC_DEVICE_CPU, 0, &error));
    CHECK_REFUSED(flexc_synchronize(-1, 0, &error), FLEXC_ERROR_INVALID_OPTION, "device");

    int calls = 0;
    size_t count = 0;
    double times[2] = {-1, -1};
    CHECK_OK(flexc_measure(FLEXC_DEVICE_CPU, 0, 1e-3, 1e-3, count_calls, &calls, times, 2, &count,
                           &error));
    CHECK(count >= 5 && (size_t)calls > count && times[0] >= 0 && times[1] >= 0);
    CHECK_REFUSED(flexc_measure(FLEXC_DEVICE_CPU, 0, 1, 1, fail, NULL, times, 2, &count, &error),
                  FLEXC_ERROR_IO, "status 8");
    CHECK_REFUSED(flexc_measure(FLEXC_DEVICE_CPU, 0, -1, 1, fail, NULL, times, 2, &count, &error),
                  FLEXC_ERROR_INVALID_OPTION, "-1");
    CHECK_NULL(flexc_measure(FLEXC_DEVICE_CPU, 0, 1, 1, NULL, NULL, times, 2, &count, &error),
               "work");
    CHECK_NULL(flexc_measure(FLEXC_DEVICE_CPU, 0, 1, 1, fail, NULL, NULL, 2, &count, &error),
               "times");
    CHECK_NULL(flexc_measure(FLEXC_DEVICE_CPU, 0, 1, 1, fail, NULL, times, 2, NULL, &error),
               "count");
}

void test_tools(const char* folder) {
    test_explain();
    test_schedules();
    test_offline(folder);
    test_library();
    test_cache(folder);
    test_doctor();
    test_memory_and_time();
}
