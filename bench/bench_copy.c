/*
 * The ceilings: what plain copies and reads of as many bytes take, over the C library's memcpy and
 * over loops of our own. A ceiling must not be beaten by what it is the ceiling of, so there are
 * several and the fastest counts.
 */
#include "bench.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* ---- the loops ---- */

void bench_copy_plain(void *out, const void *in, size_t bytes)
{
	memcpy(out, in, bytes);
}

#if defined(__x86_64__)

/* 32-byte aligned, a multiple of 128 bytes. */
__attribute__((target("avx2"))) static void stream_avx2(
        unsigned char *out, const unsigned char *in, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 128) {
		_mm_prefetch((const char *)in + i + 2048, _MM_HINT_T0);
		_mm_prefetch((const char *)in + i + 2112, _MM_HINT_T0);
		for (size_t j = i; j < i + 128; j += 32)
			_mm256_stream_si256((__m256i *)(void *)(out + j),
			        _mm256_loadu_si256((const __m256i *)(const void *)(in + j)));
	}
}

static void stream_sse2(unsigned char *out, const unsigned char *in, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 16)
		_mm_stream_si128((__m128i *)(void *)(out + i),
		        _mm_loadu_si128((const __m128i *)(const void *)(in + i)));
}

void bench_copy_stream(void *out, const void *in, size_t bytes)
{
	size_t body = ((uintptr_t)out & 31) == 0 ? bytes & ~(size_t)127 : 0;
	if (body && __builtin_cpu_supports("avx2"))
		stream_avx2(out, in, body);
	else if (body)
		stream_sse2(out, in, body);
	memcpy((unsigned char *)out + body, (const unsigned char *)in + body, bytes - body);
}

void bench_stream_end(void)
{
	_mm_sfence();
}

#define AHEAD 2048

__attribute__((target("avx2"))) static uint64_t sum_avx2(
        const unsigned char *in, size_t bytes, const unsigned char *next)
{
	__m256i sums[4] = { _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
		_mm256_setzero_si256() };
	uint64_t lanes[4];

	for (size_t i = 0; i < bytes; i += 128) {
		const char *ahead = (const char *)(i + AHEAD < bytes ? in + i + AHEAD
		                                   : bytes < AHEAD   ? next + i
		                                                     : next + i + AHEAD - bytes);
		_mm_prefetch(ahead, _MM_HINT_T0);
		_mm_prefetch(ahead + 64, _MM_HINT_T0);
		for (size_t j = 0; j < 4; j++)
			sums[j] = _mm256_add_epi64(
			        sums[j], _mm256_loadu_si256(
			                         (const __m256i *)(const void *)(in + i + 32 * j)));
	}
	sums[0] = _mm256_add_epi64(
	        _mm256_add_epi64(sums[0], sums[1]), _mm256_add_epi64(sums[2], sums[3]));
	memcpy(lanes, &sums[0], sizeof lanes);
	return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

#else

void bench_copy_stream(void *out, const void *in, size_t bytes)
{
	memcpy(out, in, bytes);
}

void bench_stream_end(void)
{
}

#endif

static uint64_t sum_words(const unsigned char *in, size_t bytes)
{
	uint64_t sums[4] = { 0, 0, 0, 0 };
	uint64_t words[4];

	size_t i = 0;
	for (; i + sizeof words <= bytes; i += sizeof words) {
		memcpy(words, in + i, sizeof words);
		for (int j = 0; j < 4; j++)
			sums[j] += words[j];
	}
	for (; i < bytes; i++)
		sums[0] += in[i];
	return sums[0] + sums[1] + sums[2] + sums[3];
}

uint64_t bench_sum(const void *in, size_t bytes, const void *next)
{
#if defined(__x86_64__)
	if (bytes % 128 == 0 && __builtin_cpu_supports("avx2"))
		return sum_avx2(in, bytes, next);
#endif
	(void)next;
	return sum_words(in, bytes);
}

/* ---- as contenders ---- */

/* Two arenas, larger than the last-level cache, that all copies and reads of a process share. */
static unsigned char *arena_from, *arena_to;
static int64_t arena_bytes;

enum kind { KIND_MEMCPY, KIND_STREAM, KIND_READ };

struct move {
	enum kind kind;
	int32_t threads;
	int64_t bytes; /* to copy or read */
	int64_t at;    /* in the arenas, of this call */
	uint64_t sums[64];
};

static struct move moves[CONTENDERS_MAX];
static int move_count;

static void make_arenas(const struct bench *bench)
{
	if (arena_from || bench->names_only)
		return;
	arena_bytes = (bench->settings.cold_bytes + 4095) / 4096 * 4096;
	arena_from = bench_alloc((size_t)arena_bytes + 8192);
	arena_to = bench_alloc((size_t)arena_bytes + 8192);
	bench_fill(arena_from, (size_t)arena_bytes, KVC_BFLOAT16, 1);
}

static uint64_t move_run(enum kind kind, int64_t at, int64_t bytes)
{
	if (kind == KIND_READ)
		return bench_sum(arena_from + at, (size_t)bytes, arena_from + at + bytes);
	if (kind == KIND_MEMCPY)
		bench_copy_plain(arena_to + at, arena_from + at, (size_t)bytes);
	else
		bench_copy_stream(arena_to + at, arena_from + at, (size_t)bytes);
	return 0;
}

static void move_part(void *context, int32_t index)
{
	struct move *move = context;
	int64_t units = move->bytes / 128;
	int64_t begin = bench_piece(units, index, move->threads) * 128;
	int64_t end = bench_piece(units, index + 1, move->threads) * 128;
	uint64_t sum = 0;

	while (begin < end) { /* more bytes than the arena has: go round */
		int64_t at = (move->at + begin) % arena_bytes;
		int64_t piece = end - begin < arena_bytes - at ? end - begin : arena_bytes - at;
		sum += move_run(move->kind, at, piece);
		begin += piece;
	}
	move->sums[index] += sum; /* used, so that the reads cannot be left out */
	if (move->kind == KIND_STREAM)
		bench_stream_end();
}

static void move_call(void *context, int64_t turn)
{
	struct move *move = context;
	int64_t steps = arena_bytes / (move->bytes + 128);
	move->at = steps > 1 ? bench_slice(turn, steps) * (move->bytes / 128 * 128) : 0;
	if (move->threads > 1)
		bench_parallel(move->threads, move_part, move);
	else
		move_part(move, 0);
}

/* Enough bytes for two threads to be faster than one. */
#define PARALLEL_BYTES (1 << 20)

static void add_move(struct bench_case *bench_case, enum kind kind, int32_t threads, int64_t bytes)
{
	struct move *move = &moves[move_count++ % CONTENDERS_MAX];
	memset(move, 0, sizeof *move);
	move->kind = kind;
	move->threads = threads < 64 ? threads : 64;
	move->bytes = bytes < 128 ? 128 : bytes / 128 * 128;
	bench_add(bench_case, NULL, ROLE_CEILING, move_call, move, bytes);
}

static void add_moves(
        const struct bench *bench, struct bench_case *bench_case, enum kind kind, int64_t bytes)
{
	make_arenas(bench);
	if (bench_case->threads == 1 || bytes < 4 * PARALLEL_BYTES)
		add_move(bench_case, kind, 1, bytes);
	if (bench_case->threads > 1 && bytes >= PARALLEL_BYTES)
		add_move(bench_case, kind, bench_case->threads, bytes);
}

void bench_add_copies(const struct bench *bench, struct bench_case *bench_case, int64_t bytes)
{
	add_moves(bench, bench_case, KIND_MEMCPY, bytes / 2);
	add_moves(bench, bench_case, KIND_STREAM, bytes / 2);
}

void bench_add_reads(const struct bench *bench, struct bench_case *bench_case, int64_t bytes)
{
	add_moves(bench, bench_case, KIND_READ, bytes);
}

/* ---- the ceilings of the machine ---- */

static double rate(struct move *move, int cold, double seconds)
{
	double best = 1e30, end = bench_now() + seconds;
	int64_t turn = 0;
	int rounds = 0;

	while (rounds < 5 || bench_now() < end) {
		double begin = bench_now();
		move_call(move, turn);
		double took = bench_now() - begin;
		turn += cold;
		rounds++;
		if (took < best)
			best = took;
	}
	return (double)move->bytes / best * 1e-9;
}

int bench_ceilings(const struct bench *bench, struct bench_ceiling ceilings[CEILINGS_MAX])
{
	static const char *const names[] = { "memcpy", "copy-nt", "read" };
	int count = 0;

	make_arenas(bench);
	for (int kind = 0; kind < 3; kind++)
		for (int32_t threads = 1; threads <= 2; threads++)
			for (int cold = 1; cold >= 0; cold--) {
				struct move move = { (enum kind)kind, threads, 0, 0, { 0 } };
				struct bench_ceiling *out = &ceilings[count++];
				move.bytes = cold ? arena_bytes / 4 / 128 * 128 : 256 * 1024;
				double gb_s = rate(&move, cold, bench->settings.case_seconds / 3);
				if (!out->name || gb_s > out->gb_s)
					out->gb_s = gb_s;
				out->name = names[kind];
				out->threads = threads;
				out->cold = cold;
			}
	return count;
}

double bench_ceiling_best(
        const struct bench_ceiling *ceilings, int count, int copies, int32_t threads)
{
	double best = 0;
	for (int i = 0; i < count; i++)
		if (ceilings[i].cold && ceilings[i].threads == threads &&
		        (strcmp(ceilings[i].name, "read") != 0) == copies &&
		        ceilings[i].gb_s > best)
			best = ceilings[i].gb_s;
	return best;
}
