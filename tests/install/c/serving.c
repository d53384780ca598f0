/* The C example of docs/serving.md, which CMake cuts out of the page: two requests that get a key
 * a step. Queries are 0, so that what comes out is the mean of the values, which are positions. */
#include <flexc/flexc_c.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { REQUESTS = 2, HEAD_DIM = 8, PAGE_SIZE = 4, MOST_PAGES = 4, PAGES = 8, STEPS = 9 };

static float q[REQUESTS * HEAD_DIM], o[REQUESTS * HEAD_DIM];
static float k[PAGES * PAGE_SIZE * HEAD_DIM], v[PAGES * PAGE_SIZE * HEAD_DIM];
static int32_t cu_seqlens_q[REQUESTS + 1] = {0, 1, 2}, seqused_k[REQUESTS] = {0, 5};
static int32_t page_table[REQUESTS * MOST_PAGES] = {6, 1, 4, 3, 7, 0, 2, 5};

static int fail(flexc_error* error) {
    fprintf(stderr, "%s\n", flexc_error_message(error));
    flexc_error_free(error);
    return 1;
}

static flexc_workspace allocate(size_t bytes) {
    char* memory = malloc(bytes + 256); /* kept until the program ends */
    flexc_workspace workspace = {.struct_size = sizeof workspace,
                                 .data = memory + (256 - (uintptr_t)memory % 256) % 256,
                                 .bytes = bytes};
    return workspace;
}

static void append_a_key_of_each(void) {
    for (int b = 0; b < REQUESTS; ++b) {
        const int key = seqused_k[b]++;
        const int slot =
            page_table[b * MOST_PAGES + key / PAGE_SIZE] * PAGE_SIZE + key % PAGE_SIZE;
        for (int d = 0; d < HEAD_DIM; ++d)
            v[slot * HEAD_DIM + d] = (float)key;
    }
}

static int is_right(void) {
    for (int b = 0; b < REQUESTS; ++b)
        if (!(fabsf(o[b * HEAD_DIM] - (float)(seqused_k[b] - 1) / 2) < 1e-5f)) {
            fprintf(stderr, "%g for %d keys\n", (double)o[b * HEAD_DIM], seqused_k[b]);
            return 0;
        }
    return 1;
}

static flexc_tensor tensor(float* data, int32_t rank, int64_t first, int64_t second) {
    flexc_tensor result = {.struct_size = sizeof result,
                           .dtype = FLEXC_F32,
                           .data = data,
                           .rank = rank,
                           .shape = {first, second, rank == 3 ? HEAD_DIM : 1, HEAD_DIM}};
    return result;
}

int main(void) {
    flexc_kernel* kernel = NULL;
    flexc_plan* plan = NULL;
    flexc_error* error = NULL;
    /* Request 1 had a prompt of five tokens. */
    for (int key = 0; key < 5; ++key)
        for (int d = 0; d < HEAD_DIM; ++d)
            v[(page_table[MOST_PAGES + key / PAGE_SIZE] * PAGE_SIZE + key % PAGE_SIZE) * HEAD_DIM +
              d] = (float)key;
    flexc_compile_options options = {.struct_size = sizeof options,
                                     .dtype = FLEXC_F32,
                                     .head_dim = HEAD_DIM,
                                     .device = FLEXC_DEVICE_CPU,
                                     .forward_only = 1,
                                     .mask_mod = "q_idx >= kv_idx",
                                     .query_layout = FLEXC_LAYOUT_RAGGED,
                                     .key_layout = FLEXC_LAYOUT_PAGED};
    if (flexc_compile("score", &options, &kernel, &error) != FLEXC_OK) return fail(error);
    flexc_sizes most = {.struct_size = sizeof most,
                        .batch = REQUESTS,
                        .heads = 1,
                        .kv_heads = 1,
                        .q_len = 1,
                        .kv_len = MOST_PAGES * PAGE_SIZE};
    flexc_tensor tq = tensor(q, 3, REQUESTS, 1), to = tensor(o, 3, REQUESTS, 1);
    flexc_tensor tk = tensor(k, 4, PAGES, PAGE_SIZE), tv = tensor(v, 4, PAGES, PAGE_SIZE);
    flexc_forward_tensors tensors = {
        .struct_size = sizeof tensors, .q = &tq, .k = &tk, .v = &tv, .o = &to};
#include "serving_example.h"
    flexc_plan_free(plan);
    flexc_kernel_free(kernel);
    printf("serving ends well\n");
    return 0;
}
