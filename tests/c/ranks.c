/* Attention across ranks, each a thread: the same as one rank's, and every error. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "flexc/flexc_distributed_c.h"

static int holds(const flexc_shards* shards, int32_t rank, size_t index, int64_t begin,
                 int64_t end) {
    flexc_rank_range range = {.struct_size = sizeof range};
    return flexc_shards_range(shards, rank, index, &range, NULL) == FLEXC_OK &&
           range.rank == rank && range.begin == begin && range.end == end;
}

static void test_shards(void) {
    flexc_error* error = NULL;
    flexc_shards* shards = NULL;
    CHECK_OK(flexc_shards_contiguous(7, 3, &shards, &error));
    CHECK(flexc_shards_length(shards) == 7 && flexc_shards_ranks(shards) == 3);
    CHECK(flexc_shards_rows(shards, 0) == 3 && flexc_shards_rows(shards, 3) == 0);
    CHECK(holds(shards, 1, 0, 3, 5));
    flexc_rank_range range = {.struct_size = sizeof range};
    CHECK_REFUSED(flexc_shards_range(shards, 1, 1, &range, &error), FLEXC_ERROR_INVALID_OPTION,
                  "no such range");
    CHECK_NULL(flexc_shards_range(shards, 1, 0, NULL, &error), "range");
    flexc_shards_free(shards);
    CHECK_OK(flexc_shards_zigzag(8, 2, &shards, &error));
    CHECK(flexc_shards_range_count(shards, 0) == 2 && holds(shards, 0, 1, 6, 8));
    flexc_shards_free(shards);
    CHECK_OK(flexc_shards_striped(10, 2, 4, &shards, &error));
    CHECK(holds(shards, 0, 1, 8, 10) && holds(shards, 1, 0, 4, 8));
    flexc_shards_free(shards);

    flexc_rank_range ranges[] = {
        {sizeof range, 2, 4, 9}, {sizeof range, 0, 9, 10}, {sizeof range, 0, 0, 4}};
    CHECK_OK(flexc_shards_of(10, 3, ranges, 3, &shards, &error));
    CHECK(flexc_shards_rows(shards, 0) == 5 && flexc_shards_rows(shards, 1) == 0);
    CHECK(holds(shards, 0, 0, 9, 10) && holds(shards, 0, 1, 0, 4) && holds(shards, 2, 0, 4, 9));
    flexc_shards_free(shards);
    ranges[1].rank = 3;
    CHECK_REFUSED(flexc_shards_of(10, 3, ranges, 3, &shards, &error), FLEXC_ERROR_INVALID_OPTION,
                  "range 1 is of rank 3; there are 3 ranks");
    CHECK(shards == NULL);
    CHECK_REFUSED(flexc_shards_of(10, 3, ranges, 1, &shards, &error), FLEXC_ERROR_INVALID_OPTION,
                  "no rank holds rows 0 to 4");
    CHECK_NULL(flexc_shards_of(10, 3, NULL, 1, &shards, &error), "ranges");
    CHECK_REFUSED(flexc_shards_zigzag(10, 0, &shards, &error), FLEXC_ERROR_INVALID_OPTION,
                  "0 ranks");
    CHECK_REFUSED(flexc_shards_of(10, INT32_MAX, NULL, 0, &shards, &error),
                  FLEXC_ERROR_INVALID_OPTION, "2147483647 ranks");
    CHECK_NULL(flexc_shards_contiguous(7, 3, NULL, &error), "shards");
    CHECK(flexc_shards_length(NULL) == 0 && flexc_shards_ranks(NULL) == 0);
    flexc_shards_free(NULL);

    CHECK(strcmp(flexc_exchange_name(FLEXC_EXCHANGE_ALL_GATHER), "all_gather") == 0);
    CHECK(flexc_exchange_name(4) == NULL && flexc_exchange_name(-1) == NULL);
}

static void set_launched(const char* rank, const char* ranks, const char* local) {
    setenv("RANK", rank, 1);
    setenv("WORLD_SIZE", ranks, 1);
    setenv("LOCAL_RANK", local, 1);
}

static void test_launched(void) {
    flexc_error* error = NULL;
    flexc_launched_rank launched = {.struct_size = sizeof launched};
    set_launched("5", "8", "1");
    CHECK_OK(flexc_torchrun_rank(&launched, &error));
    CHECK(launched.rank == 5 && launched.ranks == 8 && launched.local_rank == 1);
    CHECK_NULL(flexc_torchrun_rank(NULL, &error), "launched");
    set_launched("5", "eight", "1");
    CHECK_REFUSED(flexc_torchrun_rank(&launched, &error), FLEXC_ERROR_INVALID_OPTION,
                  "WORLD_SIZE=eight is no number");
    unsetenv("RANK");
    CHECK_REFUSED(flexc_torchrun_rank(&launched, &error), FLEXC_ERROR_INVALID_OPTION,
                  "RANK is not set");
    unsetenv("WORLD_SIZE");
    unsetenv("LOCAL_RANK");
}

static void test_nccl_refusals(void) {
    flexc_error* error = NULL;
    flexc_communicator* made = NULL;
    const flexc_nccl_id id = {{0}};
    CHECK_NULL(flexc_nccl_make_id(NULL, &error), "id");
    CHECK_NULL(flexc_nccl_communicator(NULL, 0, 1, 0, NULL, &made, &error), "id");
    CHECK_NULL(flexc_nccl_communicator(&id, 0, 1, 0, NULL, NULL, &error), "communicator");
    CHECK_NULL(flexc_nccl_communicator_by_file(NULL, 0, 1, 0, NULL, &made, &error), "path");
    CHECK_NULL(flexc_nccl_communicator_of(NULL, NULL, &made, &error), "comm");
    CHECK(made == NULL);
}

#if FLEXC_WITH_CPU
enum { RANKS = 3, BATCH = 2, HEADS = 4, KV_HEADS = 2, LENGTH = 41, DIM = 8 };
enum { QUERY_COUNT = BATCH * HEADS * LENGTH * DIM, KEY_COUNT = BATCH * KV_HEADS * LENGTH * DIM };

/* Of the whole problem, or of one rank's rows. */
typedef struct tensors {
    float q[QUERY_COUNT], o[QUERY_COUNT], d_out[QUERY_COUNT], dq[QUERY_COUNT];
    float k[KEY_COUNT], v[KEY_COUNT], dk[KEY_COUNT], dv[KEY_COUNT];
    float lse[QUERY_COUNT / DIM];
    float slopes[HEADS], d_slopes[HEADS], rows[LENGTH], d_rows[LENGTH];
} tensors;

static const char kProgram[] = "buffer slopes: f32[H] grad\nbuffer rows: f32[Q_LEN] grad\n"
                               "param width: i64\n"
                               "score_mod = score + slopes[h] * (kv_idx - q_idx) + rows[q_idx]\n"
                               "mask_mod = 0 <= q_idx - kv_idx < width";

typedef struct views {
    flexc_tensor q, k, v, o, lse, d_out, dq, dk, dv, slopes, d_slopes, rows, d_rows;
    flexc_named_tensor buffers[2], gradients[2];
    flexc_forward_tensors forward;
    flexc_backward_tensors backward;
} views;

static flexc_tensor view_of(float* data, int rank, int64_t heads, int64_t rows) {
    flexc_tensor tensor = {.struct_size = sizeof tensor, .dtype = FLEXC_F32, .data = data};
    const int64_t shape[] = {BATCH, heads, rows, DIM};
    tensor.rank = rank;
    memcpy(tensor.shape, shape, (size_t)rank * sizeof shape[0]);
    if (rank == 1) tensor.shape[0] = rows;
    return tensor;
}
static flexc_tensor input_of(const float* data, int rank, int64_t heads, int64_t rows) {
    flexc_tensor tensor = view_of(NULL, rank, heads, rows);
    tensor.const_data = data;
    return tensor;
}

static void view_all(views* to, tensors* t, int64_t rows) {
    memset(to, 0, sizeof *to);
    to->q = input_of(t->q, 4, HEADS, rows);
    to->k = input_of(t->k, 4, KV_HEADS, rows);
    to->v = input_of(t->v, 4, KV_HEADS, rows);
    to->o = view_of(t->o, 4, HEADS, rows);
    to->lse = view_of(t->lse, 3, HEADS, rows);
    to->d_out = input_of(t->d_out, 4, HEADS, rows);
    to->dq = view_of(t->dq, 4, HEADS, rows);
    to->dk = view_of(t->dk, 4, KV_HEADS, rows);
    to->dv = view_of(t->dv, 4, KV_HEADS, rows);
    to->slopes = input_of(t->slopes, 1, 0, HEADS);
    to->rows = input_of(t->rows, 1, 0, rows);
    to->d_slopes = view_of(t->d_slopes, 1, 0, HEADS);
    to->d_rows = view_of(t->d_rows, 1, 0, rows);
    const flexc_named_tensor buffers[2] = {{sizeof buffers[0], 0, "slopes", &to->slopes},
                                           {sizeof buffers[0], 0, "rows", &to->rows}};
    const flexc_named_tensor gradients[2] = {{sizeof buffers[0], 0, "slopes", &to->d_slopes},
                                             {sizeof buffers[0], 0, "rows", &to->d_rows}};
    memcpy(to->buffers, buffers, sizeof buffers);
    memcpy(to->gradients, gradients, sizeof gradients);
    to->forward.struct_size = sizeof to->forward;
    to->forward.q = &to->q;
    to->forward.k = &to->k;
    to->forward.v = &to->v;
    to->forward.o = &to->o;
    to->forward.lse = &to->lse;
    const flexc_backward_tensors backward = {.struct_size = sizeof backward,
                                             .q = &to->q,
                                             .k = &to->k,
                                             .v = &to->v,
                                             .o = &to->o,
                                             .lse = &to->lse,
                                             .d_out = &to->d_out,
                                             .dq = &to->dq,
                                             .dk = &to->dk,
                                             .dv = &to->dv};
    to->backward = backward;
}

static const flexc_compile_options kOptions = {
    .struct_size = sizeof kOptions, .dtype = FLEXC_F32, .head_dim = DIM, .no_disk_cache = 1};
static const flexc_param_value kWidth = {
    .struct_size = sizeof kWidth, .name = "width", .value = 19};

static void compute_alone(tensors* t) {
    flexc_error* error = NULL;
    flexc_compile_options options = kOptions;
    options.device = FLEXC_DEVICE_CPU;
    flexc_kernel* kernel = NULL;
    flexc_plan* plan = NULL;
    flexc_memory* memory = NULL;
    CHECK_OK(flexc_compile(kProgram, &options, &kernel, &error));
    const flexc_sizes sizes = {sizeof sizes, 0, BATCH, HEADS, KV_HEADS, LENGTH, LENGTH};
    const flexc_plan_options plan_options = {
        .struct_size = sizeof plan_options, .params = &kWidth, .param_count = 1};
    views all;
    view_all(&all, t, LENGTH);
    CHECK_OK(flexc_plan_create(kernel, &sizes, all.buffers, 2, NULL, &plan_options, &plan, &error));
    if (plan == NULL) return;
    const size_t bytes = flexc_plan_workspace_bytes(plan);
    CHECK_OK(flexc_memory_create(FLEXC_DEVICE_CPU, 0, bytes, &memory, &error));
    const flexc_workspace workspace = {
        .struct_size = sizeof workspace, .data = flexc_memory_data(memory), .bytes = bytes};
    CHECK_OK(flexc_forward(kernel, plan, &all.forward, all.buffers, 2, &workspace, NULL, &error));
    CHECK_OK(flexc_backward(kernel, plan, &all.backward, all.buffers, 2, all.gradients, 2,
                            &workspace, NULL, &error));
    flexc_memory_free(memory);
    flexc_plan_free(plan);
    flexc_kernel_free(kernel);
}

typedef struct rank_work {
    const flexc_distributed_kernel* kernel;
    flexc_communicator* communicator;
    const flexc_shards* shards;
    flexc_distributed_options options;
    int is_wrong;        /* this rank's call has no shape that fits */
    const char* refusal; /* what it says instead of its call */
    tensors* whole;
    tensors own;
    flexc_traffic traffic;
    char explanation[256], message[256];
    flexc_status status;
} rank_work;

/* Rows of `heads` heads between a whole tensor and a rank's. */
static void move_rows(float* whole, float* own, int heads, int columns, const rank_work* work,
                      int is_to_rank) {
    const int32_t rank = flexc_communicator_rank(work->communicator);
    for (int head = 0; head < heads; ++head)
        for (size_t i = 0; i < flexc_shards_range_count(work->shards, rank); ++i) {
            flexc_rank_range range = {.struct_size = sizeof range};
            flexc_shards_range(work->shards, rank, i, &range, NULL);
            float* from = whole + (head * LENGTH + range.begin) * columns;
            const size_t count = (size_t)(range.end - range.begin) * (size_t)columns;
            memcpy(is_to_rank ? own : from, is_to_rank ? from : own, count * sizeof *own);
            own += count;
        }
}

static flexc_status run_rank(rank_work* work, flexc_error** error) {
    const int64_t rows =
        flexc_shards_rows(work->shards, flexc_communicator_rank(work->communicator));
    tensors *own = &work->own, *whole = work->whole;
    memset(own, 0xff, sizeof *own);
    memcpy(own->slopes, whole->slopes, sizeof own->slopes);
    move_rows(whole->q, own->q, BATCH * HEADS, DIM, work, 1);
    move_rows(whole->d_out, own->d_out, BATCH * HEADS, DIM, work, 1);
    move_rows(whole->k, own->k, BATCH * KV_HEADS, DIM, work, 1);
    move_rows(whole->v, own->v, BATCH * KV_HEADS, DIM, work, 1);
    views all;
    move_rows(whole->rows, own->rows, 1, 1, work, 1);
    view_all(&all, own, rows);
    const flexc_distributed_sizes sizes = {sizeof sizes, 0,           BATCH, HEADS, KV_HEADS,
                                           work->shards, work->shards};
    flexc_distributed_plan* plan = NULL;
    flexc_text* text = NULL;
    flexc_status status =
        flexc_distributed_plan_create(work->kernel, &sizes, work->communicator, all.buffers, 2,
                                      NULL, &work->options, &plan, error);
    if (status == FLEXC_OK) {
        work->traffic.struct_size = sizeof work->traffic;
        status = flexc_distributed_plan_traffic(plan, &work->traffic, error);
    }
    if (status == FLEXC_OK) status = flexc_distributed_plan_explain(plan, &text, error);
    strncpy(work->explanation, flexc_text_data(text), sizeof work->explanation - 1);
    flexc_text_free(text);
    if (work->is_wrong) all.q.struct_size = 0;
    if (status == FLEXC_OK && work->refusal != NULL)
        status = flexc_communicator_refuse(work->communicator, work->refusal, error);
    if (status == FLEXC_OK)
        status = flexc_distributed_forward(work->kernel, plan, &all.forward, all.buffers, 2, NULL,
                                           error);
    if (status == FLEXC_OK)
        status = flexc_distributed_backward(work->kernel, plan, &all.backward, all.buffers, 2,
                                            all.gradients, 2, NULL, error);
    flexc_distributed_plan_free(plan);
    return status;
}

static void* in_thread(void* given) {
    rank_work* work = given;
    flexc_error* error = NULL;
    work->status = run_rank(work, &error);
    strncpy(work->message, flexc_error_message(error), sizeof work->message - 1);
    flexc_error_free(error);
    return NULL;
}

static void run_ranks(rank_work* works) {
    flexc_error* error = NULL;
    flexc_communicator* communicators[RANKS] = {NULL};
    const flexc_communicator_options options = {.struct_size = sizeof options,
                                                .timeout_seconds = 60};
    CHECK_OK(flexc_in_process_communicators(RANKS, &options, communicators, &error));
    pthread_t threads[RANKS];
    for (int rank = 0; rank < RANKS; ++rank) {
        CHECK(flexc_communicator_rank(communicators[rank]) == rank);
        CHECK(flexc_communicator_ranks(communicators[rank]) == RANKS);
        works[rank].communicator = communicators[rank];
        CHECK(pthread_create(&threads[rank], NULL, in_thread, &works[rank]) == 0);
    }
    for (int rank = 0; rank < RANKS; ++rank)
        pthread_join(threads[rank], NULL);
}

static int near(const float* got, const float* want, size_t count) {
    double most = 1;
    for (size_t i = 0; i < count; ++i)
        most = fmax(most, fabs(want[i]));
    for (size_t i = 0; i < count; ++i)
        if (!(fabs(got[i] - want[i]) <= 2e-5 * most)) return 0;
    return 1;
}

static void compare(rank_work* works, const tensors* alone, tensors* together) {
    memset(together, 0xff, sizeof *together);
    for (int rank = 0; rank < RANKS; ++rank) {
        rank_work* work = &works[rank];
        CHECK(work->status == FLEXC_OK);
        move_rows(together->o, work->own.o, BATCH * HEADS, DIM, work, 0);
        move_rows(together->lse, work->own.lse, BATCH * HEADS, 1, work, 0);
        move_rows(together->dq, work->own.dq, BATCH * HEADS, DIM, work, 0);
        move_rows(together->dk, work->own.dk, BATCH * KV_HEADS, DIM, work, 0);
        move_rows(together->dv, work->own.dv, BATCH * KV_HEADS, DIM, work, 0);
        float d_slopes[HEADS];
        for (int h = 0; h < HEADS; ++h)
            d_slopes[h] = work->own.d_slopes[h] *
                          (work->options.reduction == FLEXC_REDUCTION_AVERAGE ? RANKS : 1);
        if (work->options.reduction != FLEXC_REDUCTION_NONE)
            CHECK(near(d_slopes, alone->d_slopes, HEADS));
    }
    CHECK(near(together->o, alone->o, QUERY_COUNT));
    CHECK(near(together->lse, alone->lse, QUERY_COUNT / DIM));
    CHECK(near(together->dq, alone->dq, QUERY_COUNT));
    CHECK(near(together->dk, alone->dk, KEY_COUNT));
    CHECK(near(together->dv, alone->dv, KEY_COUNT));
    if (works[0].options.reduction != FLEXC_REDUCTION_NONE) return;
    for (int h = 0; h < HEADS; ++h) {
        float sum = 0;
        for (int rank = 0; rank < RANKS; ++rank)
            sum += works[rank].own.d_slopes[h];
        CHECK(near(&sum, &alone->d_slopes[h], 1));
    }
}

static void fill(float* values, size_t count) {
    for (size_t i = 0; i < count; ++i)
        values[i] = random_float();
}

static void test_exchanges(const flexc_distributed_kernel* whole,
                           const flexc_distributed_kernel* sharded) {
    flexc_error* error = NULL;
    tensors* alone = calloc(1, sizeof *alone);
    tensors* together = calloc(1, sizeof *together);
    rank_work* works = calloc(RANKS, sizeof *works);
    if (alone == NULL || together == NULL || works == NULL) exit(2);
    fill(alone->q, QUERY_COUNT);
    fill(alone->d_out, QUERY_COUNT);
    fill(alone->k, KEY_COUNT);
    fill(alone->v, KEY_COUNT);
    fill(alone->slopes, HEADS);
    fill(alone->rows, LENGTH);
    compute_alone(alone);

    const flexc_rank_range uneven[] = {{sizeof uneven[0], 2, 1, LENGTH},
                                       {sizeof uneven[0], 1, 0, 1}}; /* nothing on rank 0 */
    flexc_shards* shards[3] = {NULL};
    CHECK_OK(flexc_shards_zigzag(LENGTH, RANKS, &shards[0], &error));
    CHECK_OK(flexc_shards_of(LENGTH, RANKS, uneven, 2, &shards[1], &error));
    const flexc_sizes sizes = {sizeof sizes, 0, BATCH, HEADS, KV_HEADS, LENGTH, LENGTH};
    flexc_distributed_options options = {
        .struct_size = sizeof options, .params = &kWidth, .param_count = 1, .cpu_threads = 1};
    const flexc_tensor slopes = input_of(alone->slopes, 1, 0, HEADS),
                       rows = input_of(alone->rows, 1, 0, LENGTH);
    const flexc_named_tensor buffers[] = {{sizeof buffers[0], 0, "slopes", &slopes},
                                          {sizeof buffers[0], 0, "rows", &rows}};
    CHECK_OK(flexc_shards_balanced(whole, &sizes, RANKS, buffers, 2, NULL, &options, &shards[2],
                                   &error));
    CHECK_NULL(
        flexc_shards_balanced(NULL, &sizes, RANKS, buffers, 2, NULL, &options, &shards[2], &error),
        "kernel");
    CHECK_OK(flexc_shards_balanced(whole, &sizes, RANKS, buffers, 2, NULL, &options, &shards[2],
                                   &error));

    for (int which = 0; which < 3; ++which)
        for (int32_t exchange = FLEXC_EXCHANGE_AUTOMATIC; exchange <= FLEXC_EXCHANGE_ULYSSES;
             ++exchange)
            for (int32_t reduction = FLEXC_REDUCTION_SUM; reduction <= FLEXC_REDUCTION_NONE;
                 ++reduction) {
                for (int rank = 0; rank < RANKS; ++rank) {
                    rank_work* work = &works[rank];
                    memset(work, 0, sizeof *work);
                    work->kernel = sharded;
                    work->shards = shards[which];
                    work->options = options;
                    work->options.exchange = exchange;
                    work->options.reduction = reduction;
                    work->options.gathered_bytes = which == 0; /* a head of keys at a time */
                    work->options.ranks_per_node = exchange == FLEXC_EXCHANGE_ULYSSES && which == 1;
                    work->whole = alone;
                }
                run_ranks(works);
                compare(works, alone, together);
                const flexc_traffic* traffic = &works[2].traffic;
                CHECK(exchange == FLEXC_EXCHANGE_AUTOMATIC || traffic->exchange == exchange);
                CHECK(traffic->exchange != FLEXC_EXCHANGE_AUTOMATIC && traffic->pieces > 0);
                if (exchange == FLEXC_EXCHANGE_ALL_GATHER)
                    CHECK((strstr(works[0].explanation, "in 2 pieces of heads") != NULL) ==
                          (which == 0));
                if (exchange == FLEXC_EXCHANGE_ULYSSES)
                    CHECK((strstr(works[0].explanation, "3 nodes of 1 ranks: ") != NULL) ==
                          (which == 1));
                CHECK(traffic->backward_received > traffic->forward_received);
                CHECK(traffic->fair_area > 0);
                CHECK(strncmp(works[0].explanation, "exchange: ", 10) == 0);
                for (int rank = 0; rank < RANKS; ++rank)
                    flexc_communicator_free(works[rank].communicator);
            }

    /* One rank's struct cannot be read, or it has none: all have an error at once, and may go on.
     */
    static const char* const kWrong[] = {"rank 1: q: struct_size is not set", "rank 1: no rows"};
    for (int way = 0; way < 2; ++way) {
        for (int rank = 0; rank < RANKS; ++rank) {
            memset(&works[rank], 0, sizeof works[rank]);
            works[rank].kernel = sharded;
            works[rank].shards = shards[0];
            works[rank].options = options;
            works[rank].options.exchange = FLEXC_EXCHANGE_ULYSSES;
            works[rank].whole = alone;
            works[rank].is_wrong = rank == 1 && way == 0;
            works[rank].refusal = rank == 1 && way == 1 ? "no rows" : NULL;
        }
        run_ranks(works);
        for (int rank = 0; rank < RANKS; ++rank) {
            CHECK(works[rank].status == FLEXC_ERROR_INVALID_OPTION);
            CHECK(strcmp(works[rank].message, kWrong[way] + (rank == 1 ? strlen("rank 1: ") : 0)) ==
                  0);
            flexc_communicator_free(works[rank].communicator);
        }
    }
    for (int which = 0; which < 3; ++which)
        flexc_shards_free(shards[which]);
    free(works);
    free(together);
    free(alone);
}

static void test_refusals(const flexc_distributed_kernel* kernel) {
    flexc_error* error = NULL;
    flexc_distributed_kernel* none = NULL;
    CHECK_NULL(flexc_distributed_compile(NULL, &kOptions, NULL, 0, &none, &error), "text");
    CHECK_NULL(flexc_distributed_compile("score", &kOptions, NULL, 1, &none, &error), "sharded");
    CHECK_NULL(flexc_distributed_compile("score", &kOptions, NULL, 0, NULL, &error), "kernel");
    flexc_compile_options paged = kOptions;
    paged.key_layout = FLEXC_LAYOUT_PAGED;
    CHECK_REFUSED(flexc_distributed_compile("score", &paged, NULL, 0, &none, &error),
                  FLEXC_ERROR_UNSUPPORTED, "both dense or both ragged");
    const flexc_sharded_buffer nameless = {.struct_size = sizeof nameless, .buffer = "rows"};
    CHECK_REFUSED(flexc_distributed_compile(kProgram, &kOptions, &nameless, 1, &none, &error),
                  FLEXC_ERROR_INVALID_OPTION, "sharded buffer 'rows' has no dim");
    CHECK(none == NULL);

    flexc_communicator* communicator = NULL;
    flexc_communicator_options late = {.struct_size = sizeof late, .timeout_seconds = -1};
    CHECK_REFUSED(flexc_in_process_communicators(1, &late, &communicator, &error),
                  FLEXC_ERROR_INVALID_OPTION, "timeout_seconds");
    CHECK_REFUSED(flexc_in_process_communicators(0, NULL, &communicator, &error),
                  FLEXC_ERROR_INVALID_OPTION, "0 ranks");
    CHECK_REFUSED(flexc_in_process_communicators(INT32_MAX, NULL, &communicator, &error),
                  FLEXC_ERROR_INVALID_OPTION, "2147483647 ranks");
    CHECK_NULL(flexc_in_process_communicators(1, NULL, NULL, &error), "communicators");
    CHECK_NULL(flexc_mpi_communicator(NULL, NULL, NULL, &error), "communicator");
    CHECK_OK(flexc_in_process_communicators(1, NULL, &communicator, &error));
    flexc_shards* shards = NULL;
    CHECK_OK(flexc_shards_contiguous(LENGTH, 1, &shards, &error));
    flexc_distributed_sizes sizes = {sizeof sizes, 0, BATCH, HEADS, KV_HEADS, shards, NULL};
    flexc_distributed_plan* plan = NULL;
    CHECK_NULL(flexc_distributed_plan_create(kernel, &sizes, communicator, NULL, 0, NULL, NULL,
                                             &plan, &error),
               "sizes.keys");
    sizes.keys = shards;
    CHECK_NULL(
        flexc_distributed_plan_create(kernel, &sizes, NULL, NULL, 0, NULL, NULL, &plan, &error),
        "communicator");
    CHECK_NULL(flexc_distributed_plan_create(NULL, &sizes, communicator, NULL, 0, NULL, NULL, &plan,
                                             &error),
               "kernel");
    flexc_distributed_options options = {.struct_size = sizeof options, .exchange = 9};
    CHECK_REFUSED(flexc_distributed_plan_create(kernel, &sizes, communicator, NULL, 0, NULL,
                                                &options, &plan, &error),
                  FLEXC_ERROR_INVALID_OPTION, "exchange has no value 9");
    options.exchange = 0;
    options.reduction = 3;
    CHECK_REFUSED(flexc_distributed_plan_create(kernel, &sizes, communicator, NULL, 0, NULL,
                                                &options, &plan, &error),
                  FLEXC_ERROR_INVALID_OPTION, "reduction has no value 3");
    CHECK(plan == NULL);
    CHECK_NULL(flexc_distributed_forward(kernel, NULL, NULL, NULL, 0, NULL, &error), "plan");
    CHECK_NULL(flexc_distributed_backward(NULL, NULL, NULL, NULL, 0, NULL, 0, NULL, &error),
               "kernel");
    CHECK_NULL(flexc_distributed_plan_traffic(NULL, NULL, &error), "plan");
    CHECK_NULL(flexc_distributed_plan_explain(NULL, NULL, &error), "explanation");
    flexc_shards_free(shards);
    CHECK_NULL(flexc_communicator_refuse(NULL, "why", &error), "communicator");
    CHECK_NULL(flexc_communicator_refuse(communicator, NULL, &error), "why");
    flexc_communicator_free(communicator);
    flexc_communicator_free(NULL);
    flexc_distributed_plan_free(NULL);
    flexc_distributed_kernel_free(NULL);
    CHECK(flexc_communicator_rank(NULL) == -1 && flexc_communicator_ranks(NULL) == 0);
}

/* Two requests on one rank: weights of a row are those of its request's keys alone. */
static void test_ragged(void) {
    flexc_error* error = NULL;
    flexc_compile_options options = kOptions;
    options.query_layout = options.key_layout = FLEXC_LAYOUT_RAGGED;
    flexc_distributed_kernel* kernel = NULL;
    CHECK_OK(flexc_distributed_compile("score_mod = b * 0.0 + kv_idx * 0.0", &options, NULL, 0,
                                       &kernel, &error));
    flexc_communicator* alone = NULL;
    CHECK_OK(flexc_in_process_communicators(1, NULL, &alone, &error));
    enum { ROWS = 5 };
    flexc_shards* shards = NULL;
    CHECK_OK(flexc_shards_contiguous(ROWS, 1, &shards, &error));
    static const int32_t kStarts[] = {0, 2, ROWS};
    flexc_lengths lengths = {.struct_size = sizeof lengths,
                             .cu_seqlens_q = kStarts,
                             .cu_seqlens_q_count = 3,
                             .cu_seqlens_k = kStarts,
                             .cu_seqlens_k_count = 3};
    const flexc_distributed_sizes sizes = {sizeof sizes, 0, 2, 1, 1, shards, shards};
    flexc_distributed_options given = {.struct_size = sizeof given, .lengths = &lengths};
    flexc_distributed_plan* plan = NULL;
    CHECK_OK(
        flexc_distributed_plan_create(kernel, &sizes, alone, NULL, 0, NULL, &given, &plan, &error));
    float q[ROWS * DIM] = {0}, v[ROWS * DIM] = {0}, o[ROWS * DIM];
    for (int row = 0; row < ROWS; ++row)
        v[row * DIM] = (float)row;
    flexc_tensor packed[3] = {view_of(q, 3, 1, 0), view_of(v, 3, 1, 0), view_of(o, 3, 1, 0)};
    for (int i = 0; i < 3; ++i) {
        const int64_t shape[] = {ROWS, 1, DIM};
        memcpy(packed[i].shape, shape, sizeof shape);
    }
    flexc_forward_tensors forward = {.struct_size = sizeof forward,
                                     .q = &packed[0],
                                     .k = &packed[0],
                                     .v = &packed[1],
                                     .o = &packed[2]};
    CHECK_OK(flexc_distributed_forward(kernel, plan, &forward, NULL, 0, NULL, &error));
    CHECK(fabs(o[0] - 0.5) < 1e-6 && fabs(o[4 * DIM] - 3) < 1e-6);
    const flexc_length_tensors own = {.struct_size = sizeof own};
    forward.lengths = &own;
    CHECK_REFUSED(flexc_distributed_forward(kernel, plan, &forward, NULL, 0, NULL, &error),
                  FLEXC_ERROR_INVALID_OPTION, "lengths are given to the plan");
    flexc_distributed_plan_free(plan);
    lengths.cu_seqlens_k_count = 2;
    CHECK_REFUSED(
        flexc_distributed_plan_create(kernel, &sizes, alone, NULL, 0, NULL, &given, &plan, &error),
        FLEXC_ERROR_INVALID_OPTION, "cu_seqlens_k");
    lengths.struct_size = 0;
    CHECK_REFUSED(
        flexc_distributed_plan_create(kernel, &sizes, alone, NULL, 0, NULL, &given, &plan, &error),
        FLEXC_ERROR_INVALID_OPTION, "lengths: struct_size is not set");
    flexc_shards_free(shards);
    flexc_communicator_free(alone);
    flexc_distributed_kernel_free(kernel);
}

static void test_calls(void) {
    flexc_error* error = NULL;
    flexc_distributed_kernel *whole = NULL, *sharded = NULL;
    const flexc_sharded_buffer rows = {
        .struct_size = sizeof rows, .buffer = "rows", .dim = "Q_LEN"};
    CHECK_OK(flexc_distributed_compile(kProgram, &kOptions, NULL, 0, &whole, &error));
    CHECK_OK(flexc_distributed_compile(kProgram, &kOptions, &rows, 1, &sharded, &error));
    if (whole == NULL || sharded == NULL) return;
    test_exchanges(whole, sharded);
    test_refusals(whole);
    test_ragged();
    flexc_distributed_kernel_free(whole);
    flexc_distributed_kernel_free(sharded);
}
#endif

void test_ranks(void) {
    test_shards();
    test_launched();
    test_nccl_refusals();
#if FLEXC_WITH_CPU
    test_calls();
#endif
}
