/* test_c_gpu_ranks FOLDER: ranks on GPUs from C, with libraries that stand in for the driver, NVRTC
 * and NCCL: how communicators are made, and in which streams calls are. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "flexc/flexc_distributed_c.h"

/* The function of a stand-in that hands over what it has written down. */
static void* taker(const char* variable, const char* name) {
    void* library = dlopen(getenv(variable), RTLD_NOW | RTLD_NOLOAD);
    void* found = library == NULL ? NULL : dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "%s has no %s\n", variable, name);
        exit(2);
    }
    return found;
}

static int messages_are(const char* wanted) {
    static void (*take)(char*, size_t) = NULL;
    char text[4096];
    if (take == NULL) *(void**)&take = taker("FLEXC_NCCL", "flexc_take_recorded_messages");
    take(text, sizeof text);
    if (strcmp(text, wanted) != 0) fprintf(stderr, "NCCL was asked for:\n%s", text);
    return strcmp(text, wanted) == 0;
}

/* Launches that the driver was asked for, and how many of them are in a stream. */
typedef struct launches {
    int all, inside;
    const char* stream;
} launches;

static void count_launches(void* user, const char* text) {
    launches* counts = user;
    for (const char* at = text; (at = strstr(at, " grid ")) != NULL; ++at) {
        const char* stream = strstr(at, " in stream ");
        ++counts->all;
        counts->inside += stream != NULL && stream < strchr(at, '\n') &&
                          strncmp(stream + 11, counts->stream, strlen(counts->stream)) == 0;
    }
}

static launches take_launches(const char* stream) {
    static void (*take)(void (*)(void*, const char*), void*) = NULL;
    if (take == NULL) *(void**)&take = taker("FLEXC_LIBCUDA", "flexc_take_recorded");
    launches counts = {0, 0, stream};
    take(count_launches, &counts);
    return counts;
}

static void free_one(flexc_communicator* communicator, int32_t rank, int32_t ranks) {
    CHECK(flexc_communicator_rank(communicator) == rank);
    CHECK(flexc_communicator_ranks(communicator) == ranks);
    flexc_communicator_free(communicator);
}

static void test_communicators(const char* folder) {
    flexc_error* error = NULL;
    flexc_communicator* made = NULL;
    flexc_nccl_id id = {{0}};
    CHECK_OK(flexc_nccl_make_id(&id, &error));
    CHECK(id.bytes[0] == 1 && id.bytes[127] == 128);
    CHECK_OK(flexc_nccl_communicator(&id, 1, 3, 0, NULL, &made, &error));
    free_one(made, 1, 3);
    CHECK(messages_are("init 1 of 3 by 1..-128\ndestroy\n"));

    char path[512];
    snprintf(path, sizeof path, "%s/nccl-id", folder);
    remove(path);
    CHECK_OK(flexc_nccl_communicator_by_file(path, 0, 2, 0, NULL, &made, &error));
    free_one(made, 0, 2);
    CHECK(messages_are("init 0 of 2 by 1..-128\ndestroy\n"));
    FILE* file = fopen(path, "rb"); /* gone when all have come */
    CHECK(file == NULL);
    file = fopen(path, "wb");
    id.bytes[127] = 7;
    CHECK(file != NULL && fwrite(id.bytes, 1, sizeof id.bytes, file) == 128 && fclose(file) == 0);
    CHECK_REFUSED(flexc_nccl_communicator_by_file(path, 0, 2, 0, NULL, &made, &error),
                  FLEXC_ERROR_IO, "is there already");
    CHECK_OK(flexc_nccl_communicator_by_file(path, 1, 2, 0, NULL, &made, &error));
    CHECK(messages_are("init 1 of 2 by 1..7\n"));
    remove(path);

    /* The stand-in's own is lent here: the caller's is left to the caller. */
    void* lent = NULL;
    int (*init)(void**, int, flexc_nccl_id, int, void*) = NULL;
    *(void**)&init = taker("FLEXC_NCCL", "ncclCommInitRankConfig");
    CHECK(init(&lent, 4, id, 2, NULL) == 0);
    flexc_communicator* ours = NULL;
    CHECK_OK(flexc_nccl_communicator_of(lent, NULL, &ours, &error));
    free_one(ours, 2, 4);
    CHECK(messages_are("init 2 of 4 by 1..7 without config\nsplit 0:2\ndestroy\n"));
    free(lent);
    free_one(made, 1, 2);
    CHECK(messages_are("destroy\n"));

    const flexc_communicator_options late = {.struct_size = sizeof late, .timeout_seconds = -1};
    CHECK_REFUSED(flexc_nccl_communicator(&id, 3, 3, 0, NULL, &made, &error),
                  FLEXC_ERROR_INVALID_OPTION, "rank 3 of 3");
    CHECK_REFUSED(flexc_nccl_communicator(&id, 0, 1, 0, &late, &made, &error),
                  FLEXC_ERROR_INVALID_OPTION, "timeout_seconds");
    CHECK_REFUSED(flexc_nccl_communicator(&id, 0, 1, 9, NULL, &made, &error),
                  FLEXC_ERROR_INVALID_OPTION, "no CUDA device 9");
    CHECK(made == NULL && messages_are(""));
}

enum { LENGTH = 512, HEADS = 2, DIM = 64 };
static void* const kStream = (void*)0xabc0; /* an address, as the driver would give */
static const char kStreamName[] = "abc0";

typedef struct rank_work {
    const flexc_distributed_kernel* kernel;
    const flexc_communicator* communicator;
    const flexc_shards* shards;
    const flexc_lengths* lengths; /* of ragged layouts, of two requests */
    int is_done;
} rank_work;

static flexc_tensor tensor_of(const rank_work* work, int32_t dtype, int is_lse) {
    static const intptr_t somewhere = 1 << 20; /* nobody touches what is there */
    const int64_t rows =
        flexc_shards_rows(work->shards, flexc_communicator_rank(work->communicator));
    const int64_t dense[] = {1, HEADS, rows, DIM}, ragged[] = {rows, HEADS, DIM};
    flexc_tensor tensor = {.struct_size = sizeof tensor,
                           .dtype = dtype,
                           .data = (void*)somewhere,
                           .rank = (work->lengths == NULL ? 4 : 3) - is_lse};
    memcpy(tensor.shape, work->lengths == NULL ? dense : ragged,
           (size_t)tensor.rank * sizeof dense[0]);
    return tensor;
}

static void* run_rank(void* given) {
    rank_work* work = given;
    flexc_error* error = NULL;
    const flexc_distributed_sizes sizes = {
        sizeof sizes, 0, work->lengths == NULL ? 1 : 2, HEADS, HEADS, work->shards, work->shards};
    const flexc_distributed_options options = {
        .struct_size = sizeof options, .exchange = FLEXC_EXCHANGE_RING, .lengths = work->lengths};
    flexc_distributed_plan* plan = NULL;
    CHECK_OK(flexc_distributed_plan_create(work->kernel, &sizes, work->communicator, NULL, 0,
                                           kStream, &options, &plan, &error));
    const flexc_tensor q = tensor_of(work, FLEXC_BF16, 0), lse = tensor_of(work, FLEXC_F32, 1),
                       sum = tensor_of(work, FLEXC_F32, 0);
    const flexc_forward_tensors forward = {
        .struct_size = sizeof forward, .q = &q, .k = &q, .v = &q, .o = &sum, .lse = &lse};
    const flexc_backward_tensors backward = {.struct_size = sizeof backward,
                                             .q = &q,
                                             .k = &q,
                                             .v = &q,
                                             .o = &sum,
                                             .lse = &lse,
                                             .d_out = &q,
                                             .dq = &sum,
                                             .dk = &sum,
                                             .dv = &sum};
    CHECK_OK(flexc_distributed_forward(work->kernel, plan, &forward, NULL, 0, kStream, &error));
    CHECK_OK(flexc_distributed_backward(work->kernel, plan, &backward, NULL, 0, NULL, 0, kStream,
                                        &error));
    flexc_distributed_plan_free(plan);
    work->is_done = 1;
    return NULL;
}

/* On two ranks of this process. */
static launches run_two(const flexc_distributed_kernel* kernel, const flexc_shards* shards,
                        const flexc_lengths* lengths) {
    flexc_error* error = NULL;
    flexc_communicator* communicators[2] = {NULL};
    rank_work works[2];
    pthread_t threads[2];
    CHECK_OK(flexc_in_process_communicators(2, NULL, communicators, &error));
    for (int rank = 0; rank < 2; ++rank) {
        const rank_work work = {kernel, communicators[rank], shards, lengths, 0};
        works[rank] = work;
        CHECK(pthread_create(&threads[rank], NULL, run_rank, &works[rank]) == 0);
    }
    for (int rank = 0; rank < 2; ++rank) {
        pthread_join(threads[rank], NULL);
        CHECK(works[rank].is_done);
        flexc_communicator_free(communicators[rank]);
    }
    return take_launches(kStreamName);
}

static void test_streams(void) {
    flexc_error* error = NULL;
    const flexc_compile_options options = {.struct_size = sizeof options,
                                           .dtype = FLEXC_BF16,
                                           .head_dim = DIM,
                                           .device = FLEXC_DEVICE_CUDA,
                                           .no_disk_cache = 1};
    flexc_distributed_kernel* kernel = NULL;
    CHECK_OK(flexc_distributed_compile("mask_mod = q_idx >= kv_idx", &options, NULL, 0, &kernel,
                                       &error));
    flexc_shards *alone = NULL, *together = NULL;
    CHECK_OK(flexc_shards_contiguous(LENGTH, 1, &alone, &error));
    CHECK_OK(flexc_shards_zigzag(LENGTH, 2, &together, &error));
    (void)take_launches(kStreamName);

    /* One rank by NCCL: all of its launches are in the caller's stream. */
    flexc_communicator* communicator = NULL;
    flexc_nccl_id id = {{0}};
    CHECK_OK(flexc_nccl_make_id(&id, &error));
    CHECK_OK(flexc_nccl_communicator(&id, 0, 1, 0, NULL, &communicator, &error));
    rank_work work = {kernel, communicator, alone, NULL, 0};
    run_rank(&work);
    flexc_communicator_free(communicator);
    CHECK(work.is_done);
    const launches one = take_launches(kStreamName);
    CHECK(one.all >= 2 && one.inside == one.all);
    CHECK(messages_are("init 0 of 1 by 1..-128\ndestroy\n"));

    /* Two in one process: messages are packed in a stream of the plan's own. */
    const launches both = run_two(kernel, together, NULL);
    CHECK(both.inside > 2 * one.inside && both.inside < both.all);

    /* Requests are one sequence of which the same kernels compute pieces. */
    flexc_compile_options ragged_options = options;
    ragged_options.query_layout = ragged_options.key_layout = FLEXC_LAYOUT_RAGGED;
    flexc_distributed_kernel* ragged = NULL;
    CHECK_OK(flexc_distributed_compile("mask_mod = q_idx >= kv_idx", &ragged_options, NULL, 0,
                                       &ragged, &error));
    static const int32_t kStarts[] = {0, 100, LENGTH};
    const flexc_lengths lengths = {.struct_size = sizeof lengths,
                                   .cu_seqlens_q = kStarts,
                                   .cu_seqlens_q_count = 3,
                                   .cu_seqlens_k = kStarts,
                                   .cu_seqlens_k_count = 3};
    const launches of_requests = run_two(ragged, together, &lengths);
    CHECK(of_requests.inside > 2 && of_requests.inside < of_requests.all);
    flexc_distributed_kernel_free(ragged);
    flexc_shards_free(alone);
    flexc_shards_free(together);
    flexc_distributed_kernel_free(kernel);
}

int main(int count, char** arguments) {
    if (count != 2) {
        fprintf(stderr, "usage: test_c_gpu_ranks FOLDER\n");
        return 2;
    }
    test_communicators(arguments[1]);
    test_streams();
    return failures() == 0 ? 0 : 1;
}
