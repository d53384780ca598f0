/* flexc for C99 and for languages that can call C. The C++ headers say what each call means.
 *
 * Structs belong to the caller, who sets struct_size to sizeof the struct and leaves what it does
 * not need zero: zero means the default everywhere. That is how structs can grow while old callers
 * keep working. In an array, every element has the struct_size of the first.
 *
 * A call that can fail returns a status. If its `error` is not NULL and it fails, *error is set to
 * an object that holds the text and is to be freed; if it succeeds, *error is set to NULL.
 *
 * Handles may be used by many threads at once and are freed once. Freeing NULL does nothing. What
 * a call creates is an object of the caller's, and strings in it live as long as it does; no call
 * keeps a pointer that it was given, but a plan keeps its parallel_for. */
#ifndef FLEXC_C_H
#define FLEXC_C_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__) || defined(__clang__)
#define FLEXC_API __attribute__((visibility("default")))
#else
#define FLEXC_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Grows when something that was there changes its meaning. */
#define FLEXC_ABI_VERSION 1

FLEXC_API uint32_t flexc_abi_version(void); /* of the library */
FLEXC_API const char* flexc_version(void);  /* "0.1.0" */

/* --- errors ---------------------------------------------------------------------------------- */

typedef int32_t flexc_status;
enum {
    FLEXC_OK = 0,
    FLEXC_ERROR_SYNTAX = 1,          /* the text is not a program; the message shows the place */
    FLEXC_ERROR_INVALID_OPTION = 2,  /* an option, shape, type or pointer cannot be accepted */
    FLEXC_ERROR_LIMIT = 3,           /* a stated limit was exceeded */
    FLEXC_ERROR_UNSUPPORTED = 4,     /* right, but not on this device or in this build */
    FLEXC_ERROR_LIBRARY_MISSING = 5, /* the message lists where it was searched */
    FLEXC_ERROR_COMPILE_FAILED = 6,
    FLEXC_ERROR_DEVICE = 7,
    FLEXC_ERROR_IO = 8,
    FLEXC_ERROR_INTERNAL = 9, /* a bug in flexc */
    FLEXC_ERROR_CANCELLED = 10
};

typedef struct flexc_error flexc_error;
FLEXC_API flexc_status flexc_error_status(const flexc_error* error);
FLEXC_API const char* flexc_error_message(const flexc_error* error); /* lives as long as error */
FLEXC_API const char* flexc_status_name(flexc_status status); /* "syntax"; NULL: no such status */
FLEXC_API void flexc_error_free(flexc_error* error);

/* --- values ---------------------------------------------------------------------------------- */

/* dtype */
enum {
    FLEXC_DEFAULT_DTYPE = 0,
    FLEXC_F64 = 1,
    FLEXC_F32 = 2,
    FLEXC_F16 = 3,
    FLEXC_BF16 = 4,
    FLEXC_I64 = 5,
    FLEXC_I32 = 6,
    FLEXC_I16 = 7,
    FLEXC_I8 = 8,
    FLEXC_U8 = 9,
    FLEXC_BOOL = 10,
    FLEXC_E4M3 = 11, /* these two are of keys and values alone */
    FLEXC_E5M2 = 12
};
FLEXC_API const char* flexc_dtype_name(int32_t dtype); /* "f32"; NULL: no such dtype */
FLEXC_API size_t flexc_dtype_size(int32_t dtype);      /* bytes; 0: no such dtype */
FLEXC_API int32_t flexc_dtype_of(const char* name);    /* FLEXC_DEFAULT_DTYPE: no such name */

enum { FLEXC_DEVICE_AUTOMATIC = 0, FLEXC_DEVICE_CPU = 1, FLEXC_DEVICE_CUDA = 2 };
enum { FLEXC_FORWARD_AUTOMATIC = 0, FLEXC_FORWARD_GENERIC = 1, FLEXC_FORWARD_SPECIALIZED = 2 };
enum {
    FLEXC_BACKWARD_AUTOMATIC = 0,
    FLEXC_BACKWARD_FUSED = 1,
    FLEXC_BACKWARD_SPLIT = 2,
    FLEXC_BACKWARD_GENERIC = 3,
    FLEXC_BACKWARD_SPECIALIZED = 4
};
enum { FLEXC_LAYOUT_DENSE = 0, FLEXC_LAYOUT_RAGGED = 1, FLEXC_LAYOUT_PAGED = 2 };
/* Where q_idx of a request begins: automatic is the end with paged keys, else 0. */
enum { FLEXC_QUERY_START_AUTOMATIC = 0, FLEXC_QUERY_START_ZERO = 1, FLEXC_QUERY_START_END = 2 };
enum { FLEXC_GRADIENT_F32 = 0, FLEXC_GRADIENT_BUFFER = 1 };
/* Where a kernel knows the tiles of a prefix or padding from. */
enum {
    FLEXC_MASK_TILES_AUTOMATIC = 0,
    FLEXC_MASK_TILES_RANGES = 1,
    FLEXC_MASK_TILES_BLOCK_MASK = 2
};
enum { FLEXC_LOG_DEBUG = 0, FLEXC_LOG_INFO = 1, FLEXC_LOG_WARNING = 2, FLEXC_LOG_ERROR = 3 };

#define FLEXC_MAX_DIMS 8

/* Memory that the caller owns, on the kernel's device. Without data and const_data it is "not
 * given". Without has_strides it is contiguous; strides are in elements and may be zero or
 * negative. */
typedef struct flexc_tensor {
    uint32_t struct_size;
    int32_t dtype;
    void* data;
    int32_t rank;
    int32_t has_strides;
    int64_t shape[FLEXC_MAX_DIMS];
    int64_t strides[FLEXC_MAX_DIMS];
    const void* const_data; /* instead of data: a call that would write to it refuses it */
} flexc_tensor;

typedef struct flexc_named_tensor {
    uint32_t struct_size;
    uint32_t reserved;
    const char* name;
    const flexc_tensor* tensor;
} flexc_named_tensor;

/* --- compile and check ----------------------------------------------------------------------- */

typedef struct flexc_buffer_declaration {
    uint32_t struct_size;
    int32_t dtype; /* default f32 */
    const char* name;
    const char* const* dims; /* "4", "H", "Q_LEN", or new names */
    size_t dim_count;
    int32_t grad; /* whether its gradient is wanted */
    int32_t reserved;
} flexc_buffer_declaration;

typedef struct flexc_param_declaration {
    uint32_t struct_size;
    int32_t dtype; /* f32 (the default), i64 or bool */
    const char* name;
    double value;
} flexc_param_declaration;

/* Called from any thread with no lock held. The text is not terminated by a zero. */
typedef void (*flexc_log_function)(void* user, int32_t level, const char* text, size_t length);

/* Stops compiles that were given it, from any thread. Freed when none of them runs any more. */
typedef struct flexc_cancel_token flexc_cancel_token;
FLEXC_API flexc_cancel_token* flexc_cancel_token_create(void); /* NULL: there is no memory */
FLEXC_API void flexc_cancel(flexc_cancel_token* token);
FLEXC_API int32_t flexc_is_cancelled(const flexc_cancel_token* token);
FLEXC_API void flexc_cancel_token_free(flexc_cancel_token* token);

typedef struct flexc_compile_options {
    uint32_t struct_size;
    int32_t dtype;      /* of q, k and v: f32, f16 or bf16 (the default) */
    int32_t head_dim;   /* D; default 64 */
    int32_t head_dim_v; /* DV; default D */
    int32_t device;
    int32_t device_index;
    int32_t forward_only;
    int32_t backward_kernel;
    int32_t deterministic; /* the same bits on every run; takes more workspace */
    int32_t report_out_of_range;
    int32_t no_memory_cache;
    int32_t no_disk_cache;
    const char* cache_directory;
    uint64_t cache_max_bytes;
    const char* source_name; /* how errors name the text */
    const char* mask_mod;    /* used when the text has none */
    const flexc_buffer_declaration* buffers;
    size_t buffer_count;
    const flexc_param_declaration* params;
    size_t param_count;
    flexc_log_function log;
    void* log_user;
    int32_t forward_kernel;
    int32_t gradient_type; /* of captured buffers */
    const char* schedule;  /* of the forward kernel; NULL: flexc chooses, or what was kept */
    int32_t mask_tiles;
    int32_t count_visible; /* what is visible instead of attention, without a backward */
    /* As CompileLimits in flexc/options.h has them; negative and UINT64_MAX: none. */
    double max_compile_seconds;
    uint64_t max_compile_memory; /* bytes */
    const flexc_cancel_token* cancel;
    const char* pack; /* a folder of compiled kernels, looked at first; NULL: FLEXC_PACK, if set */
    const char* sink; /* used when the text has none */
    /* Paged is for keys, and forward only. Of others than dense, Hopper has a forward of its own
     * where both are ragged; on CUDA, the rest has generic kernels. */
    int32_t query_layout;
    int32_t key_layout;
    /* For plans with some heads of a larger whole: see head_offset of flexc_plan_options. H, H_KV
     * and buffers' dims of those names are of the whole. */
    int32_t part_of_heads;
    int32_t batch_invariant; /* the bits of a request do not depend on others in the batch */
    int32_t kv_dtype;        /* of k and v where it is another: e4m3, e5m2 or i8; forward only */
    int32_t max_scores;      /* for max_scores of flexc_forward_tensors */
} flexc_compile_options;

typedef struct flexc_kernel flexc_kernel;
/* options may be NULL. Plans keep what they need of a kernel that is freed. */
FLEXC_API flexc_status flexc_compile(const char* text, const flexc_compile_options* options,
                                     flexc_kernel** kernel, flexc_error** error);
FLEXC_API void flexc_kernel_free(flexc_kernel* kernel);

/* Whether flexc_compile, or with `arch` flexc_compile_offline, would begin to compile this here;
 * the error is the one that it would give. No backend compiler runs. */
FLEXC_API flexc_status flexc_supports(const char* text, const flexc_compile_options* options,
                                      const char* arch, flexc_error** error);
/* The device that FLEXC_DEVICE_AUTOMATIC means here. */
FLEXC_API flexc_status flexc_default_device(int32_t* device, int32_t* device_index,
                                            flexc_error** error);

/* What a program declares. The pointers in what is filled in live as long as the signature. */
typedef struct flexc_signature flexc_signature;
typedef struct flexc_signature_info {
    uint32_t struct_size;
    uint32_t reserved;
    size_t buffer_count;
    size_t param_count;
    size_t size_count; /* size names that the program reads */
    size_t warning_count;
    const char* score_depends_on; /* "score, h, q_idx, kv_idx" */
    const char* mask_depends_on;  /* "" when there is no mask */
    size_t mask_size_count;       /* of the size names those that the mask reads */
    const char* sink_depends_on;  /* "" when there is no sink */
} flexc_signature_info;
typedef struct flexc_buffer_info {
    uint32_t struct_size;
    int32_t dtype;
    const char* name;
    const char* const* dims;
    size_t dim_count;
    int32_t grad;
    int32_t reserved;
} flexc_buffer_info;
typedef struct flexc_param_info {
    uint32_t struct_size;
    int32_t has_default;
    const char* name;
    const char* type; /* "f32", "int" or "bool" */
    double default_value;
} flexc_param_info;

FLEXC_API flexc_status flexc_check(const char* text, const flexc_compile_options* options,
                                   flexc_signature** signature, flexc_error** error);
FLEXC_API void flexc_signature_free(flexc_signature* signature);
FLEXC_API flexc_status flexc_signature_get(const flexc_signature* signature,
                                           flexc_signature_info* info, flexc_error** error);
FLEXC_API flexc_status flexc_signature_buffer(const flexc_signature* signature, size_t index,
                                              flexc_buffer_info* info, flexc_error** error);
FLEXC_API flexc_status flexc_signature_param(const flexc_signature* signature, size_t index,
                                             flexc_param_info* info, flexc_error** error);
/* NULL when there is no such index. */
FLEXC_API const char* flexc_signature_size(const flexc_signature* signature, size_t index);
FLEXC_API const char* flexc_signature_mask_size(const flexc_signature* signature, size_t index);
FLEXC_API const char* flexc_signature_warning(const flexc_signature* signature, size_t index);

/* --- info ------------------------------------------------------------------------------------ */

typedef struct flexc_kernel_info {
    uint32_t struct_size;
    int32_t device;
    int32_t device_index;
    int32_t from_cache; /* no backend compiler ran */
    double compile_ms;
    size_t function_count;
    int32_t dtype;
    int32_t head_dim;
    int32_t head_dim_v;
    int32_t forward_only;
} flexc_kernel_info;
/* One function of the compiled code; strings live as long as the kernel. */
typedef struct flexc_function_info {
    uint32_t struct_size;
    int32_t registers;
    int32_t spill_bytes;
    int32_t shared_bytes;
    double compile_ms;
    const char* name;     /* as a profiler shows it */
    const char* reason;   /* why it was chosen */
    const char* schedule; /* as in flexc_compile_options; "" where it has only one */
} flexc_function_info;

FLEXC_API flexc_status flexc_kernel_get(const flexc_kernel* kernel, flexc_kernel_info* info,
                                        flexc_error** error);
FLEXC_API flexc_status flexc_kernel_function(const flexc_kernel* kernel, size_t index,
                                             flexc_function_info* info, flexc_error** error);
/* Whether a launch since the last call read outside a buffer; needs report_out_of_range, waits. */
FLEXC_API flexc_status flexc_kernel_out_of_range(const flexc_kernel* kernel, int32_t* happened,
                                                 flexc_error** error);

/* --- plan and launch ------------------------------------------------------------------------- */

/* All are needed: here zero is an error. With layouts other than dense, batch is the number of
 * requests, q_len and kv_len the most that one may have, and those three may be zero. */
typedef struct flexc_sizes {
    uint32_t struct_size;
    uint32_t reserved;
    int64_t batch;
    int64_t heads;
    int64_t kv_heads; /* divides heads */
    int64_t q_len;
    int64_t kv_len;
} flexc_sizes;

typedef struct flexc_param_value {
    uint32_t struct_size;
    uint32_t reserved;
    const char* name;
    double value;
} flexc_param_value;

/* Calls work(context, i) for each i from 0 to count - 1, in any order on any threads, and returns
 * when all have returned. */
typedef void (*flexc_parallel_for)(void* user, int32_t count,
                                   void (*work)(void* context, int32_t index), void* context);

/* Where the requests of ragged and paged layouts lie, as Lengths in flexc/kernel.h has it: host
 * memory, which is copied. What is not named for the kernel's layouts is NULL with a count of 0. */
typedef struct flexc_lengths {
    uint32_t struct_size;
    int32_t query_start;
    const int32_t* cu_seqlens_q; /* [B + 1]: of ragged tensors */
    size_t cu_seqlens_q_count;
    const int32_t* cu_seqlens_k;
    size_t cu_seqlens_k_count;
    const int32_t* seqused_q; /* [B]: how many of them are used; none: all */
    size_t seqused_q_count;
    const int32_t* seqused_k;
    size_t seqused_k_count;
    const int32_t* page_table; /* [B, MAX_PAGES] */
    size_t page_table_count;
    const int32_t* page_indptr; /* or [B + 1], into page_indices */
    size_t page_indptr_count;
    const int32_t* page_indices;
    size_t page_indices_count;
    const int32_t* last_page_len; /* [B] */
    size_t last_page_len_count;
    const int32_t* query_starts; /* [B]: instead of query_start */
    size_t query_starts_count;
    int64_t page_size; /* 1 to 1024 */
    int64_t pages;     /* of the cache */
    /* The arrays lie in the device's memory and come with flexc_plan_update_length_tensors(): here
     * they are NULL, and until then no request has queries or keys. */
    int32_t on_device;
    int32_t reserved;
} flexc_lengths;

/* The arrays in memory of the kernel's device, contiguous i32. A call on a CPU that is given some
 * is an error where the plan has other lengths; on CUDA it begins with what
 * flexc_plan_update_length_tensors() does with them, which needs all that the layouts use. */
typedef struct flexc_length_tensors {
    uint32_t struct_size;
    uint32_t reserved;
    const flexc_tensor *cu_seqlens_q, *cu_seqlens_k, *seqused_q, *seqused_k;
    const flexc_tensor *page_table, *page_indptr, *page_indices, *last_page_len;
    const flexc_tensor* query_starts;
} flexc_length_tensors;

/* Ragged: q, o [TOTAL_Q,H,.], lse [TOTAL_Q,H], k, v [TOTAL_K,H_KV,.]. Paged: k, v
 * [PAGES,PAGE_SIZE,H_KV,.]. Dense: q [B,H,Q,D], k [B,H_KV,KV,D], v [B,H_KV,KV,DV], o [B,H,Q,DV],
 * lse [B,H,Q]; lse may be absent. */
typedef struct flexc_forward_tensors {
    uint32_t struct_size;
    uint32_t reserved;
    const flexc_tensor *q, *k, *v, *o, *lse;
    const flexc_length_tensors* lengths; /* may be NULL */
    /* With kv_dtype, f32: [], [H_KV], or for each page of paged keys [PAGES,H_KV], else for each
     * batch entry or request [B,H_KV]; a dim of 1 stands for all. NULL: 1. */
    const flexc_tensor *k_scale, *v_scale;
    /* As lse, and f32: the largest score that a row sees, -inf where it sees nothing; of a kernel
     * that was compiled for it. May be NULL. */
    const flexc_tensor* max_scores;
} flexc_forward_tensors;

/* o and lse as forward gave them; d_lse may be absent. Gradients of buffers are closer with o in
   f32. */
typedef struct flexc_backward_tensors {
    uint32_t struct_size;
    uint32_t reserved;
    const flexc_tensor *q, *k, *v, *o, *lse, *d_out, *d_lse, *dq, *dk, *dv;
    const flexc_length_tensors* lengths; /* may be NULL */
} flexc_backward_tensors;

typedef struct flexc_plan_options {
    uint32_t struct_size;
    int32_t has_scale; /* else 1/sqrt(D) */
    double scale;
    const flexc_param_value* params;
    size_t param_count;
    int64_t q_offset;
    int64_t kv_offset;
    int64_t global_q_len; /* default: what is given in sizes */
    int64_t global_kv_len;
    int32_t accumulate_gradients;
    /* Of the plan's calls on a CPU; results do not depend on them. Zero: as many as the kernel has,
     * and flexc's own threads. The caller's must work as long as the plan is used. */
    int32_t cpu_threads;
    flexc_parallel_for parallel_for;
    void* parallel_user;
    /* Tensors like those of later calls, read here alone: their strides, alignment and types choose
     * the kernels. NULL, and for a tensor that is absent: one without gaps that starts at 16
     * aligned bytes. A call whose tensors the plan's kernels cannot take is an error. */
    const flexc_forward_tensors* forward;
    const flexc_backward_tensors* backward;
    const flexc_lengths* lengths; /* of a kernel with ragged or paged layouts */
    int64_t head_offset;          /* of part_of_heads: h of the first head */
    int64_t global_heads;         /* default: the whole ends with these heads */
    int64_t global_kv_heads;      /* default: as these share their keys */
    /* Buffers are only like those of later calls; each of these builds its own block mask. */
    int32_t block_mask_per_call;
    int32_t reserved;
} flexc_plan_options;

/* Memory on the kernel's device, 256-byte aligned. */
typedef struct flexc_workspace {
    uint32_t struct_size;
    uint32_t reserved;
    void* data;
    size_t bytes;
} flexc_workspace;

/* A stream is a CUstream or cudaStream_t; ignored on the CPU. */
typedef struct flexc_plan flexc_plan;
FLEXC_API flexc_status flexc_plan_create(const flexc_kernel* kernel, const flexc_sizes* sizes,
                                         const flexc_named_tensor* buffers, size_t buffer_count,
                                         void* stream, const flexc_plan_options* options,
                                         flexc_plan** plan, flexc_error** error);
/* Builds the plan's block mask again, for buffers that hold something else. */
FLEXC_API flexc_status flexc_plan_update(const flexc_kernel* kernel, const flexc_plan* plan,
                                         const flexc_named_tensor* buffers, size_t buffer_count,
                                         void* stream, flexc_error** error);
/* Other lengths, no longer than the plan's sizes and for as many requests. */
FLEXC_API flexc_status flexc_plan_update_lengths(const flexc_kernel* kernel, const flexc_plan* plan,
                                                 const flexc_lengths* lengths, void* stream,
                                                 flexc_error** error);
/* The same of arrays that later work on the stream may read; may be captured in a graph. See
 * Kernel::update in flexc/kernel.h. */
FLEXC_API flexc_status flexc_plan_update_length_tensors(const flexc_kernel* kernel,
                                                        const flexc_plan* plan,
                                                        const flexc_length_tensors* lengths,
                                                        void* stream, flexc_error** error);
FLEXC_API void flexc_plan_free(flexc_plan* plan);
FLEXC_API size_t flexc_plan_workspace_bytes(const flexc_plan* plan);
/* Of the block mask; 0 where the mask needs none. */
FLEXC_API size_t flexc_plan_block_mask_bytes(const flexc_plan* plan);
FLEXC_API flexc_status flexc_plan_sizes(const flexc_plan* plan, flexc_sizes* sizes,
                                        flexc_error** error);

/* workspace may be NULL when the plan needs none. */
FLEXC_API flexc_status flexc_forward(const flexc_kernel* kernel, const flexc_plan* plan,
                                     const flexc_forward_tensors* tensors,
                                     const flexc_named_tensor* buffers, size_t buffer_count,
                                     const flexc_workspace* workspace, void* stream,
                                     flexc_error** error);
FLEXC_API flexc_status flexc_backward(const flexc_kernel* kernel, const flexc_plan* plan,
                                      const flexc_backward_tensors* tensors,
                                      const flexc_named_tensor* buffers, size_t buffer_count,
                                      const flexc_named_tensor* gradients, size_t gradient_count,
                                      const flexc_workspace* workspace, void* stream,
                                      flexc_error** error);

/* Results over disjoint keys of the same queries, o [...,DV] and lse [...], become one, in host
 * memory; lse may be NULL. */
typedef struct flexc_partial_result {
    uint32_t struct_size;
    uint32_t reserved;
    const flexc_tensor *o, *lse;
} flexc_partial_result;
FLEXC_API flexc_status flexc_merge_states(const flexc_partial_result* parts, size_t part_count,
                                          const flexc_tensor* o, const flexc_tensor* lse,
                                          flexc_error** error);

/* --- what a compiler sees and makes ----------------------------------------------------------- */

/* A text of any length, with a zero behind it. */
typedef struct flexc_text flexc_text;
FLEXC_API const char* flexc_text_data(const flexc_text* text); /* "" for NULL */
FLEXC_API size_t flexc_text_size(const flexc_text* text);
FLEXC_API void flexc_text_free(flexc_text* text);

/* stage: tokens, ast, ir, grad, deps, mask, plan, cuda or llvm. arch may be NULL: sm_90a. */
FLEXC_API flexc_status flexc_explain(const char* text, const char* stage,
                                     const flexc_compile_options* options, const char* arch,
                                     flexc_text** explanation, flexc_error** error);

/* Compiles for an architecture that need not be here. Files of the names and bytes that are called
 * pack below make a folder a pack, which flexc_compile_options takes. calls: the sum of those that
 * need kernels of their own, for which a pack should have them. */
typedef struct flexc_offline flexc_offline;
enum {
    /* Of unusual strides or alignment, or with unusually large tables. */
    FLEXC_OFFLINE_ANY_LAYOUT = 1,
    /* Of at least 1,024 sequences, heads counted, of at most 512 rows. */
    FLEXC_OFFLINE_SHORT_SEQUENCES = 2,
    /* Of dense tensors, with at most 64 queries of all heads that share keys. */
    FLEXC_OFFLINE_FEW_QUERIES = 4
};
typedef struct flexc_offline_info {
    uint32_t struct_size;
    int32_t from_cache;
    double compile_ms;
    size_t cubin_count;
} flexc_offline_info;
typedef struct flexc_cubin_info {
    uint32_t struct_size;
    int32_t registers;
    int32_t spill_bytes;
    int32_t shared_bytes;
    double compile_ms;
    const char* name;
    const char* reason;
    const char* schedule;
    const void* data; /* the module, an ELF file */
    size_t size;
    const char* pack_name;
    const void* pack_data;
    size_t pack_size;
} flexc_cubin_info;
FLEXC_API flexc_status flexc_compile_offline(const char* text, const flexc_compile_options* options,
                                             const char* arch, uint32_t calls,
                                             flexc_offline** offline, flexc_error** error);
FLEXC_API void flexc_offline_free(flexc_offline* offline);
FLEXC_API flexc_status flexc_offline_get(const flexc_offline* offline, flexc_offline_info* info,
                                         flexc_error** error);
FLEXC_API flexc_status flexc_offline_cubin(const flexc_offline* offline, size_t index,
                                           flexc_cubin_info* info, flexc_error** error);

/* Ways in which the forward kernel of a program may divide its work on `arch` (NULL: on the device
 * of the options), flexc's own choice first; none where there is only one way. */
typedef struct flexc_schedules flexc_schedules;
FLEXC_API flexc_status flexc_schedules_create(const char* text,
                                              const flexc_compile_options* options,
                                              const char* arch, flexc_schedules** schedules,
                                              flexc_error** error);
FLEXC_API void flexc_schedules_free(flexc_schedules* schedules);
FLEXC_API size_t flexc_schedules_count(const flexc_schedules* schedules);
/* NULL when there is no such index. */
FLEXC_API const char* flexc_schedules_get(const flexc_schedules* schedules, size_t index);
/* Compiles with the schedule of the options, and keeps that on disk for compiles without one. */
FLEXC_API flexc_status flexc_keep_schedule(const char* text, const flexc_compile_options* options,
                                           const char* arch, flexc_error** error);

/* --- masks ------------------------------------------------------------------------------------ */

/* One map per batch and head that the mask can tell apart: 1 of them where it does not read b or h.
 * tiles: [batches][heads][query_tiles][key_tiles], '#' full, '/' partial, '.' empty, with a zero
 * behind it. */
typedef struct flexc_mask_map flexc_mask_map;
typedef struct flexc_mask_info {
    uint32_t struct_size;
    uint32_t reserved;
    int64_t batches;
    int64_t heads;
    int64_t query_tiles;
    int64_t key_tiles;
    const char* tiles;
} flexc_mask_info;
typedef struct flexc_mask_tile {
    uint32_t struct_size;
    uint32_t reserved;
    int64_t queries; /* default 128; 1 by 1 shows each element */
    int64_t keys;
} flexc_mask_tile;
/* Buffers are in host memory; those that the mask does not read may be absent. tile and plan may be
 * NULL. */
FLEXC_API flexc_status flexc_mask_map_create(const char* text, const flexc_compile_options* options,
                                             const flexc_sizes* sizes,
                                             const flexc_named_tensor* buffers, size_t buffer_count,
                                             const flexc_mask_tile* tile,
                                             const flexc_plan_options* plan, flexc_mask_map** map,
                                             flexc_error** error);
FLEXC_API void flexc_mask_map_free(flexc_mask_map* map);
FLEXC_API flexc_status flexc_mask_map_get(const flexc_mask_map* map, flexc_mask_info* info,
                                          flexc_error** error);

/* --- the library of mods ---------------------------------------------------------------------- */

typedef struct flexc_library flexc_library;
typedef struct flexc_library_entry {
    uint32_t struct_size;
    uint32_t reserved;
    const char* name;
    const char* group;   /* "mask" or "score" */
    const char* page;    /* what it is listed under: "Windows" */
    const char* summary; /* one line */
    const char* text;    /* whole source */
    const char* const* also_called;
    size_t also_called_count;
} flexc_library_entry;
FLEXC_API flexc_status flexc_library_create(flexc_library** library, flexc_error** error);
FLEXC_API void flexc_library_free(flexc_library* library);
FLEXC_API size_t flexc_library_count(const flexc_library* library);
FLEXC_API flexc_status flexc_library_get(const flexc_library* library, size_t index,
                                         flexc_library_entry* entry, flexc_error** error);
/* By its name, or by what others call it; the error has the name that is nearest. */
FLEXC_API flexc_status flexc_library_find(const flexc_library* library, const char* name,
                                          flexc_library_entry* entry, flexc_error** error);

/* --- the cache, and what is on this machine --------------------------------------------------- */

/* Of the process, and of the folder that a compile with these options uses. */
typedef struct flexc_cache_info {
    uint32_t struct_size;
    int32_t has_directory; /* 0: the cache on disk is off */
    uint64_t memory_hits;
    uint64_t disk_hits;
    uint64_t misses;
    uint64_t corrupt;
    uint64_t evicted;
    uint64_t disk_entries;
    uint64_t disk_bytes;
} flexc_cache_info;
FLEXC_API flexc_status flexc_cache_get(const flexc_compile_options* options, flexc_cache_info* info,
                                       flexc_error** error);
FLEXC_API flexc_status flexc_cache_directory(const flexc_compile_options* options,
                                             flexc_text** directory, flexc_error** error);
FLEXC_API flexc_status flexc_cache_clear(const flexc_compile_options* options, flexc_error** error);

/* Driver, NVRTC, CPU backend, GPUs. */
typedef struct flexc_doctor flexc_doctor;
typedef struct flexc_finding {
    uint32_t struct_size;
    int32_t found;
    const char* what;
    const char* detail; /* version and path, or every path that was tried */
    const char* remedy; /* how to get it; "" when found */
} flexc_finding;
FLEXC_API flexc_status flexc_doctor_create(flexc_doctor** doctor, flexc_error** error);
FLEXC_API void flexc_doctor_free(flexc_doctor* doctor);
FLEXC_API size_t flexc_doctor_count(const flexc_doctor* doctor);
FLEXC_API flexc_status flexc_doctor_get(const flexc_doctor* doctor, size_t index,
                                        flexc_finding* finding, flexc_error** error);

/* --- memory and time, for programs without CUDA of their own ---------------------------------- */

/* Zero-filled, 256-byte aligned. One thread at a time may upload or fill. */
typedef struct flexc_memory flexc_memory;
FLEXC_API flexc_status flexc_memory_create(int32_t device, int32_t device_index, size_t bytes,
                                           flexc_memory** memory, flexc_error** error);
FLEXC_API void flexc_memory_free(flexc_memory* memory);
FLEXC_API void* flexc_memory_data(const flexc_memory* memory);
FLEXC_API size_t flexc_memory_bytes(const flexc_memory* memory);
/* From and to its start; they return when the bytes are there. */
FLEXC_API flexc_status flexc_memory_upload(flexc_memory* memory, const void* host, size_t bytes,
                                           flexc_error** error);
FLEXC_API flexc_status flexc_memory_download(const flexc_memory* memory, void* host, size_t bytes,
                                             flexc_error** error);
FLEXC_API flexc_status flexc_memory_fill(flexc_memory* memory, uint8_t byte, flexc_error** error);
/* Waits for all streams of the device. */
FLEXC_API flexc_status flexc_synchronize(int32_t device, int32_t device_index, flexc_error** error);

/* Milliseconds that calls of `work` take on the device, as Timer in flexc/compile.h measures them.
 * Of `count` times, at most 1000, as many are written as there is room for. A work that returns
 * another status than FLEXC_OK ends it. Zero for a load is its default. */
FLEXC_API flexc_status flexc_measure(int32_t device, int32_t device_index, double warm_up_ms,
                                     double load_ms, flexc_status (*work)(void* user), void* user,
                                     double* times, size_t room, size_t* count,
                                     flexc_error** error);

#ifdef __cplusplus
}
#endif

#endif
