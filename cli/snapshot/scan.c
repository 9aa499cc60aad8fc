/*
 * Fingerprints, zeros and non-finite values of rows; scan.h says what each function promises.
 *
 * The floats of 8 to 64 bits are looked at eight bytes at a time. With the sign masked off, adding
 * the right number to each lane carries into its top bit exactly if the exponent is that of NaN and
 * infinity; lanes cannot carry into each other.
 */
#include "snapshot/scan.h"
#include "kvcanary.h"
#include "snapshot/reader.h"
#include "snapshot/wide.h"

#include <stdlib.h>
#include <string.h>

/* What stays in the second level of cache beside its fingerprints. */
#define PIECE_BYTES ((size_t)128 << 10)
/* Of buffers: lines of cache, so that rows and copies to them do not straddle those for no reason. */
#define ALIGNMENT ((size_t)64)
/* Where channels lie apart (V transposed), so that a read of one is long enough. */
#define PIECE_BYTES_TRANSPOSED ((size_t)4 << 20)
#define PIECE_HEADS ((int64_t)1 << 16)  /* fingerprints at a time, unless a row has more */
#define BLOCK_BYTES ((uint64_t)4 << 20) /* work for one thread */
#define SLOTS 1024                      /* heads that the library is asked for at a time */

/* How to look at a float type in lanes of a 64-bit word. */
struct lanes {
	uint64_t magnitude; /* mask: all but the signs */
	uint64_t carry;     /* added to that, sets the top bit of lanes that are not finite */
	uint64_t top;       /* the top bits */
	unsigned bytes;     /* of one lane */
	uint64_t infinity;  /* magnitude of infinity in one lane; 0: the type has none */
};

#define EACH_32(x) ((uint64_t)(x) << 32 | (x))
#define EACH_16(x) EACH_32((uint64_t)(x) << 16 | (x))
#define EACH_8(x) EACH_16((uint64_t)(x) << 8 | (x))

static const struct lanes lanes_f64 = { INT64_MAX, UINT64_C(1) << 52, UINT64_C(1) << 63, 8,
	UINT64_C(0x7FF0000000000000) };
static const struct lanes lanes_f32 = { EACH_32(0x7FFFFFFFu), EACH_32(0x00800000u),
	EACH_32(0x80000000u), 4, 0x7F800000 };
static const struct lanes lanes_f16 = { EACH_16(0x7FFFu), EACH_16(0x0400u), EACH_16(0x8000u), 2,
	0x7C00 };
static const struct lanes lanes_bf16 = { EACH_16(0x7FFFu), EACH_16(0x0080u), EACH_16(0x8000u), 2,
	0x7F80 };
static const struct lanes lanes_e5m2 = { EACH_8(0x7Fu), EACH_8(0x04u), EACH_8(0x80u), 1, 0x7C };
static const struct lanes lanes_e4m3 = { EACH_8(0x7Fu), EACH_8(0x01u), EACH_8(0x80u), 1, 0 };
/* Unknown elements: only whether all bytes are 0. */
static const struct lanes lanes_opaque = { UINT64_MAX, 0, 0, 1, 0 };

static const struct lanes *lanes_of(enum saved_type type)
{
	switch (type) {
	case SAVED_F64:
		return &lanes_f64;
	case SAVED_F32:
		return &lanes_f32;
	case SAVED_F16:
	case SAVED_Q8_0: /* their scales */
	case SAVED_Q4_0:
		return &lanes_f16;
	case SAVED_BF16:
		return &lanes_bf16;
	case SAVED_F8_E5M2:
		return &lanes_e5m2;
	case SAVED_F8_E4M3:
		return &lanes_e4m3;
	case SAVED_AFFINE:
	case SAVED_OPAQUE:
		break;
	}
	return &lanes_opaque;
}

/* Up to eight bytes, filled up with zeros, which are finite. */
static uint64_t load(const unsigned char *at, size_t bytes)
{
	uint64_t word = 0;

	memcpy(&word, at, bytes < 8 ? bytes : 8);
	return word;
}

/* 32 bytes, which need not be aligned; compilers split them where registers are shorter. */
typedef uint64_t vector __attribute__((vector_size(32), aligned(1), may_alias));

#define EACH_WORD(x) ((vector){ (x), (x), (x), (x) })

/* By address: passing vectors by value depends on the processor. */
static inline __attribute__((always_inline)) uint64_t or_of(const vector *v)
{
	return (*v)[0] | (*v)[1] | (*v)[2] | (*v)[3];
}

static inline __attribute__((always_inline)) bool any_of(const vector *v)
{
	return or_of(v) != 0;
}

#if defined(__x86_64__)
static inline __attribute__((always_inline)) WIDE bool any_of_wide(const vector *v)
{
	return !__builtin_ia32_ptestz256((long long __attribute__((vector_size(32)))) * v,
	        (long long __attribute__((vector_size(32)))) * v);
}
#else
#define any_of_wide any_of
#endif

/* Flags of one head, without those of stretches. */
static unsigned look_at_head(const struct lanes *lanes, const unsigned char *at, size_t bytes)
{
	uint64_t seen = 0, carried = 0;

	for (size_t i = 0; i < bytes; i += 8) {
		uint64_t word = load(at + i, bytes - i) & lanes->magnitude;
		seen |= word;
		carried |= word + lanes->carry;
	}
	return (seen == 0 ? SCAN_ZERO : 0u) | (carried & lanes->top ? SCAN_NONFINITE : 0u);
}

/* Heads at equal distances, from 32 bytes on: nearly all are finite and begin with something else
 * than zeros, which is quick to see. The last vector may overlap the one before. Returns how many
 * heads have flags. */
static inline __attribute__((always_inline)) int64_t look_at_heads(const struct lanes *lanes,
        const unsigned char *at, size_t stride, size_t bytes, int64_t count, unsigned char *flags,
        bool (*any)(const vector *v))
{
	const vector magnitude = EACH_WORD(lanes->magnitude), carry = EACH_WORD(lanes->carry);
	const vector top = EACH_WORD(lanes->top);
	int64_t flagged = 0;

	for (int64_t head = 0; head < count; head++, at += stride) {
		const unsigned char *last = at + bytes - sizeof(vector);
		vector first = *(const vector *)at & magnitude;
		vector carried = first + carry;
		for (const unsigned char *next = at + sizeof(vector); next < last;
		        next += sizeof(vector))
			carried |= (*(const vector *)next & magnitude) + carry;
		carried |= (*(const vector *)last & magnitude) + carry;
		carried &= top;
		flags[head] = 0;
		if (any(&first) && !any(&carried))
			continue;
		flags[head] = (unsigned char)look_at_head(lanes, at, bytes);
		flagged += flags[head] != 0;
	}
	return flagged;
}

static int64_t look_at_heads_anywhere(const struct lanes *lanes, const unsigned char *at,
        size_t stride, size_t bytes, int64_t count, unsigned char *flags)
{
	return look_at_heads(lanes, at, stride, bytes, count, flags, any_of);
}

static WIDE int64_t look_at_heads_wide(const struct lanes *lanes, const unsigned char *at,
        size_t stride, size_t bytes, int64_t count, unsigned char *flags)
{
	return look_at_heads(lanes, at, stride, bytes, count, flags, any_of_wide);
}

static int64_t flags_of_heads(const struct lanes *lanes, const unsigned char *at, size_t stride,
        size_t bytes, int64_t count, unsigned char *flags)
{
	int64_t flagged = 0;

	if (bytes < sizeof(vector)) {
		for (int64_t i = 0; i < count; i++, at += stride) {
			flags[i] = (unsigned char)look_at_head(lanes, at, bytes);
			flagged += flags[i] != 0;
		}
		return flagged;
	}
	return has_wide() ? look_at_heads_wide(lanes, at, stride, bytes, count, flags)
	                  : look_at_heads_anywhere(lanes, at, stride, bytes, count, flags);
}

/* Whether a row may have a stretch of zeros, or anything else to look at more closely: no stretch
 * has a word of zeros in most rows, which takes no reduction of vectors to see. */
static inline __attribute__((always_inline)) bool look_for_stretches(
        const struct lanes *lanes, const unsigned char *at, size_t bytes)
{
	const vector magnitude = EACH_WORD(lanes->magnitude), carry = EACH_WORD(lanes->carry);
	const size_t stretch = (size_t)lanes->bytes * SCAN_STRETCH;
	vector zero = EACH_WORD(0), carried = EACH_WORD(0);

	for (size_t i = 0; i < bytes; i += stretch) {
		vector seen = EACH_WORD(0);
		for (size_t k = i; k < i + stretch; k += sizeof(vector)) {
			vector v = *(const vector *)(at + k) & magnitude;
			seen |= v;
			carried |= v + carry;
		}
		zero |= (vector)(seen == EACH_WORD(0));
	}
	return or_of(&zero) != 0 || (or_of(&carried) & lanes->top) != 0;
}

static bool look_for_stretches_anywhere(
        const struct lanes *lanes, const unsigned char *at, size_t bytes)
{
	return look_for_stretches(lanes, at, bytes);
}

static WIDE bool look_for_stretches_wide(
        const struct lanes *lanes, const unsigned char *at, size_t bytes)
{
	return look_for_stretches(lanes, at, bytes);
}

static bool may_have_stretches(const struct lanes *lanes, const unsigned char *at, size_t bytes)
{
	return has_wide() ? look_for_stretches_wide(lanes, at, bytes)
	                  : look_for_stretches_anywhere(lanes, at, bytes);
}

/* A row whose heads are not known: stretches are as if they were heads. */
static unsigned flags_of_stretches(const struct lanes *lanes, const unsigned char *at, size_t bytes)
{
	const size_t stretch = (size_t)lanes->bytes * SCAN_STRETCH;
	unsigned all = SCAN_ZERO, any = 0;

	while (bytes > 0) {
		unsigned char flags[64];
		size_t whole = bytes / stretch, count = whole < 64 ? whole : 64;
		if (count == 0) { /* less than a stretch is left */
			flags_of_heads(lanes, at, bytes, bytes, 1, flags);
			return (all & flags[0]) | ((any | flags[0]) & SCAN_NONFINITE) |
			       (any & SCAN_ZERO ? SCAN_ZERO_STRETCH : 0u);
		}
		flags_of_heads(lanes, at, stretch, stretch, (int64_t)count, flags);
		for (size_t i = 0; i < count; i++) {
			all &= flags[i];
			any |= flags[i];
		}
		at += count * stretch;
		bytes -= count * stretch;
	}
	return (all & SCAN_ZERO) | (any & SCAN_NONFINITE) |
	       (any & SCAN_ZERO ? SCAN_ZERO_STRETCH : 0u);
}

static unsigned flags_of_lanes(const struct lanes *lanes, const unsigned char *at, size_t bytes)
{
	if (bytes % ((size_t)lanes->bytes * SCAN_STRETCH) == 0 &&
	        !may_have_stretches(lanes, at, bytes))
		return 0;
	return flags_of_stretches(lanes, at, bytes);
}

/* ---- blocks and groups: a value is scale * number (+ bias) ---- */

#define Q8_0_BYTES 34
#define Q4_0_BYTES 18

static size_t block_bytes(enum saved_type type)
{
	return type == SAVED_Q8_0 ? Q8_0_BYTES : Q4_0_BYTES;
}

/* A zero number is 0 in q8_0 and a nibble of 8 in q4_0. */
static bool block_is_zero(enum saved_type type, const unsigned char *block, unsigned scale_flags)
{
	const uint64_t zero = type == SAVED_Q8_0 ? 0 : EACH_8(0x88u);
	uint64_t differs = 0;

	if (scale_flags & SCAN_ZERO)
		return true;
	for (size_t i = 2; i < block_bytes(type); i += 8)
		differs |= load(block + i, 8) ^ zero;
	return differs == 0;
}

static unsigned flags_of_blocks(enum saved_type type, const unsigned char *at, size_t bytes)
{
	unsigned flags = 0;
	bool all_zero = true;

	for (size_t i = 0; i + block_bytes(type) <= bytes; i += block_bytes(type)) {
		unsigned scale = flags_of_lanes(&lanes_f16, at + i, 2);
		bool zero = block_is_zero(type, at + i, scale);
		flags |= scale & SCAN_NONFINITE;
		flags |= zero ? SCAN_ZERO_STRETCH : 0u;
		all_zero &= zero;
	}
	return flags | (all_zero ? SCAN_ZERO : 0u);
}

/* Bytes of the words of a head; behind them lie its scales, then its biases. */
static size_t affine_word_bytes(const struct saved_tensor *tensor)
{
	return (size_t)tensor->dim * tensor->element_bits / 8;
}

static unsigned flags_of_affine(
        const struct saved_tensor *tensor, const unsigned char *head, size_t bytes)
{
	size_t words = affine_word_bytes(tensor);

	return words <= bytes
	               ? flags_of_lanes(lanes_of(tensor->scale_type), head + words, bytes - words)
	               : 0;
}

unsigned scan_flags(const struct saved_tensor *tensor, const unsigned char *head, size_t bytes)
{
	switch (tensor->type) {
	case SAVED_Q8_0:
	case SAVED_Q4_0:
		return flags_of_blocks(tensor->type, head, bytes);
	case SAVED_AFFINE:
		return flags_of_affine(tensor, head, bytes) & ~(unsigned)SCAN_ZERO_STRETCH;
	default:
		return flags_of_lanes(lanes_of(tensor->type), head, bytes);
	}
}

/* ---- where it is ---- */

/* Lanes at 'at', 'stride' bytes apart, each standing for 'elements' elements. */
static void find_in_lanes(struct scan_nonfinite *out, const struct lanes *lanes,
        const unsigned char *at, size_t stride, int64_t count, int64_t elements)
{
	for (int64_t i = 0; i < count; i++) {
		uint64_t word = load(at + (size_t)i * stride, lanes->bytes) & lanes->magnitude;
		if (((word + lanes->carry) & lanes->top) == 0)
			continue;
		if (out->count++ > 0)
			continue;
		out->element = i * elements;
		out->what = elements > 1 ? "scale" : word == lanes->infinity ? "infinity" : "NaN";
	}
}

struct scan_nonfinite scan_find_nonfinite(
        const struct saved_tensor *tensor, const unsigned char *head)
{
	struct scan_nonfinite out = { -1, 0, "" };
	const struct lanes *lanes = lanes_of(tensor->type);
	int64_t groups;

	switch (tensor->type) {
	case SAVED_OPAQUE:
		break;
	case SAVED_Q8_0:
	case SAVED_Q4_0:
		find_in_lanes(&out, lanes, head, block_bytes(tensor->type), tensor->dim / 32, 32);
		break;
	case SAVED_AFFINE:
		lanes = lanes_of(tensor->scale_type);
		groups = tensor->dim / tensor->group_size;
		head += affine_word_bytes(tensor);
		find_in_lanes(&out, lanes, head, lanes->bytes, groups, tensor->group_size);
		find_in_lanes(&out, lanes, head + (size_t)groups * lanes->bytes, lanes->bytes,
		        groups, tensor->group_size);
		break;
	default:
		find_in_lanes(&out, lanes, head, lanes->bytes, tensor->dim, 1);
	}
	return out;
}

int64_t scan_find_zero_stretch(const struct saved_tensor *tensor, const unsigned char *head)
{
	bool blocks = tensor->type == SAVED_Q8_0 || tensor->type == SAVED_Q4_0;
	size_t bytes = blocks ? block_bytes(tensor->type)
	                      : (size_t)lanes_of(tensor->type)->bytes * SCAN_STRETCH;

	for (int64_t i = 0; i + SCAN_STRETCH <= tensor->dim; i += SCAN_STRETCH, head += bytes)
		if (scan_flags(tensor, head, bytes) & SCAN_ZERO)
			return i;
	return -1;
}

/* ---- the pass ---- */

static const char *path_of(const struct saved_tensor *tensor)
{
	return saved_file_path(tensor->pages ? tensor->pages[0].file : tensor->plane.file);
}

void scan_memory_free(struct scan_memory *memory)
{
	free(memory->bytes);
	free(memory->fingerprints);
	free(memory->flags);
	free(memory->slots);
	*memory = (struct scan_memory){ 0 };
}

static int memory_reserve(struct scan_memory *memory, size_t bytes, size_t heads)
{
	if (!memory->slots) {
		memory->slots = malloc(SLOTS * sizeof(*memory->slots));
		for (int64_t i = 0; memory->slots && i < SLOTS; i++)
			memory->slots[i] = i;
	}
	if (memory->bytes_capacity < bytes) {
		free(memory->bytes);
		memory->bytes =
		        aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
		memory->bytes_capacity = memory->bytes ? bytes : 0;
	}
	if (memory->heads_capacity < heads) {
		free(memory->fingerprints);
		free(memory->flags);
		memory->fingerprints = malloc(heads * sizeof(*memory->fingerprints));
		memory->flags = malloc(heads);
		memory->heads_capacity = memory->fingerprints && memory->flags ? heads : 0;
	}
	return memory->slots && memory->bytes_capacity >= bytes && memory->heads_capacity >= heads
	               ? 0
	               : -1;
}

/* Heads at equal distances in memory. */
struct run {
	const unsigned char *at;
	size_t stride;
	size_t head_bytes;
	int64_t count;
};

/* The heads are slots of one source, so the library's kernels do the work. */
static int fingerprint_run(uint64_t *out, const struct run *run, int64_t *all_slots)
{
	kvc_source source = { .row_stride_bytes = (int64_t)run->stride,
		.page_size = 1,
		.slot_stride_bytes = (int64_t)run->head_bytes,
		.head_count = 1,
		.head_bytes = (int64_t)run->head_bytes,
		.head_stride_bytes = (int64_t)run->head_bytes,
		.read_bytes = (int64_t)run->head_bytes,
		.dtype = KVC_UINT8 };
	kvc_group group = KVC_GROUP_INIT;

	group.sources = &source;
	group.source_count = 1;
	for (int64_t first = 0, count; first < run->count; first += count) {
		kvc_tensor slots = { .data = all_slots,
			.device = { KVC_DEVICE_CPU, 0 },
			.ndim = 1,
			.dtype = KVC_INT64,
			.shape = &count };
		count = run->count - first < SLOTS ? run->count - first : SLOTS;
		source.base = (void *)(uintptr_t)(run->at + (size_t)first * run->stride);
		source.row_count = count;
		if (kvc_fingerprint(out + first, &group, &slots, NULL) != KVC_OK)
			return -1;
	}
	return 0;
}

static bool has_lanes(enum saved_type type)
{
	return type != SAVED_Q8_0 && type != SAVED_Q4_0 && type != SAVED_AFFINE;
}

/* How many heads have flags. Where the number of heads is known, stretches of zeros have no say. */
static int64_t flags_of_run(
        const struct saved_tensor *tensor, const struct run *run, unsigned char *out)
{
	const unsigned char *head = run->at;
	int64_t flagged = 0;

	if (tensor->heads > 1 && has_lanes(tensor->type))
		return flags_of_heads(lanes_of(tensor->type), head, run->stride, run->head_bytes,
		        run->count, out);
	for (int64_t i = 0; i < run->count; i++, head += run->stride) {
		out[i] = (unsigned char)scan_flags(tensor, head, run->head_bytes);
		flagged += out[i] != 0;
	}
	return flagged;
}

/* A pass over some rows. */
struct pass_over {
	const struct saved_tensor *tensor;
	struct scan_memory *memory;
	size_t head_bytes;
	struct scan_rows rows; /* whose results are being collected */
	struct saved_reach reach;
};

static int look_at_run(struct pass_over *pass, const struct run *run, size_t result)
{
	struct scan_memory *memory = pass->memory;

	pass->rows.flagged |= flags_of_run(pass->tensor, run, memory->flags + result) > 0;
	return fingerprint_run(memory->fingerprints + result, run, memory->slots);
}

/* All heads of the rows: in one run where they are at equal distances, else row by row. */
static int look_at_rows(struct pass_over *pass, const struct saved_view *view)
{
	int64_t heads = pass->tensor->heads, rows = pass->rows.count;
	bool even = heads == 1 || view->row_stride == (size_t)heads * view->head_stride;
	struct run run = { view->bytes, heads == 1 ? view->row_stride : view->head_stride,
		pass->head_bytes, even ? rows * heads : heads };

	for (int64_t row = 0; row < (even ? 1 : rows); row++) {
		if (look_at_run(pass, &run, (size_t)(row * heads)) != 0)
			return -1;
		run.at += view->row_stride;
	}
	return 0;
}

/* One head of the rows. */
static int look_at_one_head(struct pass_over *pass, const struct saved_view *view, int64_t head)
{
	int64_t rows = pass->rows.count;
	struct run run = { view->bytes, view->row_stride, pass->head_bytes, rows };

	return look_at_run(pass, &run, (size_t)(head * rows));
}

static int look_at_piece(struct pass_over *pass, struct saved_error *error)
{
	struct saved_reach reach = pass->reach;
	bool whole_rows = reach.heads == pass->tensor->heads;
	int failed = 0;

	reach.rows = pass->rows.count;
	pass->rows.flagged = false;
	pass->rows.row_stride = whole_rows ? reach.heads : 1;
	pass->rows.head_stride = whole_rows ? 1 : reach.rows;
	for (int64_t head = 0; head < pass->tensor->heads && !failed; head += reach.heads) {
		struct saved_view view;
		if (saved_view_read(&view, pass->tensor, pass->rows.first, head, reach,
		            pass->memory->bytes, error) != 0)
			return -1;
		failed = whole_rows ? look_at_rows(pass, &view)
		                    : look_at_one_head(pass, &view, head);
	}
	return failed ? saved_fail(error, "snapshot-row-too-large", "row_too_large",
	                        path_of(pass->tensor), "row", -1, "%s", kvc_last_error()->message)
	              : 0;
}

static bool is_transposed(const struct saved_tensor *tensor)
{
	return tensor->plane.element_stride > tensor->plane.row_stride;
}

static int pass_begin(struct pass_over *pass, struct saved_error *error)
{
	const struct saved_tensor *tensor = pass->tensor;
	size_t row_bytes = saved_row_bytes(tensor);
	size_t bytes = is_transposed(tensor) ? PIECE_BYTES_TRANSPOSED : PIECE_BYTES;
	int64_t most = PIECE_HEADS / tensor->heads;

	if (row_bytes > SCAN_ROW_BYTES_MAX)
		return saved_fail(error, "snapshot-row-too-large", "row_too_large", path_of(tensor),
		        "row", (int64_t)tensor->plane.offset,
		        "a row has %zu bytes, at most %zu are read", row_bytes, SCAN_ROW_BYTES_MAX);
	pass->reach = saved_view_reach(tensor, &bytes);
	most = most < 1 ? 1 : most;
	pass->reach.rows = pass->reach.rows < most ? pass->reach.rows : most;
	if (memory_reserve(pass->memory, bytes, (size_t)pass->reach.rows * (size_t)tensor->heads) !=
	        0)
		return saved_fail_memory(error, path_of(tensor));
	pass->rows.fingerprints = pass->memory->fingerprints;
	pass->rows.flags = pass->memory->flags;
	return 0;
}

int scan_tensor(const struct saved_tensor *tensor, int64_t first, int64_t end,
        struct scan_memory *memory, scan_sink sink, void *context, struct saved_error *error)
{
	struct pass_over pass = { .tensor = tensor, .memory = memory };

	if (first == end || saved_row_bytes(tensor) == 0)
		return 0;
	pass.head_bytes = saved_row_bytes(tensor) / (size_t)tensor->heads;
	if (pass_begin(&pass, error) != 0)
		return -1;
	for (; first < end; first += pass.rows.count) {
		pass.rows.first = first;
		pass.rows.count = end - first < pass.reach.rows ? end - first : pass.reach.rows;
		if (look_at_piece(&pass, error) != 0 || sink(context, &pass.rows, error) != 0)
			return -1;
	}
	return 0;
}

/* ---- blocks ---- */

int64_t scan_block_count(const struct saved_tensor *tensor, int64_t row_count)
{
	uint64_t bytes = (uint64_t)row_count * saved_row_bytes(tensor);
	uint64_t blocks = (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES;

	if (blocks > (uint64_t)row_count)
		blocks = (uint64_t)row_count;
	return blocks < 1 ? 1 : blocks > SCAN_BLOCKS_MAX ? SCAN_BLOCKS_MAX : (int64_t)blocks;
}

int64_t scan_block_first(int64_t row_count, int64_t block_count, int64_t block)
{
	return row_count / block_count * block + row_count % block_count * block / block_count;
}
