/*
 * kvcanary diff: two saved caches against each other.
 *
 *	align.c     which layers and which rows belong together
 *	read.c      rows of either side as float32, in any order
 *	measure.c   how far two rows are apart: one struct diff_cell for a row of a tensor
 *	judge.c     which cells are damage and which are drift, from the cells alone
 *	whole.c     explains whole tensors: Hadamard, swapped layers, K with V, another layout
 *	moved.c     explains rows that lie elsewhere in the other file: shifts, positions, sequences
 *	rows.c      explains what is left, row by row: zeroed, permuted, rotated, changed
 *	compare.c   the order of all this; makes a struct diff_result
 *	print.c, print_json.c, print_html.c   the result for people, programs and browsers
 *
 * Memory: cells of at most DIFF_CELLS_MAX at a time (rows are taken in stretches), buffers of a
 * fixed size for each thread, and 16 bytes for each pair of rows; never the data of a file.
 */
#ifndef KVCANARY_SNAPSHOT_DIFF_H
#define KVCANARY_SNAPSHOT_DIFF_H

#include "snapshot/cache.h"
#include "snapshot/finding.h"
#include "snapshot/rope_given.h"

enum { DIFF_A = 0, DIFF_B = 1 };

/* A row of one side. */
struct diff_place {
	int32_t part;
	int32_t row;
};

/* Rows that hold the same position of the same sequence. */
struct diff_pair {
	struct diff_place side[2];
};

struct diff_places {
	struct diff_place *list;
	int64_t count;
};

/* Parts with the same list of layers: a cache with its streams, or a batch with its elements. */
struct diff_stack {
	const char *name;
	const int32_t *parts[2]; /* indices into cache->parts */
	int64_t part_count[2];
	int64_t layer_count;     /* that both have */
	int64_t *layer[2];       /* [layer_count]: indices into part->layers */
	struct diff_pair *pairs; /* by place in A */
	int64_t pair_count;
	struct diff_places only[2];   /* rows that the other side lacks */
	struct diff_places beyond[2]; /* rows that lie outside the other side's window: no fault */
};

/* A layer that one side lacks. */
struct diff_missing_layer {
	int side; /* that has it */
	int64_t number;
	const char *stack;
};

struct diff_alignment {
	const struct saved_cache *cache[2];
	struct diff_stack *stacks;
	int64_t stack_count;
	struct diff_missing_layer *missing_layers;
	int64_t missing_layer_count;
	int32_t *part_lists; /* memory of stacks[].parts */
};

/* True, or false if memory is short; to be freed in either case. */
bool diff_align(
        struct diff_alignment *out, const struct saved_cache *a, const struct saved_cache *b);
void diff_alignment_free(struct diff_alignment *alignment);

/* ---- reading ---- */

/* Where the values of one side of a layer come from: normally the layer's own tensor. */
struct diff_source {
	const struct saved_cache *cache;
	int64_t layer;    /* index into the layers of each part */
	int tensor;       /* SAVED_K or SAVED_V */
	int64_t hadamard; /* elements of a block to be multiplied back; 0: stored plain */
	/* Another description of the same bytes, by part; NULL: the cache's own. */
	const struct saved_tensor *other_layout;
};

/* The described tensor of a part. */
const struct saved_tensor *diff_tensor(const struct diff_source *source, int32_t part);

#define DIFF_BUFFER_FLOATS ((size_t)1 << 16)
#define DIFF_BUFFER_BYTES (8 * DIFF_BUFFER_FLOATS)
#define DIFF_SPAN_BYTES (2 * DIFF_BUFFER_BYTES)
#define DIFF_ROW_MAX ((int64_t)DIFF_BUFFER_FLOATS) /* elements of a row that can be compared */

#define DIFF_DISTANCES_MAX ((size_t)DIFF_ROW_MAX)

struct diff_distance; /* measure.c */

/* Memory to read and compare in; each thread has its own. */
struct diff_buffers {
	float *values[2];        /* DIFF_BUFFER_FLOATS */
	unsigned char *bytes[2]; /* DIFF_BUFFER_BYTES */
	unsigned char *span;     /* DIFF_SPAN_BYTES: rows between those that are wanted */
	struct diff_distance
	        *distances; /* DIFF_DISTANCES_MAX: units of rows, before they are cells */
	bool *differs;      /* [DIFF_DISTANCES_MAX]: rows whose bytes do */
};
size_t diff_distance_bytes(void);
bool diff_buffers_make(struct diff_buffers *buffers);
void diff_buffers_free(struct diff_buffers *buffers);

/* Pairs from 'first' on whose rows of this side follow each other in one part. */
int64_t diff_run_of_rows(const struct diff_pair *pairs, int side, int64_t first, int64_t count);

/* Packed bytes of the rows of one side of 'count' pairs; 0 or -1 and *error. */
int diff_read_bytes(const struct diff_source *source, const struct diff_pair *pairs, int side,
        int64_t count, unsigned char *out, unsigned char *span, struct saved_error *error);

/* Their values, Hadamard undone. */
void diff_values(const struct diff_source *source, int32_t part, const unsigned char *bytes,
        int64_t count, float *out);

/* Both at once, for few rows. */
int diff_read_values(const struct diff_source *source, const struct diff_pair *pairs, int side,
        int64_t count, struct diff_buffers *buffers, float *out, struct saved_error *error);

/* Multiplies blocks of 2^n values by the orthonormal Walsh-Hadamard matrix, in place. */
void diff_hadamard(float *values, int64_t count, int64_t block);

/* ---- measuring ---- */

/* What rounding alone may do to values of two types. */
struct diff_precision {
	float relative; /* spacing of values, as a share of the value */
	float of_most;  /* spacing as a share of the largest value: types with blocks */
};
struct diff_precision diff_precision(const struct saved_tensor *a, const struct saved_tensor *b);
/* Relative error of a row in which every element is off by that spacing. */
float diff_floor(struct diff_precision precision);

enum {
	DIFF_SAME = 1,      /* all values equal */
	DIFF_NONFINITE = 2, /* a NaN or an infinity that the other side has not */
	DIFF_FEW = 4,    /* a few elements of a unit differ by more than rounding, the rest not */
	DIFF_ZERO_A = 8, /* a unit of A is all zero, of B not */
	DIFF_ZERO_B = 16,
	DIFF_UNRELATED = 32, /* a unit is as far from the other as from anything */
	DIFF_CHANGED = 64,   /* judge.c's word: damage */
	DIFF_EXPLAINED = 128 /* part of something larger: a shift, other tokens */
};

/*
 * One row of one tensor. A row is measured in units (heads; 64 elements where heads are not known)
 * and the worst one counts. |a| is a unit's norm. Errors are divided by the square root of the
 * norm: drift grows with the norm, but less than in proportion.
 */
struct diff_cell {
	float error;    /* |a - b| / sqrt(|a|) of the unit where it is largest */
	float relative; /* |a - b| / |a| of that unit */
	float spike;    /* largest element of |a - b|, / sqrt(|a|), of any unit */
	uint16_t unit;  /* the unit of 'error' */
	uint8_t flags;  /* DIFF_* */
};

/* Sums over a tensor. */
struct diff_sums {
	double error2; /* of all elements */
	double value2;
	float largest;     /* element of |a - b| */
	int64_t different; /* rows */
};

/* Elements of a unit. */
int64_t diff_unit(const struct saved_tensor *a, const struct saved_tensor *b);

/* One row: clears *cell first. */
void diff_measure_row(struct diff_cell *cell, struct diff_sums *sums, const float *a,
        const float *b, int64_t width, int64_t unit, struct diff_precision precision);

/*
 * Cells of 'count' pairs. Rows of equal bytes are not even converted. -1 and *error if a row could
 * not be read. The tensors of all parts must have the same width: see diff_comparable().
 */
int diff_measure(struct diff_cell *cells, struct diff_sums *sums, const struct diff_source *a,
        const struct diff_source *b, const struct diff_pair *pairs, int64_t count,
        struct diff_buffers *buffers, struct saved_error *error);

/* Whether two descriptions can be compared: both there, rows of the same number of elements, known
 * types or the same opaque one. */
bool diff_comparable(const struct saved_tensor *a, const struct saved_tensor *b);

/* ---- judging ---- */

#define DIFF_UNRELATED_ERROR 0.75f /* relative; rows that have nothing in common have 1.41 */

/* How the rows of one tensor drift. Centers are natural logarithms of diff_cell.error and .spike;
 * a row beyond center + DIFF_SPREADS * spread is damage. */
struct diff_drift {
	double error_center, error_spread;
	double spike_center, spike_spread;
	double scale; /* error / relative of an ordinary row: the square root of its norm */
};
#define DIFF_SPREADS 6.0

/* Relative error from which an ordinary row of this tensor counts as damage. */
double diff_limit(const struct diff_drift *drift);

/* K and V of one layer: row_count cells each, NULL where not compared. */
struct diff_layer_cells {
	struct diff_cell *cell[2];
	float floor[2];             /* diff_floor() of the two types */
	int64_t unit[2];            /* elements of a unit */
	bool may_begin_drift;       /* false for the layer that depends on the tokens alone */
	struct diff_drift drift[2]; /* result */
};

/*
 * Sets drift, and DIFF_CHANGED in the cells of damaged rows, of a stretch of rows of one stack. Rows
 * with DIFF_EXPLAINED are left out. False if memory is short. The method: docs/diff.md.
 */
bool diff_judge(struct diff_layer_cells *layers, int64_t layer_count, int64_t row_count);

/* ---- the result ---- */

/* Something found, with its place on either side; the place in 'place' is that in B. */
struct diff_finding {
	struct finding place; /* kind, weight, layer, tensor, head, row, position, token, element */
	int64_t row_a;
	uint64_t offset_a;
	const char *file_a; /* as place.file */
	int64_t count;      /* rows, where one finding stands for several; else 1 */
	int64_t other; /* kind's own: position that fits, other layer, row with the same content, by */
	bool has_other;
	int64_t was, now; /* of a position, token, sequence */
	bool has_was;
	float value[2]; /* of an element */
	bool has_value;
	int bit; /* that differs, -1 */
};

/* One tensor of both sides. */
struct diff_target {
	int64_t layer; /* index into the stack's pairs of layers */
	int tensor;
	struct diff_source source[2];
	struct saved_tensor *owned_layout[2]; /* memory of source[].other_layout */
	bool compared;
	const char *why_not; /* static words; NULL: neither side has it, or no rows in common */
	float floor;
	int64_t unit;
	/* Results. */
	struct diff_sums sums;
	int64_t rows, different, changed; /* explained rows are in none of the two latter */
	int64_t first_different, worst;   /* pairs, -1: none; first by position */
	struct diff_cell worst_cell;
	double typical, limit;     /* relative errors: median, and from where a row is damage */
	struct diff_changed *kept; /* the first DIFF_KEPT changed cells */
	int64_t kept_count;
};
struct diff_changed {
	int64_t pair;
	struct diff_cell cell;
};
#define DIFF_KEPT 256

/* The map: the worst cell of 'columns' stretches of rows, for each target. */
struct diff_map_cell {
	float relative;
	uint8_t flags; /* of all cells in it */
	uint16_t unit;
	int32_t pair; /* the worst; -1: no row */
};

/* What was found in one stack. */
struct diff_stack_result {
	struct diff_stack *stack;
	struct diff_target *targets; /* [2 * layer_count]: K, V of the first layer, ... */
	int32_t *order;              /* [pair_count] rank by position */
	uint8_t *explained;          /* [pair_count] 1: part of something larger */
	uint16_t *changed_layers[2]; /* [pair_count] in how many layers K, V is damage */
	int64_t columns;
	struct diff_map_cell *map; /* [2 * layer_count][columns] */
};

struct diff_result {
	struct diff_alignment alignment;
	struct diff_stack_result *stacks;
	struct diff_finding *findings;
	int64_t finding_count;
	struct diff_tally *tallies; /* of kinds */
	int64_t tally_count;
	bool hadamard[2]; /* values of this side had to be multiplied back */
	int64_t compared; /* targets */
	int64_t not_compared;
	int64_t rows;        /* pairs */
	const char *verdict; /* static word */
	int exit_code;
	char headline[256]; /* one line that a person can act on */
};
struct diff_tally {
	const char *kind;
	int64_t count;
};
#define DIFF_FINDINGS_PER_KIND 256

#define DIFF_THREADS_MAX 16 /* each has buffers of 2.5 MB */

struct diff_options {
	int threads;
	struct saved_rope rope; /* as a file tells; base 0: it does not */
	const struct rope_given
	        *given; /* as the user tells, which comes first; NULL: he does not */
};

/* 0; or -1 and *error. Free in either case. */
int diff_compare(struct diff_result *out, const struct saved_cache *a, const struct saved_cache *b,
        const struct diff_options *options, struct saved_error *error);
void diff_result_free(struct diff_result *result);

/* A blank finding of this kind, counted; NULL if enough of them are kept or memory is short. */
struct diff_finding *diff_add(
        struct diff_result *result, const char *kind, enum finding_weight weight);
int64_t diff_count(const struct diff_result *result, const char *kind);
/* Fills in the place of a row of a target. */
void diff_set_place(struct diff_finding *finding, const struct diff_stack_result *stack,
        const struct diff_target *target, const struct diff_pair *pair);

/* The steps of diff_compare(). All return false if memory is short or a file could not be read. */
struct diff_context {
	struct diff_result *result;
	const struct diff_options *options;
	struct diff_buffers *buffers; /* [threads] */
	struct saved_error *error;
};
bool diff_explain_tensors(struct diff_context *context, struct diff_stack_result *stack);
/* True in *found if rows were explained, and have to be judged again without them. */
bool diff_explain_moved(struct diff_context *context, struct diff_stack_result *stack, bool *found);
bool diff_explain_rows(struct diff_context *context, struct diff_stack_result *stack);
void diff_decide(struct diff_result *result);

/* "layer 3 K, head 1, position 7": what of a finding's place applies; returns out. */
const char *diff_place_text(char *out, size_t bytes, const struct diff_finding *finding);

/* Relative error of two rows: |a - b| / root of the mean of |a|^2 and |b|^2; 0 for two zero rows. */
double diff_relative(const float *a, const float *b, int64_t count);

/* Whether b is a head a of dim elements, rotated as RoPE does by up to 'most' positions; 'tolerance'
 * is a relative error. With the rotation of the options, else with those that models have. */
struct diff_rotation {
	int64_t by;
	double base;
	bool interleaved;
};
bool diff_fit_rotation(struct diff_rotation *out, const float *a, const float *b, int64_t dim,
        int64_t most, double tolerance, const struct diff_options *options);

#endif
