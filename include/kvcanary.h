/*
 * kvcanary: keeps the KV cache of an LLM engine right.
 *
 * This header is the manual. It reads top to bottom:
 *
 *   1  version and linkage       2  tensors             3  status and errors
 *   4  catalogue of errors       5  threads             6  rotary embedding, write path
 *   7  token history             8  canary: records     9  canary: plan, write, verify
 *   10 reading violations        11 the guard
 *
 * Words. A *slot* is the index of one token's row in a pool; any negative slot means "no slot,
 * skip". A *pool* is the K or the V of one layer, [slot_count, kv_heads, head_dim]. A *request
 * table* (req_to_token) holds the slot of each (request row, position); row 0 is padding. A *record*
 * is 32 bytes a slot: token, position, hash of all that came before, fingerprint of the KV bytes. A
 * *source* is one strip of real KV bytes behind a slot, for instance K of layer 3. A *group* is one
 * slot numbering with its records and sources. A *violation* is one mismatch that a check found.
 *
 * Contract of every function. Bad input gives one status, one message with its numbers and one
 * catalogue slug, and nothing is written. The library never prints, exits or aborts, and allocates
 * only where a comment says so. Option structs start with struct_bytes and have an initialiser
 * macro, so that later versions can append fields; always start from the initialiser.
 *
 * Devices. This build works on tensors in host memory (KVC_DEVICE_CPU). The last parameter of an
 * operation, 'stream', is for CUDA and ignored on the CPU: pass NULL.
 */
#ifndef KVCANARY_H
#define KVCANARY_H

#include <stddef.h>
#include <stdint.h>

/* ---- 1. Version and linkage ---------------------------------------------------------------- */

#define KVC_VERSION_MAJOR 0
#define KVC_VERSION_MINOR 1
#define KVC_VERSION_PATCH 0

#if defined(__GNUC__)
#define KVC_API __attribute__((visibility("default")))
#define KVC_NODISCARD __attribute__((warn_unused_result))
#else
#define KVC_API
#define KVC_NODISCARD
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the library in use, as "major.minor.patch". Static; never NULL. Threads: any. */
KVC_API const char *kvc_version(void);

/* ---- 2. Tensors ---------------------------------------------------------------------------- */

/* Device types, numbered as in DLPack. */
enum {
	KVC_DEVICE_CPU = 1,
	KVC_DEVICE_CUDA = 2,
	KVC_DEVICE_CUDA_HOST = 3,    /* pinned host memory; treated as CPU */
	KVC_DEVICE_CUDA_MANAGED = 13 /* treated as CUDA */
};

typedef struct kvc_device {
	int32_t device_type; /* KVC_DEVICE_* */
	int32_t device_id;
} kvc_device;

/* Element type codes, numbered as in DLPack. */
enum {
	KVC_CODE_INT = 0,
	KVC_CODE_UINT = 1,
	KVC_CODE_FLOAT = 2,
	KVC_CODE_BFLOAT = 4,
	KVC_CODE_BOOL = 6,
	KVC_CODE_FLOAT8_E4M3FN = 10,
	KVC_CODE_FLOAT8_E5M2 = 12
};

typedef struct kvc_dtype {
	uint8_t code;   /* KVC_CODE_* */
	uint8_t bits;   /* width of one element */
	uint16_t lanes; /* always 1 here */
} kvc_dtype;

/*
 * A strided array that the caller owns; borrowed for the call. The memory layout is that of
 * DLPack's DLTensor, so a pointer to one casts to the other.
 *
 *   data         first byte of the allocation; may be NULL only if the tensor has no element
 *   ndim         number of dimensions; 'shape' and 'strides' have that many entries
 *   strides      in elements, or NULL for a contiguous (row-major) array
 *   byte_offset  added to 'data' before any access
 */
typedef struct kvc_tensor {
	void *data;
	kvc_device device;
	int32_t ndim;
	kvc_dtype dtype;
	int64_t *shape;
	int64_t *strides;
	uint64_t byte_offset;
} kvc_tensor;

static inline kvc_dtype kvc_dtype_make(int code, int bits)
{
	kvc_dtype dtype;
	dtype.code = (uint8_t)code;
	dtype.bits = (uint8_t)bits;
	dtype.lanes = 1;
	return dtype;
}

#define KVC_FLOAT32 kvc_dtype_make(KVC_CODE_FLOAT, 32)
#define KVC_FLOAT64 kvc_dtype_make(KVC_CODE_FLOAT, 64)
#define KVC_FLOAT16 kvc_dtype_make(KVC_CODE_FLOAT, 16)
#define KVC_BFLOAT16 kvc_dtype_make(KVC_CODE_BFLOAT, 16)
#define KVC_FLOAT8_E4M3FN kvc_dtype_make(KVC_CODE_FLOAT8_E4M3FN, 8)
#define KVC_FLOAT8_E5M2 kvc_dtype_make(KVC_CODE_FLOAT8_E5M2, 8)
#define KVC_INT32 kvc_dtype_make(KVC_CODE_INT, 32)
#define KVC_INT64 kvc_dtype_make(KVC_CODE_INT, 64)
#define KVC_UINT8 kvc_dtype_make(KVC_CODE_UINT, 8)

/*
 * A contiguous tensor in host memory over 'data'. 'shape' ('ndim' entries) is borrowed and must
 * outlive the tensor. Cannot fail; the operations check what they are given.
 */
static inline kvc_tensor kvc_tensor_make(void *data, kvc_dtype dtype, int32_t ndim, int64_t *shape)
{
	kvc_tensor tensor;
	tensor.data = data;
	tensor.device.device_type = KVC_DEVICE_CPU;
	tensor.device.device_id = 0;
	tensor.ndim = ndim;
	tensor.dtype = dtype;
	tensor.shape = shape;
	tensor.strides = NULL;
	tensor.byte_offset = 0;
	return tensor;
}

/* ---- 3. Status and errors ------------------------------------------------------------------ */

/*
 * The family of an error, for a program to branch on. Numbers are never reused. The exact error
 * is the slug of kvc_last_error(), which names an entry of the catalogue.
 */
typedef enum kvc_status {
	KVC_OK = 0,
	KVC_E_INVALID_ARGUMENT = 10, /* a required pointer is NULL, or struct_bytes is not known */
	KVC_E_SHAPE = 20,            /* a tensor has the wrong number or size of dimensions */
	KVC_E_DTYPE = 30,            /* a tensor has the wrong element type */
	KVC_E_DEVICE = 40,           /* tensors of one call lie on different or unknown devices */
	KVC_E_STRIDE = 50,           /* a tensor's strides cannot be worked with */
	KVC_E_OVERLAP = 60,          /* an output shares memory with another tensor of the call */
	KVC_E_LENGTH = 70,           /* two lengths or counts do not fit each other */
	KVC_E_CONFIG = 80,           /* an option has a value that makes no sense here */
	KVC_E_SLOT_RANGE = 90,       /* a slot lies outside its pool */
	KVC_E_SLOT_DUPLICATE = 100,  /* a slot is claimed twice */
	KVC_E_POSITION_RANGE = 110,  /* a position is negative or too large */
	KVC_E_TOKEN_RANGE = 120,     /* a token id is negative or too large */
	KVC_E_ROW_RANGE = 130,       /* a table row, column or mapping index is out of range */
	KVC_E_ROW_DUPLICATE = 140,   /* two requests name one table row */
	KVC_E_NONFINITE = 150,       /* a NaN or infinity where finite values were asked for */
	KVC_E_NO_CUDA = 160,         /* a CUDA tensor, and this build or machine has no CUDA */
	KVC_E_NO_MEMORY = 170,       /* an allocation failed */
	KVC_E_STATE = 180            /* calls came in an order that makes no sense */
} kvc_status;

/* The name of a status, for instance "KVC_E_SHAPE"; "KVC_E_?" if unknown. Threads: any. */
KVC_API const char *kvc_status_name(kvc_status status);

/*
 * What went wrong in this thread's last failing call.
 *
 *   status   the family, as the call returned it
 *   slug     the catalogue entry, for instance "v-pool-shape-must-match-k-pool-shape"
 *   hint     what to try, a full sentence with its numbers; may be empty
 *   where    index of the first offending entry (token, request, source), -1 if it has none
 *   message  one line with its numbers, no trailing newline
 */
typedef struct kvc_error {
	kvc_status status;
	const char *slug;
	int64_t where;
	char message[512];
	char hint[512];
} kvc_error;

/*
 * This thread's last error. Never NULL; owned by the library, overwritten by this thread's next
 * failing call, left alone by successful ones. Meaningful only after a call that failed; before
 * the first failure status is KVC_OK and the slug is "ok".
 */
KVC_API const kvc_error *kvc_last_error(void);

/* ---- 4. Catalogue of errors ---------------------------------------------------------------- */

/*
 * One entry: everything there is to say about an error of the library, an error of the command,
 * or a reason of a violation. All strings are static and never NULL; lists end with NULL.
 */
typedef struct kvc_catalog_entry {
	const char *id;                     /* 16 hex digits, stable */
	const char *slug;                   /* stable name, lower case with dashes */
	kvc_status status;                  /* KVC_OK for violations and errors of the command */
	const char *kind;                   /* "error", "violation" or "cli" */
	const char *message;                /* template with {placeholders} */
	const char *pattern;                /* the same as a regular expression */
	const char *error_type;             /* "validation", "range", "resource", "corruption", ... */
	const char *error_class;            /* Python's class: ValueError, TypeError, ... */
	const char *severity;               /* "error", "warning" or "info" */
	const char *hint;                   /* template of the hint */
	const char *documentation;          /* what it means */
	const char *trigger_scenarios;      /* what makes it happen */
	const char *common_situations;      /* where people meet it */
	const char *const *solutions;       /* what to do, best first */
	const char *fix_language;           /* "c" or "sh" */
	const char *fix_before;             /* an example that gives exactly this error */
	const char *fix_after;              /* the same, mended */
	const char *validation_code;        /* a check to put before the call */
	const char *const *prevention_tips; /* how not to get here again */
	const char *const *tags;
	const char *record_json;            /* the whole entry as one JSON record */
} kvc_catalog_entry;

/* Number of entries in the catalogue. Threads: any. */
KVC_API size_t kvc_catalog_count(void);

/* Entry 'index' in order of slugs, or NULL if index >= kvc_catalog_count(). Threads: any. */
KVC_API const kvc_catalog_entry *kvc_catalog_at(size_t index);

/* The entry with this slug, or NULL if there is none. slug: not NULL. Threads: any. */
KVC_API const kvc_catalog_entry *kvc_catalog_find(const char *slug);

/*
 * The entry whose message template fits 'text' best (most literal characters), or NULL. The
 * template may stand anywhere in 'text', so that a pasted log line with a prefix is recognised.
 *
 *   text             not NULL; need not come from this version of the library
 *   start_out,       entries for each placeholder, in the template's order: where its value begins
 *   length_out       in 'text', and how many bytes it has; either may be NULL
 *   capacity         entries of the two arrays; further placeholders are matched but not stored
 *   count_out        number of placeholders of the template found; may be NULL
 *
 * Threads: any.
 */
KVC_API const kvc_catalog_entry *kvc_catalog_match(const char *text, size_t *start_out,
	size_t *length_out, size_t capacity, size_t *count_out);

/* ---- 5. Threads ---------------------------------------------------------------------------- */

/* Work on [begin, end) of a larger range; called from several threads at once. */
typedef void (*kvc_range_fn)(void *task, int64_t begin, int64_t end);

/*
 * The engine's own parallel-for: call 'run' on disjoint pieces that cover [0, count), each at
 * least 'grain' long except the last, on any threads, and return when all are done.
 */
typedef void (*kvc_parallel_for_fn)(
	void *context, int64_t count, int64_t grain, kvc_range_fn run, void *task);

/*
 * How many threads the library's own pool may use, the calling one included; 0 = one per CPU that
 * this process may run on (the default). Takes effect at the next operation; 1 stops and frees the
 * workers. Small calls never wake a worker. Results do not depend on the number.
 * Starts threads: KVC_E_NO_MEMORY if that fails; the former number stays.
 * KVC_E_CONFIG if thread_count is negative or above 1024.
 * Threads: any, but not while another thread is inside an operation.
 */
KVC_API KVC_NODISCARD kvc_status kvc_set_num_threads(int32_t thread_count);

/* The number of threads in use (resolved, never 0). Threads: any. */
KVC_API int32_t kvc_get_num_threads(void);

/*
 * Use the engine's thread pool in place of the library's: every operation that is worth splitting
 * calls 'parallel_for' with 'context'. NULL goes back to the library's own pool.
 * Threads: as kvc_set_num_threads().
 */
KVC_API void kvc_set_parallel_for(kvc_parallel_for_fn parallel_for, void *context);

#ifdef __cplusplus
}
#endif

#endif /* KVCANARY_H */
