/* The C interface: everything of the C++ one as plain structs and functions, usable from C99.
 *
 * Conventions
 * - Structs whose first field is `struct_size` are versioned: fill them with zeros (or call their
 *   init function), set struct_size to sizeof the struct. A size that an older header had is
 *   accepted; a larger one (at most 64 KiB) only when the bytes this library does not know are
 *   zero.
 * - Fallible functions return a rowmax_status. After an error they have written nothing but the
 *   message (one exception, at rowmax_execute): `message` receives at most `message_bytes` bytes,
 *   always ended by a zero byte; it may be NULL. A message names the argument, its value and what
 *   is accepted.
 * - No function throws, keeps state between calls or needs set-up; all are thread-safe.
 * - Sizes and strides are elements, 64 bit. Rules and formulas: docs/semantics.md.
 */
#ifndef ROWMAX_C_API_H_
#define ROWMAX_C_API_H_

#include <stddef.h>
#include <stdint.h>

#include "rowmax/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Values equal rowmax::StatusCode. */
typedef int32_t rowmax_status;
enum {
  ROWMAX_OK = 0,
  ROWMAX_INVALID_ARGUMENT = 1, /* the input breaks a rule; the message names argument and value */
  ROWMAX_UNSUPPORTED = 2,      /* a legal request that no kernel serves */
  ROWMAX_OUT_OF_MEMORY = 3,    /* the workspace is missing or too small */
  ROWMAX_IO_ERROR = 4,
  ROWMAX_INTERNAL = 5 /* a broken invariant of the library, or no memory for a message */
};

/* Values equal rowmax::DType. */
typedef int32_t rowmax_dtype;
enum {
  ROWMAX_F64 = 0,
  ROWMAX_F32 = 1,
  ROWMAX_BF16 = 2,
  ROWMAX_F16 = 3,
  ROWMAX_BOOL = 4,
  ROWMAX_I32 = 5,
  ROWMAX_I64 = 6
};

enum { ROWMAX_FORWARD = 0, ROWMAX_BACKWARD = 1 };
enum { ROWMAX_DENSE = 0, ROWMAX_RAGGED = 1, ROWMAX_PAGED = 2 };
enum { ROWMAX_BOTTOM_RIGHT = 0, ROWMAX_TOP_LEFT = 1 };

/* Bits of rowmax_problem.gradients. The last one says that a gradient of LSE comes in. */
enum {
  ROWMAX_DQ = 1,
  ROWMAX_DK = 2,
  ROWMAX_DV = 4,
  ROWMAX_DBIAS = 8,
  ROWMAX_DSINKS = 16,
  ROWMAX_DSLOPES = 32,
  ROWMAX_DLSE = 64
};

/* Version of the loaded library, e.g. "0.1.0". Static. */
ROWMAX_API const char* rowmax_version(void);

/* Name of a status, e.g. "invalid argument". Static. */
ROWMAX_API const char* rowmax_status_name(rowmax_status status);

/* A strided tensor in host memory; the innermost stride is 1. All zero: absent. */
typedef struct rowmax_tensor {
  void* data;
  rowmax_dtype dtype;
  int32_t rank; /* 0 to 4 */
  int64_t sizes[4];
  int64_t strides[4];
} rowmax_tensor;

/* A row-major view of `data`: `rank` sizes (at most 4 are read), outermost first. */
ROWMAX_API rowmax_tensor rowmax_contiguous(void* data, rowmax_dtype dtype, int32_t rank,
                                           const int64_t* sizes);

/* Shape of a mask or bias: each axis of (B, Hq, Sq, Sk) has its full size (1) or size 1 (0). */
typedef struct rowmax_broadcast {
  int32_t present;
  rowmax_dtype dtype; /* ROWMAX_BOOL for a mask, any floating type for a bias */
  int32_t batch;
  int32_t heads;
  int32_t rows;
  int32_t cols;
} rowmax_broadcast;

/* What is to be computed; the fields of rowmax::AttentionProblem. Flags are 0 or 1. */
typedef struct rowmax_problem {
  size_t struct_size;
  int32_t op;             /* ROWMAX_FORWARD, ROWMAX_BACKWARD */
  rowmax_dtype dtype;     /* of Q, K, V and their gradients */
  rowmax_dtype out_dtype; /* dtype, or ROWMAX_F32 */
  int32_t alignment;      /* of the band: ROWMAX_BOTTOM_RIGHT, ROWMAX_TOP_LEFT */
  int64_t batch;
  int64_t heads_q;
  int64_t heads_kv;
  int64_t seqlen_q; /* ragged and paged: upper bounds of the lengths */
  int64_t seqlen_k;
  int64_t head_dim;
  int64_t head_dim_v;
  int32_t source_q; /* ROWMAX_DENSE, ROWMAX_RAGGED */
  int32_t source_k; /* ROWMAX_DENSE, ROWMAX_RAGGED, ROWMAX_PAGED */
  int64_t total_q;
  int64_t total_k;
  int64_t page_size;
  int64_t num_pages;
  int64_t max_pages;
  int32_t seqused_q;
  int32_t seqused_k;
  int32_t left_bounded;  /* 0: unbounded, band_left is not looked at */
  int32_t right_bounded; /* causal: right_bounded = 1, band_right = 0 */
  int64_t band_left;
  int64_t band_right;
  double scale;   /* 0: 1 / sqrt(head_dim) */
  double softcap; /* 0: none; else 1e-30 to 1e30 */
  rowmax_broadcast mask;
  rowmax_broadcast bias;
  int32_t alibi;
  int32_t alibi_per_batch;
  int32_t document_ids;
  int32_t block_mask;
  int32_t sinks;
  int32_t lse; /* forward: LSE is written. Backward needs 1. */
  double dropout_p;
  uint32_t gradients; /* backward: ROWMAX_DQ | ...; forward: not looked at */
  int32_t batch_invariant;
} rowmax_problem;

/* The defaults of the C++ interface: one f32 forward of one row, one key, head dim 64, with LSE,
 * and for backward dQ, dK, dV. struct_size = sizeof(rowmax_problem), which is stored too. */
ROWMAX_API void rowmax_problem_init(rowmax_problem* problem, size_t struct_size);

/* Reads the text form, e.g. "forward bf16 b2 hq8 hkv2 sq113 sk203 d128 causal" (grammar:
 * docs/testing.md), into *problem, whose struct_size is set. Errors: unknown words, broken rules.
 */
ROWMAX_API rowmax_status rowmax_problem_parse(const char* text, rowmax_problem* problem,
                                              char* message, size_t message_bytes);

/* Writes the text form. `*needed` (may be NULL) receives its bytes with the final zero; a smaller
 * `text_bytes` gets the beginning. */
ROWMAX_API rowmax_status rowmax_problem_format(const rowmax_problem* problem, char* text,
                                               size_t text_bytes, size_t* needed, char* message,
                                               size_t message_bytes);

/* How to plan. NULL stands for all zero. */
typedef struct rowmax_plan_options {
  size_t struct_size;
  const char* force_kernel; /* exact kernel name, or NULL */
  int64_t max_workspace;    /* most bytes of rowmax_plan_workspace_bytes(plan, 1); 0: no limit */
  int32_t reserved[2];      /* 0 */
  const char* device;       /* a name of rowmax::find_device, e.g. "cuda:0"; NULL: "cpu" */
} rowmax_plan_options;

/* An immutable plan. May be used by any number of threads at a time. */
typedef struct rowmax_plan rowmax_plan;

/* *plan receives a plan to be destroyed by the caller, or NULL after an error: a broken problem,
 * ROWMAX_UNSUPPORTED with the reason of every kernel, or ROWMAX_OUT_OF_MEMORY with the least need.
 */
ROWMAX_API rowmax_status rowmax_plan_create(const rowmax_problem* problem,
                                            const rowmax_plan_options* options, rowmax_plan** plan,
                                            char* message, size_t message_bytes);
ROWMAX_API void rowmax_plan_destroy(rowmax_plan* plan); /* NULL is fine */

/* Name of the main kernel; lives as long as the plan. "" for NULL. */
ROWMAX_API const char* rowmax_plan_kernel(const rowmax_plan* plan);

/* Bytes of workspace, to be aligned to 64, for a thread count (0: the default one). */
ROWMAX_API size_t rowmax_plan_workspace_bytes(const rowmax_plan* plan, int32_t threads);

/* What was chosen and why, as text; arguments as in rowmax_problem_format. */
ROWMAX_API rowmax_status rowmax_plan_explain(const rowmax_plan* plan, char* text, size_t text_bytes,
                                             size_t* needed, char* message, size_t message_bytes);

/* Operands, shapes as in rowmax/attention.h. Forward writes out and lse; backward reads them and
 * writes dq ... dslopes. What the problem does not use must be absent. */
typedef struct rowmax_tensors {
  size_t struct_size;
  rowmax_tensor q, k, v; /* (B, S, H, D), (total, H, D) or (pages, page_size, H, D) */
  rowmax_tensor out;     /* (B, Sq, Hq, Dv) or (total_q, Hq, Dv) */
  rowmax_tensor lse;     /* (B, Hq, Sq) or (Hq, total_q), fp32 (fp64 for fp64), natural log */
  rowmax_tensor cu_seqlens_q, cu_seqlens_k;   /* (B + 1), i32 or i64 */
  rowmax_tensor seqused_q, seqused_k;         /* (B), i32 or i64 */
  rowmax_tensor block_table;                  /* (B, max_pages), i32 */
  rowmax_tensor mask, bias;                   /* broadcast of (B, Hq, Sq, Sk) */
  rowmax_tensor slopes;                       /* (Hq) or (B, Hq), fp32 */
  rowmax_tensor documents_q, documents_k;     /* (B, S) or (total), i32 */
  rowmax_tensor sinks;                        /* (Hq), fp32 */
  rowmax_tensor dout, dlse;                   /* as out, as lse */
  rowmax_tensor dq, dk, dv, dbias;            /* as q, k, v, bias */
  rowmax_tensor dsinks, dslopes;              /* as sinks, slopes */
  uint64_t dropout_seed, dropout_offset;      /* used when dropout_state is NULL */
  const uint64_t* dropout_state;              /* seed, offset; read at execution */
  int64_t dropout_row_base, dropout_col_base; /* position of the first row and key */
} rowmax_tensors;

/* Runs fn(arg, w) once for every w in [0, workers) and returns when all have returned. */
typedef void (*rowmax_parallel_for)(void* context, int workers, void (*fn)(void* arg, int worker),
                                    void* arg);

/* How to execute. NULL stands for all zero. */
typedef struct rowmax_execute_options {
  size_t struct_size;
  int32_t threads;  /* 0: the OpenMP default; at most 1024. Results never depend on it. */
  int32_t reserved; /* 0 */
  rowmax_parallel_for parallel_for; /* NULL: OpenMP */
  void* parallel_context;
  void* stream;      /* plans of a GPU: a cudaStream_t, NULL: the default stream */
  int32_t sm_margin; /* plans of a GPU: multiprocessors to leave to other work */
  int32_t reserved2; /* 0 */
} rowmax_execute_options;

/* Checks every tensor and the workspace, then computes. `workspace`: one per concurrent call, apart
 * from every tensor. Outputs are written, and incomplete, only after two errors that show while it
 * computes: an executor that did not run every worker, and memory that ran out in a reference
 * kernel. Plans of a GPU: tensors and workspace are its memory, in use until the enqueued work has
 * finished; the rest is said at rowmax::execute. */
ROWMAX_API rowmax_status rowmax_execute(const rowmax_plan* plan, const rowmax_tensors* tensors,
                                        void* workspace, size_t workspace_bytes,
                                        const rowmax_execute_options* options, char* message,
                                        size_t message_bytes);

/* A partial result over a set of keys, fp32: see rowmax/state.h. */
typedef struct rowmax_state {
  float* m; /* (rows), -inf: no key seen */
  float* l; /* (rows) */
  float* o; /* (rows, dims) */
  int64_t rows;
  int64_t dims;
  int64_t o_stride;
} rowmax_state;

/* into := parts[0] + ... + parts[count - 1]; `into` may be one of the parts. */
ROWMAX_API rowmax_status rowmax_merge(const rowmax_state* parts, int32_t count,
                                      const rowmax_state* into, char* message,
                                      size_t message_bytes);
/* A normalised output without sinks (rows, dims) and its LSE (rows) as a state. */
ROWMAX_API rowmax_status rowmax_state_from_output(const float* out, int64_t out_stride,
                                                  const float* lse, const rowmax_state* into,
                                                  char* message, size_t message_bytes);
/* out (rows, dims) and lse (rows, or NULL) of a state; `sinks`: (rows) logits or NULL. */
ROWMAX_API rowmax_status rowmax_finalize(const rowmax_state* state, const float* sinks, float* out,
                                         int64_t out_stride, float* lse, char* message,
                                         size_t message_bytes);

#ifdef __cplusplus
}
#endif

#endif /* ROWMAX_C_API_H_ */
