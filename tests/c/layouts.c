/* Lengths, pages and partial results. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "check.h"

static flexc_tensor tensor_of(float* data, int rank, int64_t a, int64_t b, int64_t c, int64_t d) {
    flexc_tensor tensor = {.struct_size = sizeof tensor, .dtype = FLEXC_F32, .data = data};
    const int64_t shape[] = {a, b, c, d};
    tensor.rank = rank;
    memcpy(tensor.shape, shape, (size_t)rank * sizeof shape[0]);
    return tensor;
}

static void test_merge(void) {
    flexc_error* error = NULL;
    float values[2][2] = {{1, 2}, {3, 6}}, lse[2] = {0, 0}, o[2], sum = 0;
    const flexc_tensor tensors[2] = {tensor_of(values[0], 2, 1, 2, 0, 0),
                                     tensor_of(values[1], 2, 1, 2, 0, 0)};
    const flexc_tensor sums[2] = {tensor_of(lse, 1, 1, 0, 0, 0), tensor_of(lse + 1, 1, 1, 0, 0, 0)};
    const flexc_partial_result parts[2] = {
        {.struct_size = sizeof parts[0], .o = &tensors[0], .lse = &sums[0]},
        {.struct_size = sizeof parts[0], .o = &tensors[1], .lse = &sums[1]}};
    const flexc_tensor out = tensor_of(o, 2, 1, 2, 0, 0), out_lse = tensor_of(&sum, 1, 1, 0, 0, 0);
    CHECK_OK(flexc_merge_states(parts, 2, &out, &out_lse, &error));
    CHECK(fabsf(o[0] - 2) < 1e-6f && fabsf(o[1] - 4) < 1e-6f && fabsf(sum - logf(2)) < 1e-6f);
    lse[1] = -INFINITY;
    values[1][0] = NAN;
    CHECK_OK(flexc_merge_states(parts, 2, &out, NULL, &error));
    CHECK(o[0] == 1 && o[1] == 2);
    CHECK_OK(flexc_merge_states(NULL, 0, &out, &out_lse, &error));
    CHECK(o[0] == 0 && sum == -INFINITY);
    CHECK_NULL(flexc_merge_states(NULL, 1, &out, NULL, &error), "parts");
    CHECK_NULL(flexc_merge_states(parts, 2, NULL, NULL, &error), "o");
}

#if FLEXC_WITH_CPU
enum { HEADS = 2, DIM = 8, PAGE = 4, PAGES = 6 };

/* One key each, all of whose values are its number in the cache: two requests of one query. */
static void test_pages(void) {
    flexc_error* error = NULL;
    const flexc_compile_options options = {.struct_size = sizeof options,
                                           .dtype = FLEXC_F32,
                                           .head_dim = DIM,
                                           .device = FLEXC_DEVICE_CPU,
                                           .no_disk_cache = 1,
                                           .query_layout = FLEXC_LAYOUT_RAGGED,
                                           .key_layout = FLEXC_LAYOUT_PAGED};
    flexc_kernel* kernel = NULL;
    CHECK_OK(flexc_compile("score", &options, &kernel, &error));
    if (kernel == NULL) return;
    const flexc_sizes sizes = {.struct_size = sizeof sizes,
                               .batch = 2,
                               .heads = HEADS,
                               .kv_heads = 1,
                               .q_len = 1,
                               .kv_len = 20};
    const int32_t cu[] = {0, 1, 2}, table[] = {5, 0, 2, 0}, far[] = {5, 0, 6, 0};
    const int32_t one_key[] = {1, 1}, five_keys[] = {5, 1}, many_keys[] = {9, 1};
    flexc_lengths lengths = {.struct_size = sizeof lengths,
                             .cu_seqlens_q = cu,
                             .cu_seqlens_q_count = 3,
                             .seqused_k = one_key,
                             .seqused_k_count = 2,
                             .page_table = table,
                             .page_table_count = 4,
                             .page_size = PAGE,
                             .pages = PAGES};
    flexc_plan_options plan_options = {.struct_size = sizeof plan_options, .lengths = &lengths};
    flexc_plan* plan = NULL;
    lengths.page_table = far;
    CHECK_REFUSED(flexc_plan_create(kernel, &sizes, NULL, 0, NULL, &plan_options, &plan, &error),
                  FLEXC_ERROR_INVALID_OPTION, "page 0 of request 1 is 6; the cache has 6 pages");
    lengths.page_table = table;
    CHECK_OK(flexc_plan_create(kernel, &sizes, NULL, 0, NULL, &plan_options, &plan, &error));
    if (plan == NULL) return;

    float q[2 * HEADS * DIM], k[PAGES * PAGE * DIM], v[PAGES * PAGE * DIM], o[2 * HEADS * DIM];
    for (int i = 0; i < 2 * HEADS * DIM; ++i)
        q[i] = random_float();
    for (int i = 0; i < PAGES * PAGE * DIM; ++i) {
        k[i] = 0;
        v[i] = (float)(i / DIM);
    }
    flexc_memory* memory = NULL;
    const size_t bytes = flexc_plan_workspace_bytes(plan);
    CHECK_OK(flexc_memory_create(FLEXC_DEVICE_CPU, 0, bytes, &memory, &error));
    const flexc_workspace workspace = {
        .struct_size = sizeof workspace, .data = flexc_memory_data(memory), .bytes = bytes};
    const flexc_tensor tq = tensor_of(q, 3, 2, HEADS, DIM, 0),
                       to = tensor_of(o, 3, 2, HEADS, DIM, 0);
    const flexc_tensor tk = tensor_of(k, 4, PAGES, PAGE, 1, DIM);
    const flexc_tensor tv = tensor_of(v, 4, PAGES, PAGE, 1, DIM);
    int32_t used[2] = {1, 1};
    flexc_tensor used_tensor = {.struct_size = sizeof used_tensor,
                                .dtype = FLEXC_I32,
                                .data = used,
                                .rank = 1,
                                .shape = {2}};
    const flexc_length_tensors known = {.struct_size = sizeof known, .seqused_k = &used_tensor};
    const flexc_forward_tensors forward = {
        .struct_size = sizeof forward, .q = &tq, .k = &tk, .v = &tv, .o = &to, .lengths = &known};
    CHECK_OK(flexc_forward(kernel, plan, &forward, NULL, 0, &workspace, NULL, &error));
    CHECK(o[0] == 5 * PAGE && o[HEADS * DIM] == 2 * PAGE);

    used[0] = 5;
    CHECK_REFUSED(flexc_forward(kernel, plan, &forward, NULL, 0, &workspace, NULL, &error),
                  FLEXC_ERROR_INVALID_OPTION, "call update()");
    lengths.seqused_k = five_keys;
    CHECK_OK(flexc_plan_update_lengths(kernel, plan, &lengths, NULL, &error));
    CHECK_OK(flexc_forward(kernel, plan, &forward, NULL, 0, &workspace, NULL, &error));
    CHECK(fabsf(o[0] - (20 + 21 + 22 + 23) / 5.0f) < 1e-5f); /* and key 0 of page 0 */
    lengths.seqused_k = many_keys;
    CHECK_REFUSED(flexc_plan_update_lengths(kernel, plan, &lengths, NULL, &error),
                  FLEXC_ERROR_INVALID_OPTION, "8 slots");
    CHECK_NULL(flexc_plan_update_lengths(kernel, plan, NULL, NULL, &error), "lengths");
    CHECK_NULL(flexc_plan_update_lengths(kernel, NULL, &lengths, NULL, &error), "plan");
    flexc_plan_free(plan);

    /* Lengths in the device's memory. */
    const flexc_lengths later = {
        .struct_size = sizeof later, .page_size = PAGE, .pages = PAGES, .on_device = 1};
    plan_options.lengths = &later;
    plan_options.forward = &forward;
    CHECK_OK(flexc_plan_create(kernel, &sizes, NULL, 0, NULL, &plan_options, &plan, &error));
    if (plan == NULL) return;
    int32_t table_now[] = {5, 0, 2, 0}, cu_now[] = {0, 1, 2};
    flexc_tensor cu_tensor = used_tensor, table_tensor = used_tensor;
    cu_tensor.data = cu_now;
    cu_tensor.shape[0] = 3;
    table_tensor.data = table_now;
    table_tensor.shape[0] = 4;
    flexc_length_tensors now = {.struct_size = sizeof now,
                                .cu_seqlens_q = &cu_tensor,
                                .seqused_k = &used_tensor,
                                .page_table = &table_tensor};
    o[0] = 0;
    CHECK_OK(flexc_plan_update_length_tensors(kernel, plan, &now, NULL, &error));
    CHECK_OK(flexc_forward(kernel, plan, &forward, NULL, 0, &workspace, NULL, &error));
    CHECK(fabsf(o[0] - (20 + 21 + 22 + 23) / 5.0f) < 1e-5f);
    now.page_table = NULL;
    CHECK_REFUSED(flexc_plan_update_length_tensors(kernel, plan, &now, NULL, &error),
                  FLEXC_ERROR_INVALID_OPTION, "0 slots");
    CHECK_NULL(flexc_plan_update_length_tensors(kernel, plan, NULL, NULL, &error), "lengths");
    flexc_memory_free(memory);
    flexc_plan_free(plan);
    flexc_kernel_free(kernel);
}

/* A key of integers, with a scale. */
static void test_narrow_keys(void) {
    flexc_error* error = NULL;
    const flexc_compile_options options = {.struct_size = sizeof options,
                                           .dtype = FLEXC_F32,
                                           .head_dim = DIM,
                                           .device = FLEXC_DEVICE_CPU,
                                           .no_disk_cache = 1,
                                           .kv_dtype = FLEXC_I8};
    flexc_kernel* kernel = NULL;
    CHECK_OK(flexc_compile("score", &options, &kernel, &error));
    if (kernel == NULL) return;
    const flexc_sizes sizes = {.struct_size = sizeof sizes,
                               .batch = 1,
                               .heads = 1,
                               .kv_heads = 1,
                               .q_len = 1,
                               .kv_len = 1};
    flexc_plan* plan = NULL;
    CHECK_OK(flexc_plan_create(kernel, &sizes, NULL, 0, NULL, NULL, &plan, &error));
    if (plan == NULL) return;
    float ones[DIM] = {1}, o[DIM], by = 0.5f;
    int8_t keys[DIM] = {-128, 127, 3, 0, 1, 2, 3, 4};
    const flexc_tensor in = tensor_of(ones, 4, 1, 1, 1, DIM), out = tensor_of(o, 4, 1, 1, 1, DIM);
    const flexc_tensor scale = tensor_of(&by, 0, 0, 0, 0, 0);
    const flexc_tensor key = {.struct_size = sizeof key,
                              .dtype = FLEXC_I8,
                              .data = keys,
                              .rank = 4,
                              .shape = {1, 1, 1, DIM}};
    const flexc_forward_tensors forward = {.struct_size = sizeof forward,
                                           .q = &in,
                                           .k = &key,
                                           .v = &key,
                                           .o = &out,
                                           .v_scale = &scale};
    flexc_memory* memory = NULL;
    const size_t bytes = flexc_plan_workspace_bytes(plan);
    CHECK_OK(flexc_memory_create(FLEXC_DEVICE_CPU, 0, bytes, &memory, &error));
    const flexc_workspace workspace = {
        .struct_size = sizeof workspace, .data = flexc_memory_data(memory), .bytes = bytes};
    CHECK_OK(flexc_forward(kernel, plan, &forward, NULL, 0, &workspace, NULL, &error));
    for (int i = 0; i < DIM; ++i)
        CHECK(o[i] == 0.5f * keys[i]);
    flexc_memory_free(memory);
    flexc_plan_free(plan);
    flexc_kernel_free(kernel);
    const flexc_compile_options wrong = {.struct_size = sizeof wrong, .kv_dtype = FLEXC_I32};
    CHECK_REFUSED(flexc_compile("score", &wrong, &kernel, &error), FLEXC_ERROR_INVALID_OPTION,
                  "e4m3, e5m2 or i8");
}

/* One key, whose score is the head: head 3 of 8 is here alone. */
static void test_some_heads(void) {
    flexc_error* error = NULL;
    const flexc_compile_options options = {.struct_size = sizeof options,
                                           .dtype = FLEXC_F32,
                                           .head_dim = DIM,
                                           .device = FLEXC_DEVICE_CPU,
                                           .no_disk_cache = 1,
                                           .part_of_heads = 1};
    flexc_kernel* kernel = NULL;
    CHECK_OK(flexc_compile("h + 10 * h_kv + 100 * H + 10000 * H_KV", &options, &kernel, &error));
    if (kernel == NULL) return;
    const flexc_sizes sizes = {.struct_size = sizeof sizes,
                               .batch = 1,
                               .heads = 1,
                               .kv_heads = 1,
                               .q_len = 1,
                               .kv_len = 1};
    flexc_plan_options plan_options = {.struct_size = sizeof plan_options,
                                       .head_offset = 9,
                                       .global_heads = 8,
                                       .global_kv_heads = 4};
    flexc_plan* plan = NULL;
    CHECK_REFUSED(flexc_plan_create(kernel, &sizes, NULL, 0, NULL, &plan_options, &plan, &error),
                  FLEXC_ERROR_INVALID_OPTION, "heads 9 to 10 of 8");
    plan_options.head_offset = 3;
    CHECK_OK(flexc_plan_create(kernel, &sizes, NULL, 0, NULL, &plan_options, &plan, &error));
    if (plan == NULL) return;
    float ones[DIM] = {1}, o[DIM], sum = 0;
    const flexc_tensor in = tensor_of(ones, 4, 1, 1, 1, DIM), out = tensor_of(o, 4, 1, 1, 1, DIM);
    const flexc_tensor lse = tensor_of(&sum, 3, 1, 1, 1, 0);
    const flexc_forward_tensors forward = {
        .struct_size = sizeof forward, .q = &in, .k = &in, .v = &in, .o = &out, .lse = &lse};
    flexc_memory* memory = NULL;
    const size_t bytes = flexc_plan_workspace_bytes(plan);
    CHECK_OK(flexc_memory_create(FLEXC_DEVICE_CPU, 0, bytes, &memory, &error));
    const flexc_workspace workspace = {
        .struct_size = sizeof workspace, .data = flexc_memory_data(memory), .bytes = bytes};
    CHECK_OK(flexc_forward(kernel, plan, &forward, NULL, 0, &workspace, NULL, &error));
    CHECK(sum == 3 + 10 * 1 + 100 * 8 + 10000 * 4);
    flexc_memory_free(memory);
    flexc_plan_free(plan);
    flexc_kernel_free(kernel);
}
#endif

void test_layouts(void) {
    test_merge();
#if FLEXC_WITH_CPU
    test_pages();
    test_some_heads();
    test_narrow_keys();
#endif
}
