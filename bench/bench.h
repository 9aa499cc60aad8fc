/*
 * What the parts of kvcanary-bench share: settings, one row of the result, and how contenders are
 * timed against each other. A user of the public header, like any other program.
 */
#ifndef KVC_BENCH_H
#define KVC_BENCH_H

#include <kvcanary.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { BENCH_FULL, BENCH_QUICK, BENCH_TINY };

/* What the user asked for; NULL and 0 = everything. */
struct bench_settings {
	int effort;     /* BENCH_*: the shapes that are run, and for how long */
	const char *op; /* beginnings of names, with commas between them */
	const char *variant;
	int32_t threads;
	int64_t tokens;
	double case_seconds;   /* time that one case may take */
	double deadline;       /* on bench_now(): after it every case is as short as it can be */
	int64_t llc_bytes;     /* last-level cache */
	int64_t cold_bytes;    /* "cold" goes round a set of buffers of at least this size */
	double reference_copy; /* GB/s of one thread that the machine is known to reach */
	double reference_read;
};

/*
 * One line of the result.
 *
 *   variant     which code ran: a row of the CPU table, or "bare": the same access pattern without
 *               arithmetic and checks, the excuse for whatever misses its target
 *   beside      variant that a bare row was timed beside
 *   tokens      tokens, slots or plan entries of one call
 *   bytes       what one call must at least move
 *   ceiling_ns  the fastest plain copy (or read) of as many bytes, timed in alternation
 *   bare_ns     the bare row timed in alternation, 0 if there is none
 *   best_of     how often it was timed
 */
struct bench_row {
	char op[40];
	char variant[24];
	char beside[24];
	char dtype[20];
	char shape[32];
	char cache[8];
	int64_t tokens;
	int64_t bytes;
	int32_t threads;
	int32_t best_of;
	double ns;
	double ceiling_ns;
	double bare_ns;
};

enum bench_role { ROLE_ROW, ROLE_BARE, ROLE_CEILING };

/* One call of one contender. 'turn' counts all calls of the case, so that cold runs never meet
 * bytes that an earlier call left in the cache; it stays 0 in hot runs. */
typedef void (*bench_call)(void *context, int64_t turn);

#define CONTENDERS_MAX 12

struct contender {
	const char *op; /* of a ROLE_ROW */
	enum bench_role role;
	bench_call call;
	void *context;
	int64_t bytes;
	int64_t repeats; /* calls between two looks at the clock */
	double best_ns;
};

/* Contenders that are timed in alternation, and what their rows have in common. */
struct bench_case {
	const char *dtype;
	const char *shape;
	int64_t tokens;
	int32_t threads;
	int cold;
	int count;
	struct contender contenders[CONTENDERS_MAX];
};

/* Where rows go: from a child to its parent, or into the parent's list. */
typedef void (*bench_sink)(void *context, const struct bench_row *row);

struct bench {
	struct bench_settings settings;
	const char *variant; /* that runs in this process */
	int names_only;      /* the sink gets the rows, but nothing is made or timed */
	bench_sink sink;
	void *sink_context;
};

/* ---- bench_timing.c ---- */

double bench_now(void); /* seconds */
void bench_add(struct bench_case *bench_case, const char *op, enum bench_role role, bench_call call,
        void *context, int64_t bytes);
/* Time all contenders, hand the rows to the sink, and empty the case for the next one. */
void bench_run(struct bench *bench, struct bench_case *bench_case);
/* Run part(context, index) for index 0 .. count-1 on as many threads, index 0 on this one. */
typedef void (*bench_part)(void *context, int32_t index);
void bench_parallel(int32_t count, bench_part part, void *context);
/* Piece 'index' of 'count' of [0, length): its first entry; that of index + 1 is its end. */
int64_t bench_piece(int64_t length, int32_t index, int32_t count);

/* ---- bench_filters.c ---- */

/* Is this operation, or variant, or number of threads, or of tokens, asked for? */
int bench_wants_op(const struct bench *bench, const char *op);
int bench_wants_variant(const struct bench *bench, const char *variant);
int bench_wants_threads(const struct bench *bench, int32_t threads);
int bench_wants_tokens(const struct bench *bench, int64_t tokens);
/* Has the variant that runs here a kernel of its own for the library's 'operation'? Operations that
 * have none but the portable one belong to "portable". */
int bench_has_kernel(const struct bench *bench, const char *operation);
struct bench_result;
/* Does something pass all filters? 'cases': the rows of a run without filters, which are reordered. If
 * not, stderr says which filter is to blame and what there is. */
int bench_filters_match(const struct bench *bench, struct bench_result *cases);

/* ---- bench_memory.c ---- */

void *bench_alloc(size_t bytes); /* page aligned, never NULL; ends the program if there is none */
void bench_free(void *memory, size_t bytes);
uint64_t bench_random(uint64_t *state);
/* The slice that call 'turn' of 'count' takes: never the one after the last call's, so that no
 * prefetcher that runs past its end fetches it. */
int64_t bench_slice(int64_t turn, int64_t count);
/* Random finite values: magnitudes from 0.5 to 2, both signs. */
void bench_fill(void *memory, size_t bytes, kvc_dtype dtype, uint64_t seed);
void bench_permutation(int64_t *out, int64_t count, uint64_t seed);
void bench_check(kvc_status status); /* ends the program with the library's message */
int64_t bench_dtype_bytes(kvc_dtype dtype);

/* ---- bench_copy.c: ceilings ---- */

void bench_copy_plain(void *out, const void *in, size_t bytes);
void bench_copy_stream(void *out, const void *in, size_t bytes); /* non-temporal stores */
/* 'next': what will be read after this; the end of it is asked for ahead of time. */
uint64_t bench_sum(const void *in, size_t bytes, const void *next);
void bench_stream_end(void); /* makes non-temporal stores visible to other threads */
/* Add what copies (reads) as many bytes as one call of the case moves. Half of 'bytes' is read and
 * half written by a copy. */
void bench_add_copies(const struct bench *bench, struct bench_case *bench_case, int64_t bytes);
void bench_add_reads(const struct bench *bench, struct bench_case *bench_case, int64_t bytes);

struct bench_ceiling {
	const char *name;
	int32_t threads;
	int cold;
	double gb_s; /* copies: bytes copied, so twice as many are moved */
};
#define CEILINGS_MAX 16
/* Measure (again): each entry keeps the best so far. Returns how many there are. */
int bench_ceilings(const struct bench *bench, struct bench_ceiling ceilings[CEILINGS_MAX]);
double bench_ceiling_best(
        const struct bench_ceiling *ceilings, int count, int copies, int32_t threads);

/* ---- the operations ---- */

void bench_rope(struct bench *bench);
void bench_scatter(struct bench *bench);
void bench_plan(struct bench *bench);
void bench_canary(struct bench *bench); /* write, verify, scan_finite */

/* ---- bench_machine.c, bench_output.c ---- */

struct bench_machine {
	char cpu[96];
	char system[96];
	char compiler[64];
	char build[96];
	char date[32];
	int32_t cpus;
	int64_t memory_bytes;
	int64_t llc_bytes;
	double load;
};
void bench_machine_read(struct bench_machine *out);

struct bench_result {
	struct bench_machine machine;
	struct bench_ceiling ceilings[CEILINGS_MAX];
	int ceiling_count;
	int counts; /* the ceilings are what the machine is known to reach */
	double reference_copy, reference_read;
	char variants[128];
	char not_run[256]; /* variants and peers, and why */
	struct bench_row *rows;
	size_t row_count;
};
void bench_print_head(FILE *out, const struct bench_result *result);
void bench_print_table(FILE *out, const struct bench_result *result);
void bench_print_json(FILE *out, const struct bench_result *result);

#endif /* KVC_BENCH_H */
