/* A C program that has MPI already, and lends a communicator: of its two halves each is a problem
 * of its own. Ranks of a half have one key each, whose value is the rank's number. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <mpi.h>

#include "flexc/flexc_distributed_c.h"

enum { DIM = 8 };

static void require(flexc_status status, flexc_error* error) {
    if (status == FLEXC_OK) return;
    fprintf(stderr, "%s\n", flexc_error_message(error));
    flexc_error_free(error);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static flexc_tensor row_of(float* data) {
    flexc_tensor tensor = {.struct_size = sizeof tensor,
                           .dtype = FLEXC_F32,
                           .data = data,
                           .rank = 4,
                           .shape = {1, 1, 1, DIM}};
    return tensor;
}

int main(int count, char** arguments) {
    MPI_Init(&count, &arguments);
    int world_rank = 0, world = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    MPI_Comm half;
    MPI_Comm_split(MPI_COMM_WORLD, world_rank % 2, world_rank, &half);

    flexc_error* error = NULL;
    flexc_communicator* ranks = NULL;
    const flexc_communicator_options options = {.struct_size = sizeof options,
                                                .timeout_seconds = 60};
    const flexc_status opened = flexc_mpi_communicator(&half, &options, &ranks, &error);
    if (opened == FLEXC_ERROR_LIBRARY_MISSING) return 77;
    require(opened, error);
    const int32_t rank = flexc_communicator_rank(ranks), size = flexc_communicator_ranks(ranks);
    int held = 0;
    if (size != (world + 1 - world_rank % 2) / 2 || rank != world_rank / 2) held = 1;

    flexc_shards* shards = NULL;
    require(flexc_shards_contiguous(size, size, &shards, &error), error);
    const flexc_compile_options compile_options = {.struct_size = sizeof compile_options,
                                                   .dtype = FLEXC_F32,
                                                   .head_dim = DIM,
                                                   .forward_only = 1};
    flexc_distributed_kernel* kernel = NULL;
    require(flexc_distributed_compile("score * 0", &compile_options, NULL, 0, &kernel, &error),
            error);
    const flexc_distributed_sizes sizes = {.struct_size = sizeof sizes,
                                           .batch = 1,
                                           .heads = 1,
                                           .kv_heads = 1,
                                           .queries = shards,
                                           .keys = shards};
    flexc_distributed_plan* plan = NULL;
    require(
        flexc_distributed_plan_create(kernel, &sizes, ranks, NULL, 0, NULL, NULL, &plan, &error),
        error);
    float q[DIM] = {0}, v[DIM], o[DIM] = {0};
    for (int i = 0; i < DIM; ++i)
        v[i] = (float)world_rank;
    const flexc_tensor tq = row_of(q), tv = row_of(v), to = row_of(o);
    const flexc_forward_tensors forward = {
        .struct_size = sizeof forward, .q = &tq, .k = &tq, .v = &tv, .o = &to};
    require(flexc_distributed_forward(kernel, plan, &forward, NULL, 0, NULL, &error), error);
    const float mean = (float)(world_rank % 2) + (float)(size - 1);
    if (!(fabsf(o[0] - mean) < 1e-5f && o[DIM - 1] == o[0])) held = 1;
    if (held != 0)
        fprintf(stderr, "rank %d of %d: %g where %g is right\n", rank, size, (double)o[0],
                (double)mean);

    flexc_distributed_plan_free(plan);
    flexc_distributed_kernel_free(kernel);
    flexc_shards_free(shards);
    flexc_communicator_free(ranks);
    MPI_Comm_free(&half); /* the caller's own still works */
    MPI_Finalize();
    return held;
}
