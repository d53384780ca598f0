/* A C program of somebody who has installed flexc; its project enables no C++. */
#include <flexc/flexc_c.h>
#include <flexc/version.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(flexc_error* error) {
    fprintf(stderr, "%s\n", flexc_error_message(error));
    flexc_error_free(error);
    return 1;
}

static flexc_tensor rows_of_four(float* data, int64_t rows) {
    flexc_tensor tensor = {.struct_size = sizeof tensor,
                           .dtype = FLEXC_F32,
                           .data = data,
                           .rank = 4,
                           .shape = {1, 1, rows, 4}};
    return tensor;
}

/* Two keys with equal scores: the mean of their values. */
static int attend(void) {
    flexc_compile_options options = {.struct_size = sizeof options,
                                     .dtype = FLEXC_F32,
                                     .head_dim = 4,
                                     .device = FLEXC_DEVICE_CPU};
    flexc_kernel* kernel = NULL;
    flexc_plan* plan = NULL;
    flexc_error* error = NULL;
    if (flexc_compile("score", &options, &kernel, &error) != FLEXC_OK) return fail(error);
    flexc_sizes sizes = {.struct_size = sizeof sizes,
                         .batch = 1,
                         .heads = 1,
                         .kv_heads = 1,
                         .q_len = 1,
                         .kv_len = 2};
    if (flexc_plan_create(kernel, &sizes, NULL, 0, NULL, NULL, &plan, &error) != FLEXC_OK)
        return fail(error);

    float q[4] = {0}, k[8] = {0}, v[8] = {1, 1, 1, 1, 4, 4, 4, 4}, o[4] = {0};
    flexc_tensor tq = rows_of_four(q, 1), tk = rows_of_four(k, 2), tv = rows_of_four(v, 2),
                 to = rows_of_four(o, 1);
    flexc_forward_tensors tensors = {
        .struct_size = sizeof tensors, .q = &tq, .k = &tk, .v = &tv, .o = &to};
    const size_t bytes = flexc_plan_workspace_bytes(plan);
    char* memory = malloc(bytes + 256);
    flexc_workspace workspace = {.struct_size = sizeof workspace,
                                 .data = memory + (256 - (uintptr_t)memory % 256) % 256,
                                 .bytes = bytes};
    if (flexc_forward(kernel, plan, &tensors, NULL, 0, &workspace, NULL, &error) != FLEXC_OK)
        return fail(error);
    printf("attention %g\n", (double)o[3]);
    free(memory);
    flexc_plan_free(plan);
    flexc_kernel_free(kernel);
    return 0;
}

int main(int count, char** arguments) {
    printf("flexc %s\n", flexc_version());
    if (strcmp(flexc_version(), FLEXC_VERSION) != 0) return 1;
    if (flexc_abi_version() != FLEXC_ABI_VERSION) return 1;

    const char* dims[] = {"H"};
    flexc_buffer_declaration slopes = {
        .struct_size = sizeof slopes, .name = "slopes", .dims = dims, .dim_count = 1, .grad = 1};
    flexc_compile_options options = {
        .struct_size = sizeof options, .buffers = &slopes, .buffer_count = 1};
    flexc_signature* signature = NULL;
    flexc_error* error = NULL;
    if (flexc_check("score + slopes[h] * (kv_idx - q_idx)", &options, &signature, &error) !=
        FLEXC_OK)
        return fail(error);
    flexc_signature_info info = {.struct_size = sizeof info};
    if (flexc_signature_get(signature, &info, &error) != FLEXC_OK) return fail(error);
    for (size_t i = 0; i < info.buffer_count; ++i) {
        flexc_buffer_info buffer = {.struct_size = sizeof buffer};
        if (flexc_signature_buffer(signature, i, &buffer, &error) != FLEXC_OK) return fail(error);
        printf("buffer %s, first dim %s\n", buffer.name, buffer.dims[0]);
    }
    flexc_signature_free(signature);

    if (flexc_check("score + kv_idy", NULL, &signature, &error) != FLEXC_ERROR_SYNTAX) return 1;
    printf("%s\n", flexc_error_message(error));
    flexc_error_free(error);
    return count > 1 && strcmp(arguments[1], "ON") == 0 ? attend() : 0;
}
