/*
 * kvcanary: keeps the KV cache of an LLM engine right.
 *
 * This header is the manual. It reads top to bottom:
 *
 *   1  version and linkage       2  tensors             3  status and errors
 *   4  catalogue of errors       5  threads and CPU     6  rotary embedding, write path
 *   7  token history             8  canary: records     9  canary: plan, write, verify
 *   10 reading violations        11 the guard           12 SGLang's interface
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

/* ---- 8. The canary: records, sources, groups ----------------------------------------------- */

/* Bytes of one record, and its four int64 fields. */
#define KVC_RECORD_BYTES 32
typedef struct kvc_record {
	int64_t token;
	int64_t position;
	uint64_t prev_hash;   /* chain over all that came before this slot */
	uint64_t fingerprint; /* of the KV bytes of the group's sources */
} kvc_record;

/* Who stamped a slot last. */
typedef struct kvc_owner {
	int64_t request; /* the caller's id of the request, -1 = nobody yet */
	uint32_t step;
	uint32_t tag; /* launch tag of the write */
} kvc_owner;

enum {
	KVC_FINGERPRINT_XXH3 = 0,    /* sum over sources; any length; the default */
	KVC_FINGERPRINT_SPLITMIX = 1 /* SGLang's fold; sources in order */
};

enum {
	KVC_STAMP_COMPUTE = 0, /* write hashes what lies in the pool, after the last layer */
	KVC_STAMP_CLEAR = 1    /* write stores 0; rope_pool_fused adds the shares as it writes */
};

/*
 * One strip of real KV bytes behind each slot. Slot x has, for each head h, head_bytes bytes at
 *
 *   base + x / page_size * row_stride_bytes + x % page_size * slot_stride_bytes
 *        + h * head_stride_bytes
 *
 * concatenated; the first read_bytes of that are fingerprinted. head_count 1 is a contiguous slot;
 * other strides describe NHD and HND pages and packed K|V. Layouts that no strides describe give a
 * gather table instead: byte offsets inside a row, int32 [page_size, units], on the sources'
 * device, units * unit_bytes = head_count * head_bytes; slot_stride_bytes and head_stride_bytes are
 * then not read. The bytes are always those of (head, dim) order, so the same K and V fingerprint
 * alike in every layout.
 *
 *   base            first byte of row 0; the live pool, never a copy
 *   row_count       rows (pages); row_count * page_size slots
 *   read_bytes      1 .. head_count * head_bytes
 *   id              2*layer for K, 2*layer+1 for V, 2*layer for an MLA row as a whole, from 2^32
 *                   on for other strips; no two alike in a group
 *   dtype           element type, for the finite check and its texts
 *   gather          NULL, or the table; then unit_bytes is 1, 2, 4, 8 or 16
 */
typedef struct kvc_source {
	const void *base;
	int64_t row_count;
	int64_t row_stride_bytes;
	int64_t page_size;
	int64_t slot_stride_bytes;
	int64_t head_count;
	int64_t head_bytes;
	int64_t head_stride_bytes;
	int64_t read_bytes;
	uint64_t id;
	kvc_dtype dtype;
	int32_t unit_bytes;
	const int32_t *gather;
} kvc_source;

/*
 * The source that a pool tensor [slot_count, heads, dim] is, with the given id.
 * Returns KVC_OK; KVC_E_INVALID_ARGUMENT (NULL), KVC_E_SHAPE (not 3-D), KVC_E_STRIDE (last
 * dimension not contiguous, negative strides), KVC_E_DTYPE (no byte-sized element). Threads: any.
 */
KVC_API KVC_NODISCARD kvc_status kvc_source_from_pool(
        kvc_source *out, const kvc_tensor *pool, uint64_t id);

/*
 * One slot numbering with its records and sources. Start from KVC_GROUP_INIT. All memory belongs to
 * the caller and lies on 'device'.
 *
 *   records              record_count records, record_stride_bytes apart (>= 32, a multiple of 8),
 *                        8-byte aligned; all zero = never stamped
 *   owners               record_count entries, request -1 at first, or NULL
 *   sources              source_count sources in order, or NULL and 0
 *   fingerprint          KVC_FINGERPRINT_*
 *   coverage             KVC_COVERAGE_*
 *   stamping             KVC_STAMP_*; CLEAR needs xxh3 and read_bytes = head_count * head_bytes.
 *                        CLEAR is for engines that write every layer through rope_pool_fused with a
 *                        stamp; whoever writes KV by other kernels, or pages that are no [P,Hkv,D]
 *                        tensor, takes COMPUTE
 *   reserved_slot        the dummy slot of padding tokens, -1 = none
 */
typedef struct kvc_group {
	size_t struct_bytes;
	void *records;
	int64_t record_count;
	int64_t record_stride_bytes;
	kvc_owner *owners;
	const kvc_source *sources;
	int64_t source_count;
	int32_t fingerprint;
	int32_t coverage;
	int32_t stamping;
	int64_t reserved_slot;
	kvc_device device;
} kvc_group;

#define KVC_GROUP_INIT                                                                             \
	{                                                                                          \
		sizeof(kvc_group), NULL, 0, KVC_RECORD_BYTES, NULL, NULL, 0, KVC_FINGERPRINT_XXH3, \
		        KVC_COVERAGE_ALL, KVC_STAMP_COMPUTE, -1,                                   \
		{                                                                                  \
			KVC_DEVICE_CPU, 0                                                          \
		}                                                                                  \
	}

/*
 * Check a group once, when it is registered: everything that the operations rely on. They repeat
 * it, except for the comparison of every source id with every other.
 *
 * Returns KVC_OK, or
 *   KVC_E_INVALID_ARGUMENT  group, records or sources is NULL where entries are promised
 *   KVC_E_CONFIG            a slot that leaves its row; row_count * page_size < record_count;
 *                           two equal ids; unknown fingerprint, coverage or stamping; CLEAR with
 *                           splitmix or with read_bytes short of the slot; a stride or alignment
 *                           that records cannot have
 *   KVC_E_DEVICE, KVC_E_NO_CUDA
 * where = index of the source, -1 if it is none. Threads: any.
 */
KVC_API KVC_NODISCARD kvc_status kvc_group_check(const kvc_group *group);

/*
 * The stamp for rope_pool_fused on one layer of a CLEAR group: 'k_id' and 'v_id' must be sources of
 * the group (v_id is not looked for if the layer has no V: pass k_id).
 * Returns KVC_OK; KVC_E_INVALID_ARGUMENT; KVC_E_CONFIG (not a CLEAR group, no such source).
 */
KVC_API KVC_NODISCARD kvc_status kvc_group_stamp(
        kvc_stamp *out, const kvc_group *group, uint64_t k_id, uint64_t v_id);

/*
 * The chain value before the first token: s(ANCHOR), or s(ANCHOR ^ s(name_space)) if name_space is
 * not 0. A namespace is the caller's identity of all besides the tokens that makes KV differ:
 * adapter, epoch of the weights, hash of an image. s is splitmix64's finaliser.
 * Host values; no errors. Threads: any.
 */
KVC_API uint64_t kvc_chain_start(uint64_t name_space);

/*
 * The chain value after 'count' more tokens at first_position, first_position + 1, ...:
 * chain = mix3(chain, token, position) for each. tokens: host memory, may be NULL if count is 0; a
 * count below 1 returns 'chain'. What a caller that knows the tokens expects of a slot's record,
 * computed without reading any. No errors. Threads: any.
 */
KVC_API uint64_t kvc_chain_extend(
        uint64_t chain, const int64_t *tokens, int64_t first_position, int64_t count);

/*
 * Fingerprints of the slots as their bytes are now.
 *
 *   out    one per slot; a negative slot gives 0
 *   group  sources, fingerprint, coverage; its records may be NULL with record_count 0
 *   slots  int64 [n]
 *
 * Returns KVC_OK; what kvc_group_check() returns; KVC_E_SHAPE, KVC_E_DTYPE, KVC_E_STRIDE for slots;
 * KVC_E_SLOT_RANGE (where = index: the slot lies outside a source), nothing written.
 * Threads: any.
 */
KVC_API KVC_NODISCARD kvc_status kvc_fingerprint(
        uint64_t *out, const kvc_group *group, const kvc_tensor *slots, void *stream);

/*
 * Make records never stamped: a page that is handed to a new owner. Owners stay, so that a later
 * violation can still name who was there before.
 *
 *   slots  int64 [n]; negative ones are skipped
 *
 * Returns KVC_OK, or, with nothing written, what kvc_group_check() returns, KVC_E_SHAPE,
 * KVC_E_DTYPE, KVC_E_STRIDE, KVC_E_SLOT_RANGE (where = index). On CUDA slots outside the records are
 * skipped. Threads: any, on disjoint slots.
 */
KVC_API KVC_NODISCARD kvc_status kvc_canary_void(
        const kvc_group *group, const kvc_tensor *slots, void *stream);

/*
 * Copy records and owners from slots to slots, beside their KV (copy on write, moved rows). All
 * reads come before all writes, so rows may trade places.
 *
 *   from, to  int64 [n]; a pair with a negative entry is skipped
 *   scratch   int64 [n, 6], contents irrelevant before and after; on the group's device
 *
 * Returns KVC_OK, or, with nothing written, what kvc_group_check() returns, KVC_E_SHAPE,
 * KVC_E_DTYPE, KVC_E_STRIDE, KVC_E_OVERLAP (scratch over from or to), KVC_E_LENGTH (from, to and
 * scratch differ), KVC_E_SLOT_RANGE and KVC_E_SLOT_DUPLICATE (two entries of 'to' are equal; where =
 * index). On CUDA pairs with a slot outside the records are skipped, and of two pairs with one
 * destination it holds one or a mix. Threads: any, on disjoint slots.
 */
KVC_API KVC_NODISCARD kvc_status kvc_canary_copy(const kvc_group *group, const kvc_tensor *from,
        const kvc_tensor *to, const kvc_tensor *scratch, void *stream);

/* What kvc_canary_scan_finite() found: -1 in the last four fields if nothing. */
typedef struct kvc_finite_scan {
	int64_t slots_scanned;
	int64_t nonfinite_count; /* elements, over all slots and sources */
	int64_t first_slot;      /* first in order of slots as given, then sources, heads, dims */
	int64_t first_source_id;
	int64_t first_head;
	int64_t first_dim;
} kvc_finite_scan;

/*
 * Look for NaN and infinity in all of read_bytes of the slots, whatever their records say. Sources
 * whose dtype has no such values (integers) are not looked at; float8_e4m3fn has NaN only.
 *
 *   out    overwritten; on the group's device
 *   slots  int64 [n]; negative ones are skipped
 *
 * Returns as kvc_fingerprint(). Threads: any.
 */
KVC_API KVC_NODISCARD kvc_status kvc_canary_scan_finite(
        kvc_finite_scan *out, const kvc_group *group, const kvc_tensor *slots, void *stream);

/* ---- 9. The canary: plan, write, verify ---------------------------------------------------- */

/*
 * The requests of one step. Start from KVC_REQUESTS_INIT. The first three are required, all are
 * int64 [bs]; the others are optional.
 *
 *   req_pool_indices  row of each request in the tables. Row 0 is padding: such a request is not
 *                     checked and writes nothing, whatever its lengths say, so it has no tokens
 *                     among those of a step either
 *   prefix_lens       tokens already in the cache: positions 0 .. prefix-1 are read
 *   extend_seq_lens   tokens written in this step; negative lengths count as 0
 *   namespaces        what kvc_chain_start() takes, the unsigned value in an int64; 0 = none
 *   verify_chain_in   chain before the first entry to verify, 0 = not given
 *   write_chain_in    chain before position 'prefix', 0 = not given: the seed slot is read
 *   chain_end         chain that must stand after position prefix-1, 0 = not given
 *   start             entries to verify begin at max(window start, start)
 *   owner_request     the caller's id of each request, for owners and violations
 */
typedef struct kvc_requests {
	size_t struct_bytes;
	const kvc_tensor *req_pool_indices;
	const kvc_tensor *prefix_lens;
	const kvc_tensor *extend_seq_lens;
	const kvc_tensor *namespaces;
	const kvc_tensor *verify_chain_in;
	const kvc_tensor *write_chain_in;
	const kvc_tensor *chain_end;
	const kvc_tensor *start;
	const kvc_tensor *owner_request;
} kvc_requests;

#define KVC_REQUESTS_INIT                                                                          \
	{                                                                                          \
		sizeof(kvc_requests), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL         \
	}

/*
 * What a step reads and writes, in order. The arrays belong to the caller and lie on 'device';
 * kvc_plan_bind() lays them out in one piece of memory.
 *
 *   verify_capacity             V, entries of the verify_* arrays
 *   verify_slot_indices         slot to look at, -1 = none
 *   verify_expected_tokens      token that must be there, -1 = do not compare
 *   verify_expected_positions   position that must be there
 *   verify_prev_slot_indices    slot before it; -1 chain start, -2 verify_chain_in of the request,
 *                               -3 unknown: the chain is not checked
 *   verify_request              index of the request in the batch; may be NULL
 *   verify_num_valid            [1] entries in use
 *   enable                      [1] 0 = verify does nothing
 *   left_out                    [1] entries that did not fit this time; may be NULL
 *   write_req_capacity          W, requests
 *   write_offsets               [W+1] tokens of request r: write_offsets[r] .. write_offsets[r+1]
 *   write_seed_slot_indices     [W] slot before the first token, -1 = none
 *   write_num_valid_reqs        [1]
 */
typedef struct kvc_plan {
	size_t struct_bytes;
	kvc_device device;
	int64_t verify_capacity;
	int64_t *verify_slot_indices;
	int64_t *verify_expected_tokens;
	int64_t *verify_expected_positions;
	int64_t *verify_prev_slot_indices;
	int32_t *verify_request;
	int32_t *verify_num_valid;
	int32_t *enable;
	int64_t *left_out;
	int64_t write_req_capacity;
	int64_t *write_offsets;
	int64_t *write_seed_slot_indices;
	int32_t *write_num_valid_reqs;
} kvc_plan;

/* Bytes that kvc_plan_bind() needs for these capacities; 0 if a capacity is negative or the
 * result does not fit size_t. */
KVC_API size_t kvc_plan_bytes(int64_t verify_capacity, int64_t write_req_capacity);

/*
 * Lay the arrays of a plan out in 'memory' (kvc_plan_bytes() bytes, 8-byte aligned, on 'device',
 * owned by the caller, contents irrelevant: kvc_canary_plan() fills it).
 * Returns KVC_OK; KVC_E_INVALID_ARGUMENT (NULL); KVC_E_CONFIG (negative capacity, misaligned).
 */
KVC_API KVC_NODISCARD kvc_status kvc_plan_bind(kvc_plan *out, void *memory, kvc_device device,
        int64_t verify_capacity, int64_t write_req_capacity);

/*
 * Arguments of kvc_canary_plan(). Start from KVC_PLAN_ARGS_INIT.
 *
 *   req_to_token      int32 [R, C]: the slot of each (row, position); row stride free
 *   expected_tokens   optional int32 [R, C2]: tokens that each row should hold, from a source
 *                     independent of the write path; needs valid_lens int64 [bs], how many columns
 *                     of its row are filled for each request
 *   token_offset      added to a position to find its expected token (1 for an EAGLE draft pool)
 *   window            sliding window W in tokens, 0 = none: positions max(0, prefix - W) to
 *                     prefix - 1 are read, and nothing before them
 *   full_to_swa_index_mapping   optional int64 [n]: slot of the window group for each full slot;
 *                     negative = none
 *   exclude           optional uint8 bitmap, bit x%8 of byte x/8 = slot x is written in this very
 *                     step and not to be verified
 *   rotation          optional, [1] on the plan's device: which entry comes first when not all fit
 *   rules             KVC_RULES_*
 *   report            optional; counts entries written, and on CUDA what was out of range
 */
typedef struct kvc_plan_args {
	size_t struct_bytes;
	const kvc_requests *requests;
	const kvc_tensor *req_to_token;
	const kvc_tensor *expected_tokens;
	const kvc_tensor *valid_lens;
	int64_t token_offset;
	int64_t window;
	const kvc_tensor *full_to_swa_index_mapping;
	const kvc_tensor *exclude;
	int64_t *rotation;
	int32_t rules;
	kvc_report *report;
} kvc_plan_args;

#define KVC_PLAN_ARGS_INIT                                                                         \
	{                                                                                          \
		sizeof(kvc_plan_args), NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL,             \
		        KVC_RULES_OWN, NULL                                                        \
	}

/*
 * List what the step's requests read (one entry per cached token, request by request, positions
 * ascending, those inside the window only) and where each request's writes go.
 *
 * When more entries than verify_capacity come together, capacity many are emitted, beginning with
 * entry *rotation of the full list and going round; *rotation then moves on by the capacity, so
 * that all are seen in turn, and *left_out says how many were not. enable stays 1. With
 * KVC_RULES_SGLANG instead enable becomes 0 and nothing is emitted.
 * Entries past verify_num_valid and seeds past bs stay as they were; write_offsets past bs are 0.
 *
 * Returns KVC_OK, or, with nothing written,
 *   KVC_E_INVALID_ARGUMENT  a required pointer is NULL, struct_bytes is unknown
 *   KVC_E_SHAPE, KVC_E_DTYPE, KVC_E_STRIDE, KVC_E_DEVICE, KVC_E_NO_CUDA   a tensor does not fit
 *   KVC_E_LENGTH            arrays of requests differ in length; bs > write_req_capacity
 *   KVC_E_CONFIG            window < 0; a window without a mapping with KVC_RULES_SGLANG;
 *                           expected_tokens without valid_lens; an unknown rule
 *   KVC_E_ROW_RANGE         where = request; its row, a column or a mapping index is out of range
 * On CUDA the call only enqueues, one launch and with 'rotation' at most two. An entry or seed whose
 * slot or expected token cannot be read keeps its place with slot -1, as a predecessor it counts as
 * -1. 'report' counts requests by row, column and length (cut so that no sum overflows), and each
 * read outside the mapping, all under the request's index.
 * Threads: any, on different plans.
 */
KVC_API KVC_NODISCARD kvc_status kvc_canary_plan(
        kvc_plan *out, const kvc_plan_args *args, void *stream);

/*
 * Why a slot was reported: bits of kvc_violation.reasons.
 */
enum {
	KVC_REASON_VERIFY_CHAIN_HASH = 1,
	KVC_REASON_VERIFY_POSITION = 2,
	KVC_REASON_VERIFY_REAL_KV_HASH = 4,
	KVC_REASON_WRITE_TOKEN = 8,
	KVC_REASON_WRITE_POSITION = 16,
	KVC_REASON_VERIFY_TOKEN = 32,
	KVC_REASON_NEVER_STAMPED = 64,
	KVC_REASON_NONFINITE = 128,
	KVC_REASON_SLOT_RANGE = 256,
	KVC_REASON_CHAIN_END = 512,
	KVC_REASON_SLOT_ALIASED = 1024
};
#define KVC_REASON_COUNT 11 /* known bits */

/* Who asked for a check or a write. 0 to 11 are SGLang's. */
enum {
	KVC_TAG_HEAD_K_FULL = 0,
	KVC_TAG_HEAD_V_FULL = 1,
	KVC_TAG_TAIL_K_FULL = 2,
	KVC_TAG_TAIL_V_FULL = 3,
	KVC_TAG_SWEEP_K_FULL = 4,
	KVC_TAG_SWEEP_V_FULL = 5,
	KVC_TAG_HEAD_K_SWA = 6,
	KVC_TAG_HEAD_V_SWA = 7,
	KVC_TAG_TAIL_K_SWA = 8,
	KVC_TAG_TAIL_V_SWA = 9,
	KVC_TAG_SWEEP_K_SWA = 10,
	KVC_TAG_SWEEP_V_SWA = 11,
	KVC_TAG_STEP_READ = 32,
	KVC_TAG_STEP_WRITE = 33,
	KVC_TAG_SWEEP = 34
};

/* One mismatch: the 16 columns of a ring row, in order. */
typedef struct kvc_violation {
	int64_t launch_tag;
	int64_t slot;
	int64_t position; /* as stored */
	int64_t stored_token;
	int64_t expected_token; /* -1 = not checked */
	uint64_t stored_chain;
	uint64_t expected_aux; /* expected chain; the expected position for a write reason */
	int64_t reasons;       /* KVC_REASON_* */
	int64_t expected_position;
	uint64_t stored_fingerprint;
	uint64_t expected_fingerprint;
	int64_t request_row;   /* the request's row in the table, -1 = not known */
	int64_t owner_request; /* who stamped the slot last, -1 = not known */
	int64_t owner_step;    /* and when, -1 = not known */
	int64_t source_id;     /* of the group's only source, else -1 */
	int64_t sequence;      /* 1, 2, 3, ... */
} kvc_violation;

/* What the checks did. Calls add to it. It lies on the ring's device. */
typedef struct kvc_counters {
	int64_t violations;  /* found, dropped ones included; the last sequence number */
	int64_t dropped;     /* found while the ring was full */
	int64_t reasons[16]; /* violations with bit i set */
	int64_t kernel_runs; /* calls, disabled ones included */
	int64_t slots_run;   /* verify: entries looked at or skipped; write: records stored */
	int64_t slots_skipped;
	int64_t chain_unchecked;
	int64_t bytes_hashed;
	int64_t left_out; /* entries that a plan did not emit */
} kvc_counters;

/*
 * Where violations go. Start from KVC_RING_INIT. All memory belongs to the caller and is zero before
 * the first call that uses it.
 *
 *   rows         int64 [capacity, columns]
 *   device       where the memory lies: that of the calls that use the ring
 *   columns      16: circular, row (sequence-1) % capacity, column 15 is written last; a violation
 *                is dropped while sequence-1 - *consumed >= capacity
 *                8: SGLang's, filled once, by the int32 counter write_index
 *   consumed     [1] sequence number up to which kvc_ring_poll() has read (16 columns)
 *   write_index  [1] (8 columns)
 *   counters     [1]; required with 16 columns
 *   slot_run_counter, kernel_run_counter   optional [1]: SGLang's own counters, added to as well
 */
typedef struct kvc_ring {
	size_t struct_bytes;
	int64_t *rows;
	int64_t capacity;
	int32_t columns;
	int64_t *consumed;
	int32_t *write_index;
	kvc_counters *counters;
	int64_t *slot_run_counter;
	int64_t *kernel_run_counter;
	kvc_device device;
} kvc_ring;

#define KVC_RING_INIT                                                                              \
	{                                                                                          \
		sizeof(kvc_ring), NULL, 0, 16, NULL, NULL, NULL, NULL, NULL,                       \
		{                                                                                  \
			KVC_DEVICE_CPU, 0                                                          \
		}                                                                                  \
	}

/*
 * Find slots that two requests claim with different contents, before a byte is written.
 *
 * A slot planned twice is sound if the positions are equal and either the predecessor slots are
 * equal (and the expected tokens, where both are given), or both expected tokens are given and
 * equal and the chains that the two predecessors' records imply are equal. Anything else is
 * reported as slot_aliased for the later entry in plan order. A predecessor that nobody knows (-2, -3,
 * the reserved slot) fits any other. With a mapping, two full slots above 0 on one window slot above 0
 * are slot_aliased for the higher full slot.
 *
 *   plan        from kvc_canary_plan()
 *   group       its records are read for the chains
 *   mapping     full_to_swa_index_mapping, int64 [full_count], or NULL
 *   scratch     int64 [2, record_count], all zero before and left zero
 *   ring        where violations go; NULL on the CPU: the first one is the call's error
 *
 * Returns KVC_OK (violations included, if there is a ring), or
 *   KVC_E_SLOT_DUPLICATE    without a ring; where = entry of the plan, or the full slot
 *   KVC_E_SLOT_RANGE        a planned slot or a mapped one lies outside the records
 *   and what kvc_group_check() returns, KVC_E_SHAPE, KVC_E_DTYPE, KVC_E_LENGTH (scratch, mapping),
 *   KVC_E_OVERLAP (scratch over mapping)
 * On CUDA the call only enqueues and needs a ring, whose rows come in any order; a planned or mapped
 * slot outside the records is a row with slot_range, and counts of the plan are clamped.
 * Threads: any, each with its own scratch.
 */
KVC_API KVC_NODISCARD kvc_status kvc_canary_check_plan(const kvc_plan *plan, const kvc_group *group,
        const kvc_tensor *mapping, const kvc_tensor *scratch, const kvc_ring *ring, void *stream);

/*
 * Arguments of kvc_canary_write(). Start from KVC_WRITE_ARGS_INIT.
 *
 *   group        whose records are written
 *   plan         write_offsets, seeds, write_num_valid_reqs
 *   requests     optional: namespaces, write_chain_in, owner_request, req_pool_indices
 *   tokens, positions, slots   int64 [T], in the plan's order
 *   expected_tokens, expected_positions   both or none, int64 [T]: the input check (bits 8, 16)
 *   check_steps  optional, [1]: not 0 = each position must be the previous one + 1 (bit 16)
 *   step         optional, [1]: step number for the owners
 *   launch_tag   KVC_TAG_* for owners and violations
 *   scratch      optional int64 [record_count], all zero before and left zero: a request may start
 *                from a slot that another request of this call writes
 *   ring         optional
 *   rules        KVC_RULES_*
 */
typedef struct kvc_write_args {
	size_t struct_bytes;
	const kvc_group *group;
	const kvc_plan *plan;
	const kvc_requests *requests;
	const kvc_tensor *tokens;
	const kvc_tensor *positions;
	const kvc_tensor *slots;
	const kvc_tensor *expected_tokens;
	const kvc_tensor *expected_positions;
	const int32_t *check_steps;
	const int64_t *step;
	int64_t launch_tag;
	const kvc_tensor *scratch;
	const kvc_ring *ring;
	int32_t rules;
} kvc_write_args;

#define KVC_WRITE_ARGS_INIT                                                                        \
	{                                                                                          \
		sizeof(kvc_write_args), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,      \
		        NULL, KVC_TAG_STEP_WRITE, NULL, NULL, KVC_RULES_OWN                        \
	}

/*
 * Stamp the slots that a step writes. Per request the chain starts from write_chain_in, or from the
 * seed slot's record, or from kvc_chain_start(); each entry with a slot stores (token, position,
 * chain, fingerprint) and moves the chain on. A negative or reserved slot is skipped and does not
 * move it. In a COMPUTE group the fingerprint is of what lies in the pool now: call after the last
 * layer; it cannot see a lost write. In a CLEAR group it is 0: call before the first layer.
 *
 * Returns KVC_OK (violations included), or, with nothing written,
 *   KVC_E_INVALID_ARGUMENT, KVC_E_SHAPE, KVC_E_DTYPE, KVC_E_STRIDE, KVC_E_DEVICE, KVC_E_NO_CUDA
 *   KVC_E_LENGTH      tokens, positions, slots differ in length or are shorter than the plan says;
 *                     counts of the plan out of range; offsets that fall
 *   KVC_E_OVERLAP     scratch shares memory with tokens, positions, slots or what is expected
 *   KVC_E_CONFIG      only one of the expected arrays; an unknown rule; what kvc_group_check() says
 *   KVC_E_SLOT_RANGE  where = token; its slot lies outside the records
 * With KVC_RULES_SGLANG counts are clamped and slots out of range are skipped and counted.
 * Threads: any, on disjoint slots. Result independent of the thread count.
 */
KVC_API KVC_NODISCARD kvc_status kvc_canary_write(const kvc_write_args *args, void *stream);

/*
 * Arguments of kvc_canary_verify(). Start from KVC_VERIFY_ARGS_INIT.
 *
 *   group          records, sources, owners: only read
 *   plan           the verify_* arrays, verify_num_valid, enable
 *   requests       optional: namespaces, verify_chain_in, chain_end (with prefix_lens),
 *                  req_pool_indices, through plan.verify_request
 *   check_bytes    compare fingerprints (1); 0 = chain, position and token only
 *   check_tokens   compare expected tokens (1)
 *   check_finite   look for NaN and infinity in all of read_bytes (0)
 *   valid_prefix   optional int64 [bs]: lowest position with a violation, else prefix_lens[r]
 *   launch_tag     KVC_TAG_* for violations
 *   ring           optional; without it violations only show in valid_prefix
 *   rules          KVC_RULES_*
 */
typedef struct kvc_verify_args {
	size_t struct_bytes;
	const kvc_group *group;
	const kvc_plan *plan;
	const kvc_requests *requests;
	int32_t check_bytes;
	int32_t check_tokens;
	int32_t check_finite;
	int32_t rules;
	const kvc_tensor *valid_prefix;
	int64_t launch_tag;
	const kvc_ring *ring;
} kvc_verify_args;

#define KVC_VERIFY_ARGS_INIT                                                                       \
	{                                                                                          \
		sizeof(kvc_verify_args), NULL, NULL, NULL, 1, 1, 0, KVC_RULES_OWN, NULL,           \
		        KVC_TAG_STEP_READ, NULL                                                    \
	}

/*
 * Compare every planned slot with its record, its predecessor and its bytes. Entry by entry; no
 * check cuts another short; nothing but the ring, its counters and valid_prefix is written. A slot
 * outside the records is a violation (slot_range), not an error.
 *
 * Returns KVC_OK (violations included: look at the ring), or, with nothing written,
 *   KVC_E_INVALID_ARGUMENT, KVC_E_SHAPE, KVC_E_DTYPE, KVC_E_STRIDE, KVC_E_DEVICE, KVC_E_NO_CUDA
 *   KVC_E_LENGTH      verify_num_valid out of range; valid_prefix or an array of 'requests' has
 *                     another length than the batch
 *   KVC_E_CONFIG      an unknown rule; what kvc_group_check() says
 * Threads: any. On the CPU rows stand in entry order whatever the thread count.
 */
KVC_API KVC_NODISCARD kvc_status kvc_canary_verify(const kvc_verify_args *args, void *stream);

/* ---- 10. Reading violations ---------------------------------------------------------------- */

/*
 * Take the next violations out of a 16-column ring, in order, and free their rows. Rows that were
 * dropped are passed over. The one call here that waits for the device.
 *
 *   out, capacity  room for the violations; *count_out says how many came
 *
 * Returns KVC_OK; KVC_E_INVALID_ARGUMENT (NULL); KVC_E_CONFIG (an 8-column ring); KVC_E_DEVICE,
 * KVC_E_NO_CUDA.
 * Threads: one at a time per ring.
 */
KVC_API KVC_NODISCARD kvc_status kvc_ring_poll(const kvc_ring *ring, kvc_violation *out,
        int64_t capacity, int64_t *count_out, void *stream);

/* The name of a reason bit, for instance "verify_chain_hash"; NULL if the bit is not known. */
KVC_API const char *kvc_reason_name(int64_t reason_bit);

/* The name of a launch tag, for instance "HEAD_K_FULL"; NULL if it has none. */
KVC_API const char *kvc_tag_name(int64_t launch_tag);

/* The catalogue slug that explains a set of reason bits best (the lowest-level cause first):
 * slot_range, never_stamped, nonfinite, slot_aliased, then token, position, chain, bytes. NULL if no
 * bit is known. */
KVC_API const char *kvc_reason_slug(int64_t reasons);

/*
 * A violation as text. The first line is stable and parseable; with KVC_RULES_OWN lines for a
 * person follow: which request, who stamped the slot last and when, the likely cause, the slug.
 * With KVC_RULES_SGLANG the text is SGLang's, 'totals' at its end.
 *
 *   out, out_bytes  room for the text, always terminated; may be NULL and 0
 *   rules           KVC_RULES_*
 *
 * Returns the length of the whole text without its terminator, as snprintf does. Threads: any.
 */
typedef struct kvc_violation_totals {
	int64_t violations;
	int32_t ring_overflow;
	int64_t step;
} kvc_violation_totals;
KVC_API size_t kvc_violation_text(char *out, size_t out_bytes, const kvc_violation *violation,
        int32_t rules, const kvc_violation_totals *totals);

/*
 * Read back the first line of kvc_violation_text(), anywhere in 'line'. Fields that the line does
 * not carry are -1 (hashes 0). Returns 1 if the line is one, else 0 and *out is untouched.
 * line: not NULL, untrusted. Threads: any.
 */
KVC_API int kvc_violation_parse(kvc_violation *out, const char *line);

/* ---- 11. The guard: what an engine holds --------------------------------------------------- */

/*
 * A guard owns the records, owners, plans and ring, and calls plan, check_plan, verify and write in
 * the right order. An engine does, once:
 *
 *   kvc_guard_create, kvc_guard_attach_group (one per slot numbering), kvc_guard_stamp (per layer)
 *
 * and every step:
 *
 *   kvc_guard_step_begin     before the forward pass: checks what the step reads, stamps what it
 *                            will write
 *   kvc_rope_pool_fused      per layer, with the layer's stamp
 *   kvc_guard_step_end       after the last layer
 *   kvc_guard_poll           whenever it wants the verdict
 *
 * besides kvc_guard_void when slots go to a new owner, kvc_guard_copy when rows move, and
 * kvc_guard_sweep now and then over what lies cached and idle.
 *
 * What a step checks: (a) every slot that a request reads for the first time, that is its reused
 * prefix at admission, what its previous step wrote, and positions whose table entry has changed;
 * (b) of all other slots that the step reads, verify_budget entries in each group, going round from
 * step to step; (c) that no two requests claim one slot with different contents, and that the step
 * writes no slot that another position reads; (d) that what is written has the position that comes
 * next and, where expected tokens say it, the right token. Slots that the step itself writes are
 * left out of (a) and (b) until the next step.
 *
 * A request is known by its row and its id. Requests of one id on two rows are two requests. A
 * prefix that got shorter (preemption, rejected drafts) is followed by itself: nothing to tell.
 * docs/guard.md tells more: what a guard can see and what it cannot, and what it costs;
 * examples/guard_step.c is a whole step of an engine around one.
 */
typedef struct kvc_guard kvc_guard;

/*
 * Start from KVC_GUARD_OPTIONS_INIT.
 *
 *   request_rows     rows of the request table, 1 to 2^31. Row 0 is padding and never checked: give
 *                    no request that row
 *   verify_budget    entries of (b) a step and group; -1 = every read, 0 = first reads only
 *   checks           0 = check nothing, only stamp (a control run)
 *   check_finite     look for NaN and infinity in what is verified, and in the rest of last pages
 *   ring_capacity    violations held until polled, 1 to 2^31; further ones are counted as dropped
 */
typedef struct kvc_guard_options {
	size_t struct_bytes;
	int64_t request_rows;
	int64_t verify_budget;
	int32_t checks;
	int32_t check_finite;
	int64_t ring_capacity;
} kvc_guard_options;

#define KVC_GUARD_OPTIONS_INIT                                                                     \
	{                                                                                          \
		sizeof(kvc_guard_options), 0, 4096, 1, 0, 1024                                     \
	}

/*
 * Make a guard. Allocates.
 *
 *   out  the guard, to be freed with kvc_guard_destroy(); untouched on failure
 *
 * Returns KVC_OK; KVC_E_INVALID_ARGUMENT; KVC_E_CONFIG (a number out of range); KVC_E_NO_MEMORY.
 * Threads: any; afterwards one at a time per guard. What a guard finds does not depend on the
 * number of threads that its operations use.
 */
KVC_API KVC_NODISCARD kvc_status kvc_guard_create(
        kvc_guard **out, const kvc_guard_options *options);

/* Free a guard and all it owns. guard: may be NULL. */
KVC_API void kvc_guard_destroy(kvc_guard *guard);

/*
 * One slot numbering of the engine. Start from KVC_GUARD_GROUP_INIT.
 *
 *   name           for reports, the first 31 bytes are copied; for instance "full"
 *   slot_count     P, 1 to 2^31
 *   sources        copied; their pools stay the caller's
 *   fingerprint, coverage, stamping, reserved_slot   as in kvc_group; stamping begins as CLEAR: an
 *                  engine that does not write through rope_pool_fused must set COMPUTE
 *   window         how many cached tokens a new token sees, itself not counted; 0 = all. A model's
 *                  sliding_window counts the token itself: give sliding_window - 1
 *   mapping        int64 [n] full slot -> slot of this group, for n full slots; its entries are
 *                  read at every step and stay the caller's; or NULL
 *   token_offset   added to a position to find its expected token. The tokens of a step are those
 *                  that are stored, so a draft pool that stores shifted tokens needs a guard of its
 *                  own
 */
typedef struct kvc_guard_group {
	size_t struct_bytes;
	const char *name;
	int64_t slot_count;
	const kvc_source *sources;
	int64_t source_count;
	int32_t fingerprint;
	int32_t coverage;
	int32_t stamping;
	int64_t reserved_slot;
	int64_t window;
	const kvc_tensor *mapping;
	int64_t token_offset;
} kvc_guard_group;

#define KVC_GUARD_GROUP_INIT                                                                       \
	{                                                                                          \
		sizeof(kvc_guard_group), "full", 0, NULL, 0, KVC_FINGERPRINT_XXH3,                 \
		        KVC_COVERAGE_ALL, KVC_STAMP_CLEAR, -1, 0, NULL, 0                          \
	}

/*
 * Register a group; *group_out is its number, 0, 1, ... Allocates 32 bytes a slot for records, 16
 * for owners, 4 for the age of its last check, and 16 a slot of the largest group.
 *
 * Returns KVC_OK; KVC_E_INVALID_ARGUMENT; KVC_E_NO_MEMORY; KVC_E_STATE (a step has begun before:
 * what lies cached would have no records); KVC_E_CONFIG (a number out of range); what
 * kvc_group_check() returns; for mapping KVC_E_SHAPE, KVC_E_DTYPE, KVC_E_STRIDE, KVC_E_DEVICE,
 * KVC_E_NO_CUDA. Nothing is registered on failure.
 */
KVC_API KVC_NODISCARD kvc_status kvc_guard_attach_group(
        kvc_guard *guard, const kvc_guard_group *group, int32_t *group_out);

/*
 * The stamp that rope_pool_fused needs to write one layer of a CLEAR group; stays valid as long as
 * the guard. Returns as kvc_group_stamp(), or KVC_E_CONFIG (no such group).
 */
KVC_API KVC_NODISCARD kvc_status kvc_guard_stamp(
        kvc_stamp *out, const kvc_guard *guard, int32_t group, uint64_t k_id, uint64_t v_id);

/*
 * The group as the operations of sections 8 and 9 take it, for whoever saves or compares records.
 * Its memory stays the guard's. Returns KVC_OK; KVC_E_INVALID_ARGUMENT; KVC_E_CONFIG (no such
 * group).
 */
KVC_API KVC_NODISCARD kvc_status kvc_guard_group_view(
        kvc_group *out, const kvc_guard *guard, int32_t group);

/*
 * One step of the engine. Start from KVC_GUARD_STEP_INIT. Tensors are borrowed until
 * kvc_guard_step_end(); the structs themselves only for the call.
 *
 *   step             the engine's own number, rising: 0 to 2^32 - 2
 *   requests         owner_request (ids >= 0, required) tells requests apart: another id on a row is
 *                    another request, and so is another namespace. verify_chain_in, write_chain_in
 *                    and start must be NULL: the guard keeps them itself. chain_end may be given
 *   req_to_token     int32 [request_rows, C], C the same in each step (another C makes all requests
 *                    new). It must already name the slots that are read
 *   expected_tokens  optional int32 [R, C2], with valid_lens int64 [bs]: what each row should hold,
 *                    from a source independent of the write path
 *   tokens, positions, slots   int64 [T]: what the step writes, request after request; slots in the
 *                    numbering of req_to_token. More than the requests write is padding
 *   expected_input_tokens, expected_input_positions   both or none, int64 [T]: the input check.
 *                    Without them positions must be prefix, prefix + 1, ... and tokens those of
 *                    expected_tokens where it has them. Give them for tree drafts, whose positions
 *                    repeat
 *   valid_prefix     optional output int64 [bs]: how much of each prefix can be trusted
 */
typedef struct kvc_guard_step {
	size_t struct_bytes;
	int64_t step;
	const kvc_requests *requests;
	const kvc_tensor *req_to_token;
	const kvc_tensor *expected_tokens;
	const kvc_tensor *valid_lens;
	const kvc_tensor *tokens;
	const kvc_tensor *positions;
	const kvc_tensor *slots;
	const kvc_tensor *expected_input_tokens;
	const kvc_tensor *expected_input_positions;
	const kvc_tensor *valid_prefix;
} kvc_guard_step;

#define KVC_GUARD_STEP_INIT                                                                        \
	{                                                                                          \
		sizeof(kvc_guard_step), 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,   \
		        NULL                                                                       \
	}

/*
 * Before the forward pass: plan every group, check the plan for double ownership, verify (a) and
 * (b), and in CLEAR groups write the records of what is about to be written. Allocates only when a
 * step is larger than every one before it, and at the first step a copy of req_to_token.
 *
 * Returns KVC_OK, violations included (kvc_guard_poll); else the step has not begun and nothing was
 * stamped:
 *   KVC_E_INVALID_ARGUMENT, KVC_E_NO_MEMORY
 *   KVC_E_STATE          the previous step was not ended, no group is attached, or the step number
 *                        did not rise
 *   KVC_E_CONFIG         a field that must be NULL is not; a negative owner_request; a step number
 *                        out of range; expected_tokens without valid_lens; one of the two input
 *                        arrays alone
 *   KVC_E_SHAPE          req_to_token has another number of rows than the guard
 *   KVC_E_ROW_DUPLICATE  where = the later request of two on one row
 *   KVC_E_SLOT_RANGE     where = token; its slot lies outside a group or a group's mapping. Or the
 *                        mapping itself leads outside the group's records
 *   KVC_E_LENGTH         arrays of the requests, or of the tokens, differ; fewer tokens than written
 *   and what else kvc_canary_plan() returns
 */
KVC_API KVC_NODISCARD kvc_status kvc_guard_step_begin(
        kvc_guard *guard, const kvc_guard_step *step, void *stream);

/*
 * After the last layer: in COMPUTE groups stamp what was written; the step's slots can be verified
 * from now on. Call it also when the forward pass failed half-way: in CLEAR groups slots whose
 * layers are missing then read as damaged, as they should; in COMPUTE groups void them.
 * Returns KVC_OK; KVC_E_STATE (no step has begun); what kvc_canary_write() returns.
 */
KVC_API KVC_NODISCARD kvc_status kvc_guard_step_end(kvc_guard *guard, void *stream);

/*
 * Slots go to a new owner: their records become never stamped, so that a write that gets lost
 * shows. As kvc_canary_void(), besides KVC_E_CONFIG (no such group). 'slots' are of the group's
 * numbering. Between steps.
 */
KVC_API KVC_NODISCARD kvc_status kvc_guard_void(
        kvc_guard *guard, int32_t group, const kvc_tensor *slots, void *stream);

/*
 * Rows moved or were copied: their records follow. As kvc_canary_copy(); the guard brings the
 * scratch and allocates only when the copy is larger than every one before it (KVC_E_NO_MEMORY).
 * Between steps.
 */
KVC_API KVC_NODISCARD kvc_status kvc_guard_copy(kvc_guard *guard, int32_t group,
        const kvc_tensor *from, const kvc_tensor *to, void *stream);

/* One cached slot to sweep: what the engine believes it holds. */
typedef struct kvc_sweep_slot {
	int64_t slot;
	int64_t position;
	int64_t expected_token; /* -1 = not known */
	int64_t prev_slot;      /* -1 at position 0, -3 = not known */
	int64_t name_space;     /* of the sequence, as in kvc_requests; 0 = none */
} kvc_sweep_slot;

/*
 * Writes up to 'capacity' slots into 'out', which comes zeroed, and returns how many; 0 ends the
 * sweep. Called again until then.
 */
typedef int64_t (*kvc_sweep_fn)(void *context, kvc_sweep_slot *out, int64_t capacity);

/*
 * Verify cached, idle slots that the engine lists through 'next', all bytes of the group's
 * coverage. Not inside a step. With checks off it asks for none. *swept_out (may be NULL): slots
 * looked at, also when a later call of 'next' made the sweep fail.
 * Returns KVC_OK, violations included; KVC_E_STATE (a step is open); KVC_E_CONFIG (no such group);
 * KVC_E_INVALID_ARGUMENT (NULL; a callback that returns less than 0 or more than its capacity).
 */
KVC_API KVC_NODISCARD kvc_status kvc_guard_sweep(kvc_guard *guard, int32_t group, kvc_sweep_fn next,
        void *context, int64_t *swept_out, void *stream);

/* What most likely happened. */
enum {
	KVC_CAUSE_UNKNOWN = 0,
	KVC_CAUSE_BYTES_DAMAGED = 1, /* record sound, bytes not: bit flip, raw write, lost write */
	KVC_CAUSE_OVERWRITTEN = 2,   /* another request stamped the slot while the victim used it */
	KVC_CAUSE_WRONG_SLOT = 3,    /* table or prefix points at a row made for somebody else */
	KVC_CAUSE_NEVER_WRITTEN = 4, /* the slot has no record: lost write or a page too many */
	KVC_CAUSE_WRONG_POSITION = 5, /* written at a position that it does not have */
	KVC_CAUSE_WRONG_TOKEN = 6,    /* another token was computed than the request holds */
	KVC_CAUSE_NONFINITE = 7,      /* NaN or infinity */
	KVC_CAUSE_OUT_OF_RANGE = 8,   /* slot outside the pool, or the reserved one */
	KVC_CAUSE_ALIASED = 9         /* two live requests own one slot */
};

/*
 * A violation with what the guard knows around it.
 *
 *   step              when it was found; in a sweep the last step
 *   victim_request    who reads or writes the slot; -1 in a sweep
 *   victim_position   at which position, -1 if not known
 *   culprit_request   the other request that has to do with it, else -1: who stamped the slot last,
 *                     or of an aliased slot the other owner. -1 where the cause blames nobody
 *                     (bytes_damaged, never_written, nonfinite, out_of_range, wrong input); who
 *                     stamped the slot last is always in violation.owner_request
 *   culprit_step      when, else -1
 *   slug              catalogue entry that explains it; static
 *   group, group_name number and name of the group; the name lives as long as the guard
 *   nonfinite_source_id, nonfinite_head, nonfinite_dim   with the reason 'nonfinite' where the first
 *                     such value stands, else -1
 *
 * 'violation' names slots in the group's numbering; request_row is that of the victim. A violation
 * of the mapping (two full slots on one window slot) names the full slot and no victim.
 */
typedef struct kvc_finding {
	kvc_violation violation;
	int64_t step;
	int64_t victim_request;
	int64_t victim_position;
	int64_t culprit_request;
	int64_t culprit_step;
	int32_t group;
	int32_t cause; /* KVC_CAUSE_* */
	const char *slug;
	const char *group_name;
	int64_t nonfinite_source_id;
	int64_t nonfinite_head;
	int64_t nonfinite_dim;
} kvc_finding;

/*
 * Take the next findings, in order, also inside a step: those of step_begin are there before the
 * forward pass.
 *
 *   out, capacity  room for the findings; out may be NULL if capacity is 0
 *
 * Returns KVC_OK with *count_out of them (0 = nothing new); KVC_E_INVALID_ARGUMENT (NULL, a negative
 * capacity).
 */
KVC_API KVC_NODISCARD kvc_status kvc_guard_poll(
        kvc_guard *guard, kvc_finding *out, int64_t capacity, int64_t *count_out, void *stream);

/* The name of a cause, for instance "bytes_damaged"; "unknown" for any other number. */
KVC_API const char *kvc_cause_name(int32_t cause);

/*
 * A finding as text: the violation's stable first line, then where, who stamped it last, the likely
 * cause, what to do and the slug to explain, each on a line of its own that begins with two spaces.
 * As kvc_violation_text(): returns the whole length, out may be NULL and 0. finding NULL: "" and 0.
 * Threads: any.
 */
KVC_API size_t kvc_finding_text(char *out, size_t out_bytes, const kvc_finding *finding);

/* What a guard has done so far, over all groups. Set struct_bytes before the call. A slot counts as
 * often as it was looked at. */
typedef struct kvc_guard_statistics {
	size_t struct_bytes;
	int64_t steps;
	int64_t sources; /* strips of KV bytes covered; those of coverage NONE are not */
	int64_t slots_stamped;
	int64_t slots_verified; /* first_read, rotated and swept together */
	int64_t slots_first_read;
	int64_t slots_rotated; /* within verify_budget, or because it is -1 */
	int64_t slots_swept;
	int64_t slots_left_out; /* reads that no budget was left for */
	int64_t slots_excluded; /* reads of slots that the same step wrote */
	int64_t bytes_verified;
	int64_t chain_unchecked;
	int64_t violations;
	int64_t violations_dropped;     /* the ring was full */
	int64_t oldest_unchecked_steps; /* age of the stamped slot longest without a check */
	int64_t oldest_unchecked_slot;  /* -1 = all were stamped or checked in the last step */
	int32_t oldest_unchecked_group; /* -1 = as above */
	size_t memory_bytes;            /* what the guard allocated */
	/* With check_finite: NaN and infinities in the unwritten rest of the last pages of the last
	 * step's requests. No violation, but masked lanes of attention let them through. */
	int64_t stale_nonfinite;
	int64_t stale_nonfinite_slot; /* the first such slot, -1 = none */
} kvc_guard_statistics;

/*
 * Fill *out. Looks at every slot for the oldest unchecked one: call it now and then, not each step.
 * Returns KVC_OK; KVC_E_INVALID_ARGUMENT.
 */
KVC_API KVC_NODISCARD kvc_status kvc_guard_stats(const kvc_guard *guard, kvc_guard_statistics *out);

/* ---- 12. SGLang's interface ---------------------------------------------------------------- */

/*
 * SGLang's kv-canary (0.5.23) from its own side: its launchers with the arguments that they have
 * there, field by field, the same order of checks, the same texts of refusals (a dtype prints as
 * torch prints it), the same bytes. It is for those who put this library in the place of SGLang's
 * kernels; in Python kvcanary.sglang is a thin layer over it. Everybody else takes sections 7 to 9.
 *
 * As there, a call on CUDA tensors is checked like SGLang's kernels, one on host tensors like its
 * torch reference, which asks for less. What is left of the arguments is checked here too, with
 * texts of our own, so that no index and no shape leads outside a tensor:
 *
 *   a slot or predecessor outside canary_buf or a source   skipped, no row; a verify counts it
 *   a request row, prefix or valid length past its table   on the host KVC_E_ROW_RANGE; on CUDA
 *                                                          the entry gets slot -1
 *   a source on the host whose rows are not packed         KVC_E_STRIDE, or KVC_E_CONFIG
 *
 * A call that is refused has written nothing, kernel_run_counter included. The *_args begin with
 * struct_bytes and have an initialiser; all tensors are borrowed for the call and lie on one device.
 */

/* Most sources that a context may have, and most requests of a plan and of a scatter. */
#define KVC_SGLANG_SOURCES_MAX 4
#define KVC_SGLANG_PLAN_REQUESTS_MAX 4096
#define KVC_SGLANG_SCATTER_REQUESTS_MAX 511

/*
 * RealKvSource: one strip of KV bytes. Slot x has the num_bytes_per_token bytes from byte
 * x % page_size * num_bytes_per_token of row x / page_size on; the first read_bytes are hashed.
 *
 *   tensor   two or more dimensions, any dtype, seen as bytes; rows may be wider than their slots,
 *            and lie apart
 */
typedef struct kvc_sglang_source {
	const kvc_tensor *tensor;
	int64_t page_size;
	int64_t num_bytes_per_token;
	int64_t read_bytes;
} kvc_sglang_source;

/*
 * What the constructor of RealKvSource checks. Looks at shape, strides and dtype only.
 * Returns KVC_OK; KVC_E_INVALID_ARGUMENT; KVC_E_CONFIG (a number), KVC_E_SHAPE (fewer than two
 * dimensions, rows too narrow), KVC_E_STRIDE (rows not a multiple of 16 bytes apart). Threads: any.
 */
KVC_API KVC_NODISCARD kvc_status kvc_sglang_source_check(const kvc_sglang_source *source);

/*
 * What a launch on CUDA asks of real_kv_sources[index] besides: packed rows, two dimensions.
 * Returns KVC_OK; KVC_E_INVALID_ARGUMENT; KVC_E_STRIDE; KVC_E_SHAPE. Threads: any.
 */
KVC_API KVC_NODISCARD kvc_status kvc_sglang_source_check_launch(
        const kvc_sglang_source *source, int64_t index);

/*
 * What VerifyPlan.allocate and WritePlan.allocate check: a capacity above 0.
 *
 *   name  as the text is to have it: "VerifyPlan verify_capacity"
 *
 * Returns KVC_OK; KVC_E_CONFIG. Threads: any.
 */
KVC_API KVC_NODISCARD kvc_status kvc_sglang_check_capacity(const char *name, int64_t capacity);

/* VerifyPlan, V entries: int64 [V] four times, then int32 [1] twice. */
typedef struct kvc_sglang_verify_plan {
	size_t struct_bytes;
	const kvc_tensor *verify_slot_indices;
	const kvc_tensor *verify_expected_tokens;
	const kvc_tensor *verify_expected_positions;
	const kvc_tensor *verify_prev_slot_indices;
	const kvc_tensor *verify_num_valid;
	const kvc_tensor *enable;
} kvc_sglang_verify_plan;

#define KVC_SGLANG_VERIFY_PLAN_INIT                                                                \
	{                                                                                          \
		sizeof(kvc_sglang_verify_plan), NULL, NULL, NULL, NULL, NULL, NULL                 \
	}

/* WritePlan, R requests: int64 [R+1], int64 [R], int32 [1]. */
typedef struct kvc_sglang_write_plan {
	size_t struct_bytes;
	const kvc_tensor *write_offsets;
	const kvc_tensor *write_seed_slot_indices;
	const kvc_tensor *write_num_valid_reqs;
} kvc_sglang_write_plan;

#define KVC_SGLANG_WRITE_PLAN_INIT                                                                 \
	{                                                                                          \
		sizeof(kvc_sglang_write_plan), NULL, NULL, NULL                                    \
	}

/*
 * VerifyOrWriteContext.
 *
 *   canary_buf             [slots, bytes of a record >= 32]
 *   kernel_kind            CanaryLaunchTag, 0 to 11
 *   violation_ring         int64 [capacity, 8], filled once
 *   violation_write_index  int32 [1]
 *   slot_run_counter, kernel_run_counter   int64 [1]
 *   real_kv_sources, real_kv_source_count  at most KVC_SGLANG_SOURCES_MAX; NULL and 0 = none
 *   real_kv_hash_mode      RealKvHashMode: the numbers of KVC_COVERAGE_*
 *   enable_chain_position_assert   int32 [1]; only a write reads it
 */
typedef struct kvc_sglang_context {
	size_t struct_bytes;
	const kvc_tensor *canary_buf;
	int64_t kernel_kind;
	const kvc_tensor *violation_ring;
	const kvc_tensor *violation_write_index;
	const kvc_tensor *slot_run_counter;
	const kvc_tensor *kernel_run_counter;
	const kvc_sglang_source *real_kv_sources;
	int64_t real_kv_source_count;
	int64_t real_kv_hash_mode;
	const kvc_tensor *enable_chain_position_assert;
} kvc_sglang_context;

#define KVC_SGLANG_CONTEXT_INIT                                                                    \
	{                                                                                          \
		sizeof(kvc_sglang_context), NULL, 0, NULL, NULL, NULL, NULL, NULL, 0, 0, NULL      \
	}

/* Arguments of launch_canary_plan_kernels; the last three tensors but one are optional. */
typedef struct kvc_sglang_plan_args {
	size_t struct_bytes;
	const kvc_sglang_verify_plan *verify_plan_out;
	const kvc_sglang_write_plan *write_plan_out;
	const kvc_tensor *req_pool_indices;          /* int64 [bs] */
	const kvc_tensor *prefix_lens;               /* int64 [bs] */
	const kvc_tensor *extend_seq_lens;           /* int64 [bs] */
	const kvc_tensor *req_to_token;              /* int32 [rows, columns] */
	int64_t swa_window_size;                     /* 0 or less: none */
	const kvc_tensor *full_to_swa_index_mapping; /* int64 [n], optional */
	int64_t verify_capacity;
	const kvc_tensor *req_to_verify_expected_tokens; /* int32 [rows, columns], optional */
	const kvc_tensor *req_to_verify_expected_tokens_valid_lens; /* int64 [bs], with it */
	int64_t kv_token_id_vs_position_offset;
} kvc_sglang_plan_args;

#define KVC_SGLANG_PLAN_ARGS_INIT                                                                  \
	{                                                                                          \
		sizeof(kvc_sglang_plan_args), NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, 0,      \
		        NULL, NULL, 0                                                              \
	}

/*
 * launch_canary_plan_kernels: which slots the step's requests read, and where their writes go. When
 * more entries come together than fit, enable becomes 0 and none is emitted. Entries and seeds that
 * nothing was to be stored in stay as they were.
 *
 * Returns KVC_OK, or, with nothing written, KVC_E_INVALID_ARGUMENT, KVC_E_CONFIG, KVC_E_SHAPE,
 * KVC_E_DTYPE, KVC_E_STRIDE, KVC_E_LENGTH, KVC_E_DEVICE, KVC_E_NO_CUDA, KVC_E_ROW_RANGE.
 * On CUDA the call only enqueues. Threads: any, on different plans.
 */
KVC_API KVC_NODISCARD kvc_status kvc_sglang_plan(const kvc_sglang_plan_args *args, void *stream);

/*
 * Only the checks that SGLang makes before it launches the first kernel of a plan, wherever the
 * tensors lie.
 *
 *   scratch  out_verify_offsets_scratch, int64 [KVC_SGLANG_PLAN_REQUESTS_MAX + 1], or NULL: this
 *            library needs none
 *
 * Returns as kvc_sglang_plan(). Threads: any.
 */
KVC_API KVC_NODISCARD kvc_status kvc_sglang_plan_check(
        const kvc_sglang_plan_args *args, const kvc_tensor *scratch);

/* Arguments of launch_canary_verify_kernel. */
typedef struct kvc_sglang_verify_args {
	size_t struct_bytes;
	const kvc_sglang_context *context;
	const kvc_sglang_verify_plan *plan;
	int64_t check_verify_expected_token;
} kvc_sglang_verify_args;

#define KVC_SGLANG_VERIFY_ARGS_INIT                                                                \
	{                                                                                          \
		sizeof(kvc_sglang_verify_args), NULL, NULL, 0                                      \
	}

/*
 * launch_canary_verify_kernel: compare each planned slot with its record, its predecessor and its
 * bytes. Rows of violation_ring stand in entry order on the host, in any order on CUDA.
 * Returns as kvc_sglang_plan(). On CUDA the call only enqueues. Threads: any.
 */
KVC_API KVC_NODISCARD kvc_status kvc_sglang_verify(
        const kvc_sglang_verify_args *args, void *stream);

/* Arguments of launch_canary_write_kernel; tokens, positions and slots int64 [T]. */
typedef struct kvc_sglang_write_args {
	size_t struct_bytes;
	const kvc_sglang_context *context;
	const kvc_sglang_write_plan *plan;
	const kvc_tensor *input_ids;
	const kvc_tensor *positions;
	const kvc_tensor *out_cache_loc;
	int64_t enable_write_input_assert;
	const kvc_tensor *expected_input_tokens; /* both or none, as the line above says */
	const kvc_tensor *expected_input_positions;
} kvc_sglang_write_args;

#define KVC_SGLANG_WRITE_ARGS_INIT                                                                 \
	{                                                                                          \
		sizeof(kvc_sglang_write_args), NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL         \
	}

/*
 * launch_canary_write_kernel: stamp the slots that the step writes. On the host in order of requests,
 * so that a seed sees what an earlier request of the call wrote; on CUDA, where SGLang's kernel leaves
 * that to chance, seeds are as before the call.
 * Returns as kvc_sglang_plan(). On CUDA the call only enqueues. Threads: any, on disjoint slots.
 */
KVC_API KVC_NODISCARD kvc_status kvc_sglang_write(const kvc_sglang_write_args *args, void *stream);

/*
 * launch_scatter_req_token_ids_kernel: kvc_scatter_req_token_ids() with SGLang's rules and its limit
 * of KVC_SGLANG_SCATTER_REQUESTS_MAX requests. On the host too, where SGLang has no scatter.
 * Returns as kvc_scatter_req_token_ids(), and KVC_E_LENGTH for too many requests. Threads: as there.
 */
KVC_API KVC_NODISCARD kvc_status kvc_sglang_scatter(const kvc_tensor *flat_in,
        const kvc_tensor *offsets, const kvc_tensor *req_pool_indices, const kvc_tensor *pool_out,
        void *stream);

#ifdef __cplusplus
}
#endif

#endif /* KVCANARY_H */
