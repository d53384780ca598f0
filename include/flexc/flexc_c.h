/* flexc for C99 and for languages that can call C. The C++ headers say what each call means.
 *
 * Structs belong to the caller, who sets struct_size to sizeof the struct and leaves what it does
 * not need zero: zero means the default everywhere. That is how structs can grow while old callers
 * keep working. In an array, every element has the struct_size of the first.
 *
 * A call that can fail returns a status. If its `error` is not NULL and it fails, *error is set to
 * an object that holds the text and is to be freed; if it succeeds, *error is set to NULL.
 *
 * Handles may be used by many threads at once and are freed once. Freeing NULL does nothing. */
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
    FLEXC_ERROR_INTERNAL = 9 /* a bug in flexc */
};

typedef struct flexc_error flexc_error;
FLEXC_API flexc_status flexc_error_status(const flexc_error* error);
FLEXC_API const char* flexc_error_message(const flexc_error* error); /* lives as long as error */
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
    FLEXC_BOOL = 10
};

enum { FLEXC_DEVICE_AUTOMATIC = 0, FLEXC_DEVICE_CPU = 1, FLEXC_DEVICE_CUDA = 2 };
enum { FLEXC_FORWARD_AUTOMATIC = 0, FLEXC_FORWARD_GENERIC = 1, FLEXC_FORWARD_HOPPER = 2 };
enum {
    FLEXC_BACKWARD_AUTOMATIC = 0,
    FLEXC_BACKWARD_FUSED = 1,
    FLEXC_BACKWARD_SPLIT = 2,
    FLEXC_BACKWARD_GENERIC = 3,
    FLEXC_BACKWARD_HOPPER = 4
};
enum { FLEXC_GRADIENT_F32 = 0, FLEXC_GRADIENT_BUFFER = 1 };
/* Where a kernel knows the tiles of a prefix or padding from. */
enum { FLEXC_MASK_TILES_AUTOMATIC = 0, FLEXC_MASK_TILES_RANGES = 1, FLEXC_MASK_TILES_MAPS = 2 };
enum { FLEXC_LOG_DEBUG = 0, FLEXC_LOG_INFO = 1, FLEXC_LOG_WARNING = 2, FLEXC_LOG_ERROR = 3 };

#define FLEXC_MAX_DIMS 8

/* Memory that the caller owns, on the kernel's device. data == NULL means "not given". Without
 * has_strides it is contiguous; strides are in elements and may be zero or negative. */
typedef struct flexc_tensor {
    uint32_t struct_size;
    int32_t dtype;
    void* data;
    int32_t rank;
    int32_t has_strides;
    int64_t shape[FLEXC_MAX_DIMS];
    int64_t strides[FLEXC_MAX_DIMS];
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
    int32_t reserved;
} flexc_compile_options;

typedef struct flexc_kernel flexc_kernel;
/* options may be NULL. Plans keep what they need of a kernel that is freed. */
FLEXC_API flexc_status flexc_compile(const char* text, const flexc_compile_options* options,
                                     flexc_kernel** kernel, flexc_error** error);
FLEXC_API void flexc_kernel_free(flexc_kernel* kernel);

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
FLEXC_API const char* flexc_signature_warning(const flexc_signature* signature, size_t index);

/* --- info ------------------------------------------------------------------------------------ */

typedef struct flexc_kernel_info {
    uint32_t struct_size;
    int32_t device;
    int32_t device_index;
    int32_t from_cache; /* no backend compiler ran */
    double compile_ms;
    size_t function_count;
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

/* All are needed: here zero is an error. */
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
    int32_t reserved;
} flexc_plan_options;

/* q [B,H,Q,D], k [B,H_KV,KV,D], v [B,H_KV,KV,DV], o [B,H,Q,DV], lse [B,H,Q]; lse may be absent. */
typedef struct flexc_forward_tensors {
    uint32_t struct_size;
    uint32_t reserved;
    const flexc_tensor *q, *k, *v, *o, *lse;
} flexc_forward_tensors;

/* o and lse as forward gave them; d_lse may be absent. Gradients of buffers are closer with o in
   f32. */
typedef struct flexc_backward_tensors {
    uint32_t struct_size;
    uint32_t reserved;
    const flexc_tensor *q, *k, *v, *o, *lse, *d_out, *d_lse, *dq, *dk, *dv;
} flexc_backward_tensors;

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
/* Builds the plan's map of visible tiles again, for buffers that hold something else. */
FLEXC_API flexc_status flexc_plan_update(const flexc_kernel* kernel, const flexc_plan* plan,
                                         const flexc_named_tensor* buffers, size_t buffer_count,
                                         void* stream, flexc_error** error);
FLEXC_API void flexc_plan_free(flexc_plan* plan);
FLEXC_API size_t flexc_plan_workspace_bytes(const flexc_plan* plan);
/* Of the map of visible tiles; 0 where the mask needs none. */
FLEXC_API size_t flexc_plan_map_bytes(const flexc_plan* plan);

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

#ifdef __cplusplus
}
#endif

#endif
