/* flexc/distributed.h for C99: one attention problem on many ranks, by the rules of flexc_c.h.
 *
 * Calls that have a communicator or a plan are made by all ranks together, and a communicator and
 * its plans are for one thread at a time. */
#ifndef FLEXC_DISTRIBUTED_C_H
#define FLEXC_DISTRIBUTED_C_H

#include "flexc/flexc_c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- who holds what -------------------------------------------------------------------------- */

/* Which rows of a sequence each rank holds. */
typedef struct flexc_shards flexc_shards;
/* Rows that a rank holds, from begin up to, not including, end. */
typedef struct flexc_rank_range {
    uint32_t struct_size;
    int32_t rank;
    int64_t begin;
    int64_t end;
} flexc_rank_range;

FLEXC_API flexc_status flexc_shards_contiguous(int64_t length, int32_t ranks, flexc_shards** shards,
                                               flexc_error** error);
FLEXC_API flexc_status flexc_shards_zigzag(int64_t length, int32_t ranks, flexc_shards** shards,
                                           flexc_error** error);
/* Stripes of `rows` rows are dealt in turn. */
FLEXC_API flexc_status flexc_shards_striped(int64_t length, int32_t ranks, int64_t rows,
                                            flexc_shards** shards, flexc_error** error);
/* Together they hold every row once. A rank's tensors have the rows of its ranges in the order in
 * which these stand here. */
FLEXC_API flexc_status flexc_shards_of(int64_t length, int32_t ranks,
                                       const flexc_rank_range* ranges, size_t range_count,
                                       flexc_shards** shards, flexc_error** error);
FLEXC_API void flexc_shards_free(flexc_shards* shards);
FLEXC_API int64_t flexc_shards_length(const flexc_shards* shards); /* 0 for NULL */
FLEXC_API int32_t flexc_shards_ranks(const flexc_shards* shards);
/* Of a rank's tensors; 0: there is no such rank. */
FLEXC_API int64_t flexc_shards_rows(const flexc_shards* shards, int32_t rank);
FLEXC_API size_t flexc_shards_range_count(const flexc_shards* shards, int32_t rank);
FLEXC_API flexc_status flexc_shards_range(const flexc_shards* shards, int32_t rank, size_t index,
                                          flexc_rank_range* range, flexc_error** error);

/* --- how ranks reach each other ----------------------------------------------------------------
 */

/* Plans keep what they need of one that is freed. */
typedef struct flexc_communicator flexc_communicator;
typedef struct flexc_communicator_options {
    uint32_t struct_size;
    uint32_t reserved;
    double timeout_seconds; /* of one wait; default 600 */
} flexc_communicator_options;

/* comm points to the caller's MPI_Comm, of which a duplicate is made; NULL is MPI_COMM_WORLD, and
 * initialises MPI if nobody has. options may be NULL. */
FLEXC_API flexc_status flexc_mpi_communicator(const void* comm,
                                              const flexc_communicator_options* options,
                                              flexc_communicator** communicator,
                                              flexc_error** error);
/* Ranks of one process, to be used from as many threads. communicators has room for `ranks`. */
FLEXC_API flexc_status flexc_in_process_communicators(int32_t ranks,
                                                      const flexc_communicator_options* options,
                                                      flexc_communicator** communicators,
                                                      flexc_error** error);

/* By NCCL, as flexc/distributed.h says: ranks that are processes or threads with a GPU each. All
 * ranks make theirs together. device_index is of the rank's GPU. */
typedef struct flexc_nccl_id {
    unsigned char bytes[128]; /* ncclUniqueId */
} flexc_nccl_id;
/* For one rank, which gives it to all others by a channel of the caller's. */
FLEXC_API flexc_status flexc_nccl_make_id(flexc_nccl_id* id, flexc_error** error);
FLEXC_API flexc_status flexc_nccl_communicator(const flexc_nccl_id* id, int32_t rank, int32_t ranks,
                                               int32_t device_index,
                                               const flexc_communicator_options* options,
                                               flexc_communicator** communicator,
                                               flexc_error** error);
/* Rank 0 makes the id and writes it to a file that all ranks see, at a path where no file was
 * before; it is gone when all have read it. */
FLEXC_API flexc_status flexc_nccl_communicator_by_file(const char* path, int32_t rank,
                                                       int32_t ranks, int32_t device_index,
                                                       const flexc_communicator_options* options,
                                                       flexc_communicator** communicator,
                                                       flexc_error** error);
/* comm is the caller's ncclComm_t, of NCCL as this process has it; of which ncclCommSplit makes
 * another. */
FLEXC_API flexc_status flexc_nccl_communicator_of(void* comm,
                                                  const flexc_communicator_options* options,
                                                  flexc_communicator** communicator,
                                                  flexc_error** error);

FLEXC_API void flexc_communicator_free(flexc_communicator* communicator);
FLEXC_API int32_t flexc_communicator_rank(const flexc_communicator* communicator); /* -1 for NULL */
FLEXC_API int32_t flexc_communicator_ranks(const flexc_communicator* communicator);

/* Instead of a call that the other ranks make, from a rank that cannot: they get an error with
 * `why` that names it, as does this one. */
FLEXC_API flexc_status flexc_communicator_refuse(const flexc_communicator* communicator,
                                                 const char* why, flexc_error** error);

/* What torchrun tells a process by RANK, WORLD_SIZE and LOCAL_RANK. */
typedef struct flexc_launched_rank {
    uint32_t struct_size;
    int32_t rank;
    int32_t ranks;
    int32_t local_rank;
} flexc_launched_rank;
FLEXC_API flexc_status flexc_torchrun_rank(flexc_launched_rank* launched, flexc_error** error);

/* --- compile, plan and launch ------------------------------------------------------------------
 */

/* A buffer of which each rank has the rows of its queries, "Q_LEN", or of its keys, "KV_LEN". */
typedef struct flexc_sharded_buffer {
    uint32_t struct_size;
    uint32_t reserved;
    const char* buffer;
    const char* dim;
} flexc_sharded_buffer;

typedef struct flexc_distributed_kernel flexc_distributed_kernel;
/* For queries and keys that are both dense or both ragged; FLEXC_DEVICE_AUTOMATIC means a CPU here.
 * options may be NULL. */
FLEXC_API flexc_status flexc_distributed_compile(
    const char* text, const flexc_compile_options* options, const flexc_sharded_buffer* sharded,
    size_t sharded_count, flexc_distributed_kernel** kernel, flexc_error** error);
FLEXC_API void flexc_distributed_kernel_free(flexc_distributed_kernel* kernel);

enum {
    FLEXC_EXCHANGE_AUTOMATIC = 0,
    FLEXC_EXCHANGE_RING = 1,
    FLEXC_EXCHANGE_ALL_GATHER = 2,
    FLEXC_EXCHANGE_ULYSSES = 3
};
FLEXC_API const char* flexc_exchange_name(int32_t exchange); /* "ring"; NULL: no such exchange */
/* Of gradients of buffers that are whole on every rank. */
enum { FLEXC_REDUCTION_SUM = 0, FLEXC_REDUCTION_AVERAGE = 1, FLEXC_REDUCTION_NONE = 2 };

typedef struct flexc_distributed_sizes {
    uint32_t struct_size;
    uint32_t reserved;
    int64_t batch; /* these three: zero is an error; of ragged layouts, requests */
    int64_t heads;
    int64_t kv_heads;
    const flexc_shards* queries; /* of ragged layouts, both are of rows of packed tensors */
    const flexc_shards* keys;
} flexc_distributed_sizes;

typedef struct flexc_distributed_options {
    uint32_t struct_size;
    int32_t has_scale; /* else 1/sqrt(D) */
    double scale;
    const flexc_param_value* params;
    size_t param_count;
    int32_t exchange;
    int32_t reduction;
    int32_t cpu_threads;    /* this and parallel_for: as in flexc_plan_options */
    int32_t ranks_per_node; /* of ulysses: heads are swapped inside, keys go across by ring */
    flexc_parallel_for parallel_for;
    void* parallel_user;
    uint64_t gathered_bytes;      /* by all_gather on a rank at a time; default 256 MiB */
    const flexc_lengths* lengths; /* of ragged layouts: of the whole problem, on every rank */
} flexc_distributed_options;

/* Shards of queries and of keys of one length, as even as whole chunks can be in rows and in what
 * the mask shows. The same on every rank, without communication. Lengths of ragged layouts are the
 * rows of packed tensors here. options may be NULL. */
FLEXC_API flexc_status flexc_shards_balanced(const flexc_distributed_kernel* kernel,
                                             const flexc_sizes* sizes, int32_t ranks,
                                             const flexc_named_tensor* buffers, size_t buffer_count,
                                             void* stream, const flexc_distributed_options* options,
                                             flexc_shards** shards, flexc_error** error);

/* A stream is a CUstream or cudaStream_t; ignored on the CPU. On a GPU all is in its order, and a
 * call returns when its messages are done, which is before its last launches are. */
typedef struct flexc_distributed_plan flexc_distributed_plan;
/* options may be NULL. */
FLEXC_API flexc_status flexc_distributed_plan_create(
    const flexc_distributed_kernel* kernel, const flexc_distributed_sizes* sizes,
    const flexc_communicator* communicator, const flexc_named_tensor* buffers, size_t buffer_count,
    void* stream, const flexc_distributed_options* options, flexc_distributed_plan** plan,
    flexc_error** error);
FLEXC_API void flexc_distributed_plan_free(flexc_distributed_plan* plan);

/* Of this rank and one pass, as the plan knows it beforehand. */
typedef struct flexc_traffic {
    uint32_t struct_size;
    int32_t exchange;      /* never automatic */
    uint64_t forward_sent; /* bytes */
    uint64_t forward_received;
    uint64_t backward_sent;
    uint64_t backward_received;
    int64_t pieces;      /* launches of the kernel */
    double visible_area; /* elements of the score matrix, estimated from tiles, by all heads */
    double fair_area;    /* the same, of all ranks by their number */
} flexc_traffic;
FLEXC_API flexc_status flexc_distributed_plan_traffic(const flexc_distributed_plan* plan,
                                                      flexc_traffic* traffic, flexc_error** error);
/* The exchange, why it was chosen, and what each step does. */
FLEXC_API flexc_status flexc_distributed_plan_explain(const flexc_distributed_plan* plan,
                                                      flexc_text** explanation,
                                                      flexc_error** error);

/* Tensors have this rank's rows: q, o [B, H, rows, .], lse [B, H, rows], k, v [B, H_KV, rows, .],
 * or of ragged layouts [rows, H, .], [rows, H] and [rows, H_KV, .]; those without rows may be NULL.
 * `lengths` beside them is NULL: the plan has them. */
FLEXC_API flexc_status flexc_distributed_forward(const flexc_distributed_kernel* kernel,
                                                 const flexc_distributed_plan* plan,
                                                 const flexc_forward_tensors* tensors,
                                                 const flexc_named_tensor* buffers,
                                                 size_t buffer_count, void* stream,
                                                 flexc_error** error);
FLEXC_API flexc_status flexc_distributed_backward(
    const flexc_distributed_kernel* kernel, const flexc_distributed_plan* plan,
    const flexc_backward_tensors* tensors, const flexc_named_tensor* buffers, size_t buffer_count,
    const flexc_named_tensor* gradients, size_t gradient_count, void* stream, flexc_error** error);

#ifdef __cplusplus
}
#endif

#endif
