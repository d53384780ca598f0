/* Compile, look, plan, launch: forward and backward against loops in double precision. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "flexc/version.h"

enum { HEADS = 3, QUERIES = 501, KEYS = 293, DIM = 8 };
enum { Q_COUNT = HEADS * QUERIES * DIM, KV_COUNT = HEADS * KEYS * DIM, ROWS = HEADS * QUERIES };

static flexc_error* error = NULL;

/* float array to tensor */
static flexc_tensor tensor_of(float* data, int32_t rank, int64_t a, int64_t b, int64_t c,
                              int64_t d) {
    flexc_tensor tensor = {.struct_size = sizeof tensor,
                           .dtype = FLEXC_F32,
                           .data = data,
                           .rank = rank,
                           .shape = {a, b, c, d}};
    return tensor;
}

static flexc_tensor input_of(const float* data, int32_t rank, int64_t a, int64_t b, int64_t c,
                             int64_t d) {
    flexc_tensor tensor = tensor_of(NULL, rank, a, b, c, d);
    tensor.const_data = data;
    return tensor;
}

static flexc_compile_options cpu_options(void) {
    flexc_compile_options options = {.struct_size = sizeof options,
                                     .dtype = FLEXC_F32,
                                     .head_dim = DIM,
                                     .device = FLEXC_DEVICE_CPU,
                                     .no_disk_cache = 1};
    return options;
}

/* The caller's own threads: none, and the last index first. */
typedef struct pool {
    int calls;
    int most;
} pool;

static void backwards(void* user, int32_t count, void (*work)(void* context, int32_t index),
                      void* context) {
    pool* one = user;
    ++one->calls;
    if (count > one->most) one->most = count;
    for (int32_t i = count; i-- > 0;)
        work(context, i);
}

static void test_values(void) {
    CHECK(flexc_abi_version() == FLEXC_ABI_VERSION);
    CHECK(strcmp(flexc_version(), FLEXC_VERSION) == 0);
    CHECK(strcmp(flexc_status_name(FLEXC_OK), "ok") == 0);
    CHECK(strcmp(flexc_status_name(FLEXC_ERROR_CANCELLED), "cancelled") == 0);
    CHECK(flexc_status_name(-1) == NULL && flexc_status_name(FLEXC_ERROR_CANCELLED + 1) == NULL);
    for (int32_t dtype = FLEXC_F64; dtype <= FLEXC_BOOL; ++dtype) {
        CHECK(flexc_dtype_of(flexc_dtype_name(dtype)) == dtype);
        CHECK(flexc_dtype_size(dtype) >= 1 && flexc_dtype_size(dtype) <= 8);
    }
    CHECK(flexc_dtype_size(FLEXC_BF16) == 2);
    CHECK(flexc_dtype_name(0) == NULL && flexc_dtype_name(FLEXC_BOOL + 1) == NULL);
    CHECK(flexc_dtype_size(0) == 0 && flexc_dtype_size(99) == 0);
    CHECK(flexc_dtype_of("f33") == FLEXC_DEFAULT_DTYPE);
    CHECK(flexc_dtype_of(NULL) == FLEXC_DEFAULT_DTYPE);
    CHECK(flexc_error_status(NULL) == FLEXC_OK && flexc_error_message(NULL)[0] == '\0');
    flexc_error_free(NULL);

    int32_t device = -1, device_index = -1;
    CHECK_OK(flexc_default_device(&device, &device_index, &error));
    CHECK(device == FLEXC_DEVICE_CPU || device == FLEXC_DEVICE_CUDA);
    CHECK(device_index == 0);
    CHECK_NULL(flexc_default_device(NULL, &device_index, &error), "device");
    CHECK_NULL(flexc_default_device(&device, NULL, &error), "device_index");
}

static void test_signature(void) {
    const char* text = "buffer t: i32[N, Q_LEN]\nparam cap: f32 = 20.0\n"
                       "score_mod = cap * tanh((score + D) / cap)\n"
                       "mask_mod = t[h, q_idx] < kv_idx and kv_idx < KV_LEN - 1";
    flexc_signature* signature = NULL;
    CHECK_OK(flexc_check(text, NULL, &signature, &error));
    flexc_signature_info info = {.struct_size = sizeof info};
    CHECK_OK(flexc_signature_get(signature, &info, &error));
    CHECK(info.buffer_count == 1 && info.param_count == 1 && info.size_count == 2);
    CHECK(info.mask_size_count == 1);
    CHECK(strstr(info.mask_depends_on, "kv_idx") != NULL && strstr(info.score_depends_on, "score"));
    CHECK(strcmp(flexc_signature_size(signature, 0), "KV_LEN") == 0 ||
          strcmp(flexc_signature_size(signature, 1), "KV_LEN") == 0);
    CHECK(flexc_signature_size(signature, 2) == NULL && flexc_signature_size(NULL, 0) == NULL);
    CHECK(strcmp(flexc_signature_mask_size(signature, 0), "KV_LEN") == 0);
    CHECK(flexc_signature_mask_size(signature, 1) == NULL);
    CHECK(flexc_signature_mask_size(NULL, 0) == NULL);
    CHECK(flexc_signature_warning(signature, info.warning_count) == NULL);
    CHECK(flexc_signature_warning(NULL, 0) == NULL);
    flexc_buffer_info buffer = {.struct_size = sizeof buffer};
    CHECK_OK(flexc_signature_buffer(signature, 0, &buffer, &error));
    CHECK(strcmp(buffer.name, "t") == 0 && buffer.dtype == FLEXC_I32 && buffer.dim_count == 2);
    CHECK(strcmp(buffer.dims[0], "N") == 0 && strcmp(buffer.dims[1], "Q_LEN") == 0);
    CHECK_REFUSED(flexc_signature_buffer(signature, 1, &buffer, &error), FLEXC_ERROR_INVALID_OPTION,
                  "no such buffer");
    flexc_param_info param = {.struct_size = sizeof param};
    CHECK_OK(flexc_signature_param(signature, 0, &param, &error));
    CHECK(strcmp(param.name, "cap") == 0 && param.has_default == 1 && param.default_value == 20.0);
    CHECK_REFUSED(flexc_signature_param(signature, 1, &param, &error), FLEXC_ERROR_INVALID_OPTION,
                  "no such param");
    CHECK_NULL(flexc_signature_get(signature, NULL, &error), "info");
    CHECK_NULL(flexc_signature_get(NULL, &info, &error), "signature");
    flexc_signature_free(signature);
    flexc_signature_free(NULL);
    CHECK_NULL(flexc_check(text, NULL, NULL, &error), "signature");
    CHECK_REFUSED(flexc_check("score + kv_idy", NULL, &signature, &error), FLEXC_ERROR_SYNTAX,
                  "did you mean 'kv_idx'");
    CHECK(signature == NULL);
}

static void test_supports(void) {
    flexc_compile_options options = cpu_options();
    CHECK(flexc_supports("score", &options, NULL, NULL) ==
          (FLEXC_WITH_CPU ? FLEXC_OK : FLEXC_ERROR_LIBRARY_MISSING));
    options.backward_kernel = FLEXC_BACKWARD_SPECIALIZED;
    CHECK_REFUSED(flexc_supports("score", &options, NULL, &error), FLEXC_ERROR_UNSUPPORTED,
                  "this is the CPU");
    CHECK_REFUSED(flexc_supports("score", NULL, "sm_75", &error), FLEXC_ERROR_INVALID_OPTION,
                  "sm_75");
    CHECK_REFUSED(flexc_supports("score +", NULL, NULL, &error), FLEXC_ERROR_SYNTAX, "score +");
    CHECK_NULL(flexc_supports(NULL, NULL, NULL, &error), "text");
}

static void test_cancel(void) {
    flexc_cancel_token* token = flexc_cancel_token_create();
    CHECK(token != NULL && !flexc_is_cancelled(token));
    flexc_cancel(token);
    flexc_cancel(NULL);
    CHECK(flexc_is_cancelled(token) && !flexc_is_cancelled(NULL));
    flexc_compile_options options = cpu_options();
    options.cancel = token;
    flexc_kernel* kernel = NULL;
    CHECK_REFUSED(flexc_compile("score - 0.125", &options, &kernel, &error), FLEXC_ERROR_CANCELLED,
                  "");
    CHECK(kernel == NULL);
    flexc_cancel_token_free(token);
    flexc_cancel_token_free(NULL);
}

/* Tensors of one forward and backward, filled at random. */
typedef struct tensors {
    float q[Q_COUNT], k[KV_COUNT], v[KV_COUNT], d_out[Q_COUNT], bias[HEADS * KEYS];
    float o[Q_COUNT], lse[ROWS], dq[Q_COUNT], dk[KV_COUNT], dv[KV_COUNT], d_bias[HEADS * KEYS];
} tensors;

static void fill(float* data, int count) {
    for (int i = 0; i < count; ++i)
        data[i] = random_float();
}

static int is_close(float got, double expected) {
    return fabs((double)got - expected) <= 2e-4 * (1 + fabs(expected));
}

/* softmax(scale * q . k + bias[h, kv]) where q_idx + 7 >= kv_idx, and its derivatives. */
static void check_numbers(const tensors* t, double scale, double cap) {
    static double d_bias[HEADS * KEYS], dk[KV_COUNT], dv[KV_COUNT];
    int wrong = 0;
    memset(d_bias, 0, sizeof d_bias);
    memset(dk, 0, sizeof dk);
    memset(dv, 0, sizeof dv);
    for (int h = 0; h < HEADS; ++h)
        for (int row = 0; row < QUERIES; ++row) {
            const float* q = t->q + (h * QUERIES + row) * DIM;
            const float* d_out = t->d_out + (h * QUERIES + row) * DIM;
            const int visible = row + 8 < KEYS ? row + 8 : KEYS;
            double p[KEYS], o[DIM] = {0}, dq[DIM] = {0}, sum = 0, delta = 0;
            for (int j = 0; j < visible; ++j) {
                double s = 0;
                for (int d = 0; d < DIM; ++d)
                    s += (double)q[d] * t->k[(h * KEYS + j) * DIM + d];
                p[j] = exp(scale * s + cap * t->bias[h * KEYS + j]);
                sum += p[j];
            }
            for (int j = 0; j < visible; ++j) {
                p[j] /= sum;
                for (int d = 0; d < DIM; ++d)
                    o[d] += p[j] * t->v[(h * KEYS + j) * DIM + d];
            }
            for (int d = 0; d < DIM; ++d)
                delta += o[d] * d_out[d];
            for (int j = 0; j < visible; ++j) {
                const int key = (h * KEYS + j) * DIM;
                double dp = 0;
                for (int d = 0; d < DIM; ++d) {
                    dp += (double)d_out[d] * t->v[key + d];
                    dv[key + d] += p[j] * d_out[d];
                }
                const double ds = p[j] * (dp - delta);
                d_bias[h * KEYS + j] += cap * ds;
                for (int d = 0; d < DIM; ++d) {
                    dq[d] += scale * ds * t->k[key + d];
                    dk[key + d] += scale * ds * q[d];
                }
            }
            wrong += !is_close(t->lse[h * QUERIES + row], log(sum));
            for (int d = 0; d < DIM; ++d) {
                wrong += !is_close(t->o[(h * QUERIES + row) * DIM + d], o[d]);
                wrong += !is_close(t->dq[(h * QUERIES + row) * DIM + d], dq[d]);
            }
        }
    for (int i = 0; i < KV_COUNT; ++i)
        wrong += !is_close(t->dk[i], dk[i]) + !is_close(t->dv[i], dv[i]);
    for (int i = 0; i < HEADS * KEYS; ++i)
        wrong += !is_close(t->d_bias[i], d_bias[i]);
    if (wrong != 0) fprintf(stderr, "%d numbers are wrong\n", wrong);
    CHECK(wrong == 0);
}

static void hear(void* user, int32_t level, const char* text, size_t length) {
    CHECK(level >= FLEXC_LOG_DEBUG && level <= FLEXC_LOG_ERROR && text != NULL);
    *(size_t*)user += length;
}

static flexc_kernel* compiled(void) {
    const char* dims[] = {"H", "KV_LEN"};
    flexc_buffer_declaration bias = {
        .struct_size = sizeof bias, .name = "bias", .dims = dims, .dim_count = 2, .grad = 1};
    flexc_param_declaration cap = {.struct_size = sizeof cap, .name = "cap", .value = 3.0};
    size_t heard = 0;
    flexc_compile_options options = cpu_options();
    options.buffers = &bias;
    options.buffer_count = 1;
    options.params = &cap;
    options.param_count = 1;
    options.mask_mod = "q_idx + 7 >= kv_idx";
    options.log = hear;
    options.log_user = &heard;
    options.report_out_of_range = 1;
    flexc_kernel* kernel = NULL;
    CHECK_OK(flexc_compile("score + cap * bias[h, kv_idx]", &options, &kernel, &error));
    CHECK(kernel != NULL && heard > 0);
    CHECK_NULL(flexc_compile("score", &options, NULL, &error), "kernel");
    options.struct_size = 3;
    flexc_kernel* none = NULL;
    CHECK_REFUSED(flexc_compile("score", &options, &none, &error), FLEXC_ERROR_INVALID_OPTION,
                  "struct_size");
    return kernel;
}

static void look_at(const flexc_kernel* kernel) {
    flexc_kernel_info info = {.struct_size = sizeof info};
    CHECK_OK(flexc_kernel_get(kernel, &info, &error));
    CHECK(info.device == FLEXC_DEVICE_CPU && info.from_cache == 0 && info.compile_ms > 0);
    CHECK(info.dtype == FLEXC_F32 && info.head_dim == DIM && info.head_dim_v == DIM);
    CHECK(info.forward_only == 0 && info.function_count == 1);
    flexc_function_info function = {.struct_size = sizeof function};
    CHECK_OK(flexc_kernel_function(kernel, 0, &function, &error));
    CHECK(function.name[0] != '\0' && function.reason[0] != '\0' && function.schedule[0] == '\0');
    CHECK_REFUSED(flexc_kernel_function(kernel, 1, &function, &error), FLEXC_ERROR_INVALID_OPTION,
                  "no such function");
    CHECK_NULL(flexc_kernel_get(NULL, &info, &error), "kernel");
    int32_t happened = 7;
    CHECK_OK(flexc_kernel_out_of_range(kernel, &happened, &error));
    CHECK(happened == 0);
    CHECK_NULL(flexc_kernel_out_of_range(kernel, NULL, &error), "happened");
}

static void launch(const flexc_kernel* kernel, tensors* t, const flexc_plan_options* options) {
    const flexc_sizes sizes = {.struct_size = sizeof sizes,
                               .batch = 1,
                               .heads = HEADS,
                               .kv_heads = HEADS,
                               .q_len = QUERIES,
                               .kv_len = KEYS};
    const flexc_tensor bias = input_of(t->bias, 2, HEADS, KEYS, 0, 0);
    const flexc_tensor d_bias = tensor_of(t->d_bias, 2, HEADS, KEYS, 0, 0);
    const flexc_named_tensor buffers = {
        .struct_size = sizeof buffers, .name = "bias", .tensor = &bias};
    const flexc_named_tensor gradients = {
        .struct_size = sizeof gradients, .name = "bias", .tensor = &d_bias};
    flexc_plan* plan = NULL;
    CHECK_OK(flexc_plan_create(kernel, &sizes, &buffers, 1, NULL, options, &plan, &error));
    if (plan == NULL) return;
    flexc_sizes again = {.struct_size = sizeof again};
    CHECK_OK(flexc_plan_sizes(plan, &again, &error));
    CHECK(memcmp(&again, &sizes, sizeof sizes) == 0);
    CHECK_NULL(flexc_plan_sizes(NULL, &again, &error), "plan");
    CHECK_NULL(flexc_plan_sizes(plan, NULL, &error), "sizes");
    CHECK_OK(flexc_plan_update(kernel, plan, &buffers, 1, NULL, &error));
    CHECK_NULL(flexc_plan_update(kernel, NULL, &buffers, 1, NULL, &error), "plan");
    CHECK(flexc_plan_block_mask_bytes(NULL) == 0 && flexc_plan_workspace_bytes(NULL) == 0);
    CHECK(flexc_plan_block_mask_bytes(plan) == 0);

    flexc_memory* memory = NULL;
    const size_t bytes = flexc_plan_workspace_bytes(plan);
    CHECK_OK(flexc_memory_create(FLEXC_DEVICE_CPU, 0, bytes, &memory, &error));
    const flexc_workspace workspace = {
        .struct_size = sizeof workspace, .data = flexc_memory_data(memory), .bytes = bytes};

    const flexc_tensor q = input_of(t->q, 4, 1, HEADS, QUERIES, DIM);
    const flexc_tensor k = input_of(t->k, 4, 1, HEADS, KEYS, DIM);
    const flexc_tensor v = input_of(t->v, 4, 1, HEADS, KEYS, DIM);
    const flexc_tensor o = tensor_of(t->o, 4, 1, HEADS, QUERIES, DIM);
    const flexc_tensor lse = tensor_of(t->lse, 3, 1, HEADS, QUERIES, 0);
    flexc_forward_tensors forward = {
        .struct_size = sizeof forward, .q = &q, .k = &k, .v = &v, .o = &o, .lse = &lse};
    CHECK_OK(flexc_forward(kernel, plan, &forward, &buffers, 1, &workspace, NULL, &error));

    const flexc_tensor o_given = input_of(t->o, 4, 1, HEADS, QUERIES, DIM);
    const flexc_tensor lse_given = input_of(t->lse, 3, 1, HEADS, QUERIES, 0);
    const flexc_tensor d_out = input_of(t->d_out, 4, 1, HEADS, QUERIES, DIM);
    const flexc_tensor dq = tensor_of(t->dq, 4, 1, HEADS, QUERIES, DIM);
    const flexc_tensor dk = tensor_of(t->dk, 4, 1, HEADS, KEYS, DIM);
    const flexc_tensor dv = tensor_of(t->dv, 4, 1, HEADS, KEYS, DIM);
    flexc_backward_tensors backward = {.struct_size = sizeof backward,
                                       .q = &q,
                                       .k = &k,
                                       .v = &v,
                                       .o = &o_given,
                                       .lse = &lse_given,
                                       .d_out = &d_out,
                                       .dq = &dq,
                                       .dk = &dk,
                                       .dv = &dv};
    CHECK_OK(flexc_backward(kernel, plan, &backward, &buffers, 1, &gradients, 1, &workspace, NULL,
                            &error));

    /* What is only read may not be written, and a tensor has one pointer. */
    backward.dk = &k;
    CHECK_REFUSED(flexc_backward(kernel, plan, &backward, &buffers, 1, &gradients, 1, &workspace,
                                 NULL, &error),
                  FLEXC_ERROR_INVALID_OPTION, "dk: the call writes to it");
    forward.o = &o_given;
    CHECK_REFUSED(flexc_forward(kernel, plan, &forward, &buffers, 1, &workspace, NULL, &error),
                  FLEXC_ERROR_INVALID_OPTION, "o: the call writes to it");
    flexc_tensor both = o;
    both.const_data = t->q;
    forward.o = &both;
    CHECK_REFUSED(flexc_forward(kernel, plan, &forward, &buffers, 1, &workspace, NULL, &error),
                  FLEXC_ERROR_INVALID_OPTION, "data and const_data");
    CHECK_NULL(flexc_forward(NULL, plan, &forward, &buffers, 1, &workspace, NULL, &error),
               "kernel");
    flexc_memory_free(memory);
    flexc_plan_free(plan);
}

static void test_launches(void) {
    flexc_kernel* kernel = compiled();
    if (kernel == NULL) return;
    look_at(kernel);
    tensors* first = calloc(1, sizeof *first);
    tensors* second = calloc(1, sizeof *second);
    if (first == NULL || second == NULL) exit(2);
    fill(first->q, Q_COUNT);
    fill(first->k, KV_COUNT);
    fill(first->v, KV_COUNT);
    fill(first->d_out, Q_COUNT);
    fill(first->bias, HEADS * KEYS);
    *second = *first;
    launch(kernel, first, NULL);
    check_numbers(first, 1 / sqrt(DIM), 3.0);

    const flexc_param_value cap = {.struct_size = sizeof cap, .name = "cap", .value = -1.5};
    pool threads = {0, 0};
    flexc_plan_options options = {.struct_size = sizeof options,
                                  .has_scale = 1,
                                  .scale = 0.7,
                                  .params = &cap,
                                  .param_count = 1,
                                  .cpu_threads = 3,
                                  .parallel_for = backwards,
                                  .parallel_user = &threads};
    launch(kernel, second, &options);
    check_numbers(second, 0.7, -1.5);
    CHECK(threads.calls > 0 && threads.most == 3);

    options.cpu_threads = -1;
    flexc_sizes sizes = {.struct_size = sizeof sizes,
                         .batch = 1,
                         .heads = 1,
                         .kv_heads = 1,
                         .q_len = 1,
                         .kv_len = 1};
    flexc_plan* plan = NULL;
    CHECK_REFUSED(flexc_plan_create(kernel, &sizes, NULL, 0, NULL, &options, &plan, &error),
                  FLEXC_ERROR_INVALID_OPTION, "cpu_threads.count is -1");
    CHECK_NULL(flexc_plan_create(kernel, NULL, NULL, 0, NULL, NULL, &plan, &error), "sizes");
    sizes.heads = 0;
    CHECK_REFUSED(flexc_plan_create(kernel, &sizes, NULL, 0, NULL, NULL, &plan, &error),
                  FLEXC_ERROR_INVALID_OPTION, "");
    CHECK(plan == NULL);
    flexc_plan_free(NULL);
    free(first);
    free(second);
    flexc_kernel_free(kernel);
    flexc_kernel_free(NULL);
}

/* lse is the logarithm of how many keys a row sees. */
static void test_count_visible(void) {
    enum { LENGTH = 37 };
    flexc_compile_options options = cpu_options();
    options.count_visible = 1;
    options.mask_mod = "q_idx >= kv_idx";
    flexc_kernel* kernel = NULL;
    CHECK_OK(flexc_compile("score * 3", &options, &kernel, &error));
    if (kernel == NULL) return;
    flexc_kernel_info info = {.struct_size = sizeof info};
    CHECK_OK(flexc_kernel_get(kernel, &info, &error));
    CHECK(info.forward_only == 1);
    const flexc_sizes sizes = {.struct_size = sizeof sizes,
                               .batch = 1,
                               .heads = 1,
                               .kv_heads = 1,
                               .q_len = LENGTH,
                               .kv_len = LENGTH};
    flexc_plan* plan = NULL;
    CHECK_OK(flexc_plan_create(kernel, &sizes, NULL, 0, NULL, NULL, &plan, &error));
    float in[LENGTH * DIM], out[LENGTH * DIM], seen[LENGTH];
    fill(in, LENGTH * DIM);
    const flexc_tensor q = input_of(in, 4, 1, 1, LENGTH, DIM);
    const flexc_tensor o = tensor_of(out, 4, 1, 1, LENGTH, DIM);
    const flexc_tensor lse = tensor_of(seen, 3, 1, 1, LENGTH, 0);
    const flexc_forward_tensors forward = {
        .struct_size = sizeof forward, .q = &q, .k = &q, .v = &q, .o = &o, .lse = &lse};
    flexc_memory* memory = NULL;
    CHECK_OK(flexc_memory_create(FLEXC_DEVICE_CPU, 0, flexc_plan_workspace_bytes(plan), &memory,
                                 &error));
    const flexc_workspace workspace = {.struct_size = sizeof workspace,
                                       .data = flexc_memory_data(memory),
                                       .bytes = flexc_memory_bytes(memory)};
    CHECK_OK(flexc_forward(kernel, plan, &forward, NULL, 0, &workspace, NULL, &error));
    for (int row = 0; row < LENGTH; ++row)
        CHECK(is_close(seen[row], log(row + 1)));
    flexc_memory_free(memory);
    flexc_plan_free(plan);
    flexc_kernel_free(kernel);
}

void test_kernels(void) {
    test_values();
    test_signature();
    test_supports();
    if (!FLEXC_WITH_CPU) return;
    test_cancel();
    test_launches();
    test_count_visible();
}
