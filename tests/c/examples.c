/* The examples of docs/embedding.md, as they stand there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

int takes(const char* text, const flexc_compile_options* options);
void parallel(void* user, int32_t count, void (*work)(void* context, int32_t index), void* context);
flexc_plan* plan_on_our_threads(const flexc_kernel* kernel, const flexc_sizes* sizes,
                                flexc_error** error);
flexc_status write_pack(const char* folder, const char* text, const flexc_compile_options* options,
                        const char* arch, flexc_error** error);
flexc_status compile_from_library(const char* name, const flexc_compile_options* options,
                                  flexc_kernel** kernel, flexc_error** error);
int first_example(flexc_tensor q, flexc_tensor k, flexc_tensor v, flexc_tensor o, flexc_tensor lse,
                  flexc_workspace workspace, void* stream);

#include "examples.h"

/* Its sizes are those of a large model: it is compiled and not run. */
int first_example(flexc_tensor q, flexc_tensor k, flexc_tensor v, flexc_tensor o, flexc_tensor lse,
                  flexc_workspace workspace, void* stream) {
#include "first.h"
    return 0;
}

void test_examples(const char* folder) {
    flexc_error* error = NULL;
    flexc_compile_options options = {.struct_size = sizeof options,
                                     .dtype = FLEXC_F32,
                                     .head_dim = 16,
                                     .device = FLEXC_DEVICE_CPU,
                                     .forward_only = 1,
                                     .no_disk_cache = 1};
    if (FLEXC_WITH_CPU) {
        CHECK(takes("score * 2", &options));
        flexc_kernel* kernel = NULL;
        CHECK_OK(compile_from_library("causal_mask", &options, &kernel, &error));
        const flexc_sizes sizes = {.struct_size = sizeof sizes,
                                   .batch = 1,
                                   .heads = 3,
                                   .kv_heads = 1,
                                   .q_len = 37,
                                   .kv_len = 41};
        flexc_plan* plan = plan_on_our_threads(kernel, &sizes, &error);
        CHECK(plan != NULL && error == NULL);
        flexc_plan_free(plan);
        flexc_kernel_free(kernel);
    }
    if (flexc_supports("score * 2", &options, "sm_80", NULL) != FLEXC_OK) return;
    CHECK_OK(write_pack(folder, "score * 2", &options, "sm_80", &error));
    options.pack = folder;
    flexc_offline* offline = NULL;
    CHECK_OK(flexc_compile_offline("score * 2", &options, "sm_80", FLEXC_OFFLINE_ANY_LAYOUT,
                                   &offline, &error));
    flexc_offline_info info = {.struct_size = sizeof info};
    CHECK_OK(flexc_offline_get(offline, &info, &error));
    CHECK(info.from_cache == 1);
    flexc_offline_free(offline);
    CHECK_REFUSED(write_pack("/nonexistent", "score +", &options, "sm_80", &error),
                  FLEXC_ERROR_SYNTAX, "score +");
}
