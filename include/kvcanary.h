/*
 * kvcanary: keeps the KV cache of an LLM engine right.
 *
 * The headers are the manual. They read top to bottom; this one includes the others:
 *
 *   kvcanary.h         1  version and linkage      2  tensors            3  status and errors
 *                      4  catalogue of errors      5  threads and CPU    6  rotary embedding, write
 *                      7  token history                                     path
 *   kvcanary_canary.h  8  canary: records          9  canary: plan, write, verify
 *                      10 reading violations
 *   kvcanary_guard.h   11 the guard: what an engine holds
 *   kvcanary_sglang.h  12 SGLang's interface
 *
 * Words. A *slot* is the index of one token's row in a pool; any negative slot means "no slot,
 * skip". A *pool* is the K or the V of one layer, [slot_count, kv_heads, head_dim]. A *request
 * table* (req_to_token) holds the slot of each (request row, position); row 0 is padding. A
 * *record* is 32 bytes a slot: token, position, hash of all that came before, fingerprint of the KV
 * bytes. A *source* is one strip of real KV bytes behind a slot, for instance K of layer 3. A
 * *group* is one slot numbering with its records and sources. A *violation* is one mismatch that a
 * check found.
 *
 * Contract of every function. Bad input gives one status, one message with its numbers and one
 * catalogue slug, and nothing is written. The library never prints, exits or aborts, and allocates
 * only where a comment says so. Option structs start with struct_bytes and have an initialiser
 * macro, so that later versions can append fields; always start from the initialiser. Accepted are
 * the sizes of every published version, and larger ones whose surplus bytes are zero. Structs that
 * the library fills (kvc_rope, kvc_plan, kvc_source, ...) are written whole, in the size of this
 * header; when one grows, so does the shared library's version.
 *
 * Devices. All tensors of a call lie in host memory (KVC_DEVICE_CPU) or, in a build with CUDA, on the
 * GPU of the thread's current context. The last parameter of an operation, 'stream', is for CUDA,
 * where calls only enqueue; on the CPU it is ignored: pass NULL.
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

static inline kvc_device kvc_device_make(int32_t device_type, int32_t device_id)
{
	kvc_device device;
	device.device_type = device_type;
	device.device_id = device_id;
	return device;
}

/* Host memory. */
#define KVC_HOST kvc_device_make(KVC_DEVICE_CPU, 0)

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
	tensor.device = KVC_HOST;
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
	KVC_E_STATE = 180,           /* calls came in an order that makes no sense */
	KVC_E_CUDA = 190             /* the CUDA driver refused a call */
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
 * One entry: everything there is to say about an error of the library, of the command or of the
 * Python package, or a reason of a violation. All strings are static and never NULL; lists end with NULL.
 */
typedef struct kvc_catalog_entry {
	const char *id;                /* 16 hex digits, stable */
	const char *slug;              /* stable name, lower case with dashes */
	kvc_status status;             /* KVC_OK for violations and errors of the command */
	const char *kind;              /* "error", "violation", "finding", "python" or "cli" */
	const char *message;           /* template with {placeholders} */
	const char *pattern;           /* the same as a regular expression */
	const char *error_type;        /* "validation", "range", "resource", "corruption", ... */
	const char *error_class;       /* Python's class: ValueError, TypeError, ... */
	const char *severity;          /* "error", "warning" or "info" */
	const char *hint;              /* template of the hint */
	const char *documentation;     /* what it means */
	const char *trigger_scenarios; /* what makes it happen */
	const char *common_situations; /* where people meet it */
	const char *const *solutions;  /* what to do, best first */
	const char *fix_language;      /* "c", "sh" or "python" */
	const char *fix_before;        /* an example that gives exactly this error */
	const char *fix_after;         /* the same, mended */
	const char *validation_code;   /* a check to put before the call */
	const char *const *prevention_tips; /* how not to get here again */
	const char *const *tags;
	const char *record_json; /* the whole entry as one JSON record */
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

/* ---- 5. Threads and CPU variants ----------------------------------------------------------- */

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

/*
 * A CPU variant: kernels written for one set of instructions. All store exactly the same bytes. The
 * best one that the processor and the operating system can run is chosen at the first operation;
 * the environment variable KVC_CPU=<name> forces one. 'kvcanary cpu' shows all of this.
 *
 *   name       "avx512", "avx2", "neon" or "portable"; static
 *   supported  this machine can run it
 *   chosen     operations of this process use it
 */
typedef struct kvc_cpu_variant {
	const char *name;
	int32_t supported;
	int32_t chosen;
} kvc_cpu_variant;

/* Number of variants in this build; "portable" is always the last. Threads: any. */
KVC_API size_t kvc_cpu_variant_count(void);

/* Variant 'index', best first; its name is NULL if index >= kvc_cpu_variant_count(). Threads: any. */
KVC_API kvc_cpu_variant kvc_cpu_variant_at(size_t index);

/*
 * The index of the chosen variant. index_out: not NULL, untouched on failure.
 *
 * Returns KVC_OK; KVC_E_INVALID_ARGUMENT (NULL); KVC_E_CONFIG if KVC_CPU names a variant that does
 * not exist or that this machine cannot run. Operations that have variants then fail alike: forcing
 * a variant never runs another one in silence. Threads: any.
 */
KVC_API KVC_NODISCARD kvc_status kvc_cpu_chosen(size_t *index_out);

/* Operation 'index' that has kernels for variants, "rope_pool_fused" first; NULL past the last.
 * Static. Threads: any. */
KVC_API const char *kvc_cpu_operation_at(size_t index);

/* The name of the variant whose kernel does 'operation' in 'variant', which may be a lower one;
 * NULL if either index is too large. Static. Threads: any. */
KVC_API const char *kvc_cpu_kernel_at(size_t variant, size_t operation);

/*
 * A CUDA device as the driver numbers it. 'kvcanary cuda' shows all of this.
 *
 *   name             as the driver gives it, at most 63 characters
 *   compute_major,
 *   compute_minor    compute capability: 9, 0 is Hopper
 *   multiprocessors  how many
 *   supported        this build has kernels that run there (compiled now from PTX, if need be)
 *   memory_bytes     in total
 */
typedef struct kvc_cuda_device {
	char name[64];
	int32_t compute_major;
	int32_t compute_minor;
	int32_t multiprocessors;
	int32_t supported;
	int64_t memory_bytes;
} kvc_cuda_device;

/* What the kernels were built for, as in "sm_80 sm_90 compute_90"; "" in a build without CUDA.
 * Static. Threads: any. */
KVC_API const char *kvc_cuda_architectures(void);

/*
 * The devices of this machine, and the version of the driver (12040 is CUDA 12.4).
 *
 *   out         [capacity], may be NULL if capacity is 0; the first 'capacity' devices
 *   count_out   not NULL; how many devices there are, which may be more than capacity
 *   driver_out  may be NULL
 *
 * Returns KVC_OK; KVC_E_INVALID_ARGUMENT (NULL); KVC_E_NO_CUDA (built without CUDA, no
 * driver, no GPU: the message says which); KVC_E_CUDA if the driver fails. Outputs are untouched on
 * failure, except by the last. Needs no context and makes none. Threads: any.
 */
KVC_API KVC_NODISCARD kvc_status kvc_cuda_devices(
        kvc_cuda_device *out, size_t capacity, size_t *count_out, int32_t *driver_out);

/* ---- 6. Rotary embedding and the write path ------------------------------------------------ */

/* Which elements of a head form a rotated pair, r = rotary_dim. */
enum {
	KVC_ROPE_NEOX = 0,       /* (i, i + r/2) */
	KVC_ROPE_INTERLEAVED = 1 /* (2i, 2i + 1) */
};

/* How frequencies are stretched for contexts longer than the model was trained on. */
enum {
	KVC_ROPE_SCALING_NONE = 0,
	KVC_ROPE_SCALING_LINEAR = 1,
	KVC_ROPE_SCALING_LLAMA3 = 2,
	KVC_ROPE_SCALING_YARN = 3
};

/* The largest rotary_dim. */
#define KVC_ROTARY_DIM_MAX 512

/* Positions above this need a cos_sin_cache: the accuracy promise ends here. */
#define KVC_POSITION_MAX (1 << 24)

/*
 * What kvc_rope_init() is told. Start from KVC_ROPE_OPTIONS_INIT and set rotary_dim.
 *
 *   rotary_dim       elements of a head that rotate: even, 0 to KVC_ROTARY_DIM_MAX; no default
 *   style            KVC_ROPE_NEOX or KVC_ROPE_INTERLEAVED
 *   rope_base        "theta", > 0
 *   scaling          KVC_ROPE_SCALING_*; the fields after it are read as the scaling needs them
 *   factor           linear, llama3, yarn: > 0
 *   low_freq_factor, high_freq_factor   llama3
 *   original_max_position               llama3, yarn: context of the unscaled model, > 0
 *   beta_fast, beta_slow, truncate      yarn's ramp
 *   mscale, mscale_all_dim              yarn: 0 = not given
 *   attention_factor                    0 = automatic: 1, or with yarn its formula
 *   inv_freq         optional: float32 or float64 [rotary_dim/2] in host memory, copied; then
 *                    scaling must be NONE and rope_base is not read
 *   cos_sin_cache    optional: float32 [max_position, rotary_dim], cos half then sin half, the
 *                    attention factor included; borrowed as long as the kvc_rope is used, never
 *                    written; then nothing else but rotary_dim and style is read
 */
typedef struct kvc_rope_options {
	size_t struct_bytes;
	int32_t rotary_dim;
	int32_t style;
	double rope_base;
	int32_t scaling;
	int32_t truncate;
	double factor;
	double low_freq_factor;
	double high_freq_factor;
	double original_max_position;
	double beta_fast;
	double beta_slow;
	double mscale;
	double mscale_all_dim;
	double attention_factor;
	const kvc_tensor *inv_freq;
	const kvc_tensor *cos_sin_cache;
} kvc_rope_options;

#define KVC_ROPE_OPTIONS_INIT                                                                      \
	{                                                                                          \
		sizeof(kvc_rope_options), -1, KVC_ROPE_NEOX, 10000.0, KVC_ROPE_SCALING_NONE, 1,    \
		        1.0, 1.0, 4.0, 0.0, 32.0, 1.0, 0.0, 0.0, 0.0, NULL, NULL                   \
	}

/*
 * Frequencies ready for use. Plain data: copy it freely; nothing to free. Fill it with
 * kvc_rope_init() and treat the fields as read-only.
 */
typedef struct kvc_rope {
	size_t struct_bytes;
	int32_t rotary_dim;
	int32_t style;
	double attention_factor;
	const float *cos_sin;       /* the caller's table, or NULL */
	int64_t cos_sin_rows;       /* rows of that table: the first position past its end */
	int64_t cos_sin_row_stride; /* in elements */
	kvc_device cos_sin_device;
	double inv_freq[KVC_ROTARY_DIM_MAX / 2]; /* radians per position, rotary_dim/2 used */
} kvc_rope;

/*
 * Turn options into frequencies, once per model.
 *
 *   out      caller-owned, overwritten; untouched on failure
 *   options  borrowed for the call
 *
 * Formulas (d = rotary_dim, i = 0 .. d/2-1, all in double): f = base^(-2i/d); linear f/factor;
 * llama3 and yarn as in transformers' modeling_rope_utils (Llama 3.1; Peng et al., "YaRN").
 * Frequencies must be finite and in [0, 16] after scaling.
 *
 * Returns KVC_OK, or
 *   KVC_E_INVALID_ARGUMENT  out or options is NULL, or struct_bytes is unknown
 *   KVC_E_SHAPE             rotary_dim is odd, negative or too large; inv_freq or cos_sin_cache
 *                           has a shape that does not fit it; a cos_sin_cache without rows
 *   KVC_E_DTYPE             inv_freq is not float32 or float64, cos_sin_cache not float32
 *   KVC_E_STRIDE            cos_sin_cache's last dimension is not contiguous
 *   KVC_E_CONFIG            unknown style or scaling; a value out of its range; a frequency that
 *                           is not finite or not in [0, 16]; inv_freq together with a scaling
 *   KVC_E_DEVICE            inv_freq is not in host memory; cos_sin_cache is on an unknown device
 *   KVC_E_NO_CUDA           cos_sin_cache is in CUDA memory, which this build or machine has not
 * Threads: any.
 */
KVC_API KVC_NODISCARD kvc_status kvc_rope_init(kvc_rope *out, const kvc_rope_options *options);

/* Reasons that a kvc_report counts. */
enum {
	KVC_REPORT_SLOT_RANGE = 0,     /* slot >= slot count of the pool */
	KVC_REPORT_POSITION_RANGE = 1, /* position below 0 or past the table or KVC_POSITION_MAX */
	KVC_REPORT_SLOT_DUPLICATE = 2, /* a second token on one slot */
	KVC_REPORT_NONFINITE = 3,      /* NaN or infinity in k or v */
	KVC_REPORT_ROW_RANGE = 4,      /* request row outside its table */
	KVC_REPORT_ROW_DUPLICATE = 5,  /* a second request on one row */
	KVC_REPORT_COLUMN_RANGE = 6,   /* prefix longer than the table is wide */
	KVC_REPORT_MAPPING_RANGE = 7,  /* slot outside the window mapping */
	KVC_REPORT_OFFSETS = 8,        /* offsets that fall, are negative or pass the end */
	KVC_REPORT_TOKEN_RANGE = 9,    /* token id below 0 or above 2^31-1 */
	KVC_REPORT_LENGTH = 10,        /* a count that had to be clamped */
	KVC_REPORT_REASON_COUNT = 16
};

/*
 * Optional output of rope_pool_fused, scatter_req_token_ids and plan: what was done, what was
 * skipped. Calls add to it. On the CPU bad input is refused as a whole, so there only the last
 * three fields ever move; on CUDA the first two say which rows were left out and why.
 */
typedef struct kvc_report {
	int64_t count[KVC_REPORT_REASON_COUNT]; /* offending entries by reason */
	int64_t first[KVC_REPORT_REASON_COUNT]; /* index of the first one, -1 if none */
	int64_t rows_written;                   /* pool rows, token rows or plan entries written */
	int64_t rows_skipped;     /* legal skips: negative or reserved slot, empty request */
	int64_t tokens_truncated; /* tokens that did not fit their row */
} kvc_report;

/*
 * Make a report empty.
 *
 *   out     memory on 'device', which must be that of the calls that use it; overwritten
 *   device  KVC_HOST, or a CUDA device
 *
 * Returns KVC_OK; KVC_E_INVALID_ARGUMENT (NULL); KVC_E_DEVICE, KVC_E_NO_CUDA. Threads: any.
 */
KVC_API KVC_NODISCARD kvc_status kvc_report_init(kvc_report *out, kvc_device device, void *stream);

/* How much of a slot's bytes a fingerprint covers. Fixed for a group. */
enum {
	KVC_COVERAGE_NONE = 0,    /* nothing: fingerprint 0, never tested */
	KVC_COVERAGE_PARTIAL = 1, /* the first 16 bytes of each head (xxh3) or source (splitmix) */
	KVC_COVERAGE_ALL = 2      /* every byte of read_bytes */
};

/*
 * Where rope_pool_fused adds the fingerprints of the rows it stores: the records of a group whose
 * stamping is KVC_STAMP_CLEAR (section 8), which kvc_canary_write() has cleared for this step before
 * the first layer. Storing a layer's row twice adds twice: it takes another clear. Each stored K row adds its share under k_id, each V row
 * under v_id, mod 2^64; the record's other fields are left alone. kvc_group_stamp() fills one.
 *
 *   records              first record, on the pools' device, 8-byte aligned
 *   record_stride_bytes  >= 32, a multiple of 8
 *   record_count         >= the pools' slot count
 *   k_id, v_id           ids of the two sources: 2*layer and 2*layer + 1
 *   coverage             KVC_COVERAGE_*, as registered for the group
 *   head_bytes           bytes of one head as the group's sources declare it
 */
typedef struct kvc_stamp {
	size_t struct_bytes;
	void *records;
	int64_t record_stride_bytes;
	int64_t record_count;
	uint64_t k_id;
	uint64_t v_id;
	int32_t coverage;
	int64_t head_bytes;
} kvc_stamp;

#define KVC_STAMP_INIT                                                                             \
	{                                                                                          \
		sizeof(kvc_stamp), NULL, 32, 0, 0, 0, KVC_COVERAGE_ALL, 0                          \
	}

/*
 * Arguments of kvc_rope_pool_fused(). T tokens, Hq and Hkv heads, D head dim, P slots. Start from
 * KVC_ROPE_POOL_ARGS_INIT. Token, head and slot strides are free; the last dimension is
 * contiguous.
 *
 *   q, k, v          [T,Hq,D], [T,Hkv,D], [T,Hkv,D]; float32, float16 or bfloat16, all alike.
 *                    v and v_pool may both be NULL (MLA rows); then q's D may differ from k's
 *   positions, slots [T], int32 or int64, independently; on CUDA at multiples of their size. A
 *                    negative slot skips the pool write
 *   k_pool, v_pool   [P,Hkv,D]; the dtype of q, or float8_e4m3fn / float8_e5m2
 *   q_out, k_out     rotated q and k; may be q and k themselves (in place) or NULL (not stored)
 *   rope             from kvc_rope_init()
 *   head_dim, num_qo_heads, num_kv_heads   what q and k must have; 0 = as the tensors say
 *   n_valid          rows to process, -1 = T; positions and slots then need only n_valid entries
 *   rotary_offset, q_rotary_offset   first rotated element of a head of k and of q
 *   reserved_slot    the dummy slot of padding tokens, never written; -1 = none
 *   check_duplicates refuse two tokens on one slot
 *   check_finite     refuse NaN and infinity in k and v (rows with a slot to write)
 *   k_scale, v_scale fp8 pools: value / scale is stored; positive and finite, else 1
 *   scratch          CUDA with check_duplicates: int32 [P], zero, left zero; not read on the CPU
 *   stamp            optional: fingerprint rows while they are in cache
 *   report           optional
 */
typedef struct kvc_rope_pool_args {
	size_t struct_bytes;
	const kvc_tensor *q;
	const kvc_tensor *k;
	const kvc_tensor *v;
	const kvc_tensor *positions;
	const kvc_tensor *slots;
	const kvc_tensor *k_pool;
	const kvc_tensor *v_pool;
	const kvc_tensor *q_out;
	const kvc_tensor *k_out;
	const kvc_rope *rope;
	int64_t head_dim;
	int64_t num_qo_heads;
	int64_t num_kv_heads;
	int64_t n_valid;
	int64_t rotary_offset;
	int64_t q_rotary_offset;
	int64_t reserved_slot;
	int32_t check_duplicates;
	int32_t check_finite;
	float k_scale;
	float v_scale;
	const kvc_tensor *scratch;
	const kvc_stamp *stamp;
	kvc_report *report;
} kvc_rope_pool_args;

#define KVC_ROPE_POOL_ARGS_INIT                                                                    \
	{                                                                                          \
		sizeof(kvc_rope_pool_args), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,  \
		        NULL, 0, 0, 0, -1, 0, 0, -1, 0, 0, 1.0f, 1.0f, NULL, NULL, NULL            \
	}

/*
 * Rotate q and k by RoPE and scatter the rotated k and the untouched v into their pools, in one
 * pass over the bytes.
 *
 * Arithmetic: angle = position * inv_freq in double, cos and sin rounded once to float32; x1*c -
 * x2*s and x1*s + x2*c in float32, each operation rounded on its own; one rounding to the output
 * type. The pool row holds exactly the bits of k_out; an fp8 row is made from them. A rotated NaN
 * is stored as the positive quiet NaN. Within max(1 ulp of the output type, 4 float32 ulp of the
 * pair's norm) of the exact result at every position up to KVC_POSITION_MAX.
 *
 * A token with a negative or reserved slot gets q_out and k_out but no pool row; if its position is
 * out of range too, that is no error and its q_out and k_out rows stay as they were. Rows from
 * n_valid on are not touched. T = 0 is a no-op that reads no pointer.
 *
 * Returns KVC_OK, or, with nothing written,
 *   KVC_E_INVALID_ARGUMENT  args or a required tensor is NULL, struct_bytes is unknown
 *   KVC_E_SHAPE             a shape, rotary_dim or an offset does not fit (first: q, k, v 3-D, ...)
 *   KVC_E_DTYPE             q/k/v differ; pools fit neither them nor fp8; positions/slots not int
 *   KVC_E_LENGTH            positions or slots do not have one entry per token; n_valid > T
 *   KVC_E_DEVICE, KVC_E_NO_CUDA   tensors on different, unknown or CUDA devices
 *   KVC_E_CONFIG            unknown style, a scale out of range, a stamp that does not fit; KVC_CPU
 *                           names a variant that cannot run here (looked at first of all)
 *   KVC_E_STRIDE            last dimension not contiguous, output strides that fold rows
 *   KVC_E_OVERLAP           an output shares memory with another tensor of the call
 *   KVC_E_POSITION_RANGE    where = token; below 0, past the table or KVC_POSITION_MAX
 *   KVC_E_SLOT_RANGE        where = token; slot >= P
 *   KVC_E_SLOT_DUPLICATE    where = the later token of the pair
 *   KVC_E_NONFINITE         where = token; the message names head and dim
 *
 * On CUDA the call only enqueues; positions, slots, duplicates and non-finite rows are then
 * skipped one by one and counted in 'report'.
 * Threads: any. Two calls must not write one slot of one pool at the same time; layers may be
 * written at the same time, stamps included. Two tokens on one slot without check_duplicates leave
 * one of them or a mix, and an undefined stamp.
 * Result: byte-identical on every device, CPU variant and thread count.
 */
KVC_API KVC_NODISCARD kvc_status kvc_rope_pool_fused(const kvc_rope_pool_args *args, void *stream);

/* ---- 7. Token history ---------------------------------------------------------------------- */

/* Whose rules an operation follows where kvcanary and SGLang's kv-canary differ. */
enum {
	KVC_RULES_OWN = 0,
	KVC_RULES_SGLANG = 1 /* every byte as SGLang's kv-canary 0.5.23 */
};

/*
 * Arguments of kvc_scatter_req_token_ids(). Start from KVC_SCATTER_ARGS_INIT.
 *
 *   flat_in           int64 [N]: the tokens of all requests, one after the other
 *   offsets           int64 [bs+1]: request r has flat_in[offsets[r] .. offsets[r+1])
 *   req_pool_indices  int64 [bs]: the row of each request
 *   pool_out          int32 [R, C], row stride free
 *   rules             KVC_RULES_*
 *   allow_placeholder let token -1 through (an engine's "not known yet")
 *   narrow            store the low 32 bits of any token
 *   report            optional
 */
typedef struct kvc_scatter_args {
	size_t struct_bytes;
	const kvc_tensor *flat_in;
	const kvc_tensor *offsets;
	const kvc_tensor *req_pool_indices;
	const kvc_tensor *pool_out;
	int32_t rules;
	int32_t allow_placeholder;
	int32_t narrow;
	kvc_report *report;
} kvc_scatter_args;

#define KVC_SCATTER_ARGS_INIT                                                                      \
	{                                                                                          \
		sizeof(kvc_scatter_args), NULL, NULL, NULL, NULL, KVC_RULES_OWN, 0, 0, NULL        \
	}

/*
 * Write the token history of each request into its row of an int32 table:
 * pool_out[req_pool_indices[r], 0:n] = flat_in[offsets[r] : offsets[r]+n], n at most C.
 *
 * The table is int32 to halve its memory; the inputs are int64. Longer segments are cut and counted
 * (report.tokens_truncated). Requests of zero length are ignored wholly. Tokens before offsets[0]
 * or from offsets[bs] on belong to nobody. Row 0 is an ordinary row here. All else stays untouched.
 *
 * Returns KVC_OK, or, with nothing written,
 *   KVC_E_INVALID_ARGUMENT  args or a tensor is NULL, struct_bytes is unknown
 *   KVC_E_SHAPE, KVC_E_DTYPE, KVC_E_STRIDE, KVC_E_DEVICE, KVC_E_NO_CUDA   a tensor does not fit
 *   KVC_E_OVERLAP           pool_out shares memory with an input
 *   KVC_E_LENGTH            offsets do not have bs+1 entries; offsets fall, are negative or pass N
 *   KVC_E_ROW_RANGE         where = request; its row lies outside [0, R)
 *   KVC_E_ROW_DUPLICATE     where = the later request of two on one row
 *   KVC_E_TOKEN_RANGE       where = index in flat_in; below 0 or above 2^31-1
 * With KVC_RULES_SGLANG a request with falling offsets is skipped, of two on one row the later
 * wins, and tokens are narrowed.
 * On CUDA the call only enqueues, one launch; a request that the CPU would refuse is left out as a
 * whole and counted in 'report', once, under the first of offsets, row, second request on a row and
 * token. A row belongs to the first request with tokens and sound offsets on it.
 * Threads: any; two calls must not write one row at the same time.
 */
KVC_API KVC_NODISCARD kvc_status kvc_scatter_req_token_ids(
        const kvc_scatter_args *args, void *stream);

#ifdef __cplusplus
}
#endif

#include "kvcanary_canary.h" /* sections 8 to 10 */
#include "kvcanary_guard.h"  /* section 11 */
#include "kvcanary_sglang.h" /* section 12 */

#endif /* KVCANARY_H */
