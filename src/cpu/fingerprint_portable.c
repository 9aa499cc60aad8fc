/*
 * Fingerprints in portable C: the specification that every other back end must agree with.
 *
 * Two algorithms. splitmix is SGLang's: a fold of splitmix64 over the 8-byte little-endian words of
 * each source, sources in order. xxh3 is ours: the XXH3 of each source's bytes, mixed with the
 * source's id, summed up; a sum, so that rope_pool_fused can add each layer's share as it writes.
 *
 * Both are defined on the bytes of a slot in (head, dim) order. Where these lie together they are
 * hashed in place; else they are gathered into a small buffer on the stack, piece by piece.
 */
#include "cpu/fingerprint.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "cpu/hash.h"

/* Below this a worker thread costs more than it saves. */
#define BYTES_PER_TASK 65536

static int64_t smaller(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static void copy_units(
        const kvc_source *source, int64_t slot, int64_t first, int64_t count, uint8_t *out)
{
	const uint8_t *row = kvc__source_row(source, slot);
	int64_t units = source->head_count * source->head_bytes / source->unit_bytes;
	const int32_t *offsets = source->gather + slot % source->page_size * units;

	while (count > 0) {
		int64_t skipped = first % source->unit_bytes;
		int64_t taken = smaller(source->unit_bytes - skipped, count);
		memcpy(out, row + offsets[first / source->unit_bytes] + skipped, (size_t)taken);
		first += taken;
		count -= taken;
		out += taken;
	}
}

void kvc__source_copy(
        const kvc_source *source, int64_t slot, int64_t first, int64_t count, uint8_t *out)
{
	if (source->gather) {
		copy_units(source, slot, first, count, out);
		return;
	}
	const uint8_t *bytes = kvc__source_slot(source, slot);
	while (count > 0) {
		int64_t skipped = first % source->head_bytes;
		int64_t taken = smaller(source->head_bytes - skipped, count);
		int64_t head = first / source->head_bytes;
		memcpy(out, bytes + head * source->head_stride_bytes + skipped, (size_t)taken);
		first += taken;
		count -= taken;
		out += taken;
	}
}

/* ---- splitmix ---- */

static uint64_t word_at(const uint8_t *bytes, int64_t count)
{
	uint8_t padded[8] = { 0 };
	uint64_t word = 0;

	memcpy(padded, bytes, (size_t)smaller(count, 8));
	for (int i = 7; i >= 0; i--)
		word = word << 8 | padded[i];
	return word;
}

static uint64_t fold_words(uint64_t fold, const uint8_t *bytes, int64_t count)
{
	for (int64_t at = 0; at < count; at += 8)
		fold = kvc__splitmix64(fold ^ word_at(bytes + at, count - at));
	return fold;
}

static uint64_t fold_source(const kvc_source *source, int64_t slot, int64_t count)
{
	uint8_t buffer[KVC__GATHER_BYTES]; /* whole words, so that none is split between pieces */
	uint64_t fold = 0;

	if (kvc__source_together(source))
		return fold_words(0, kvc__source_slot(source, slot), count);
	for (int64_t at = 0; at < count; at += KVC__GATHER_BYTES) {
		int64_t taken = smaller(KVC__GATHER_BYTES, count - at);
		kvc__source_copy(source, slot, at, taken, buffer);
		fold = fold_words(fold, buffer, taken);
	}
	return fold;
}

int64_t kvc__splitmix_bytes(const kvc_source *source, int32_t coverage)
{
	return coverage == KVC_COVERAGE_PARTIAL ? smaller(KVC__PARTIAL_BYTES, source->read_bytes)
	                                        : source->read_bytes;
}

static uint64_t splitmix_of(const kvc_group *group, int64_t slot)
{
	uint64_t all = 0;

	for (int64_t i = 0; i < group->source_count; i++) {
		const kvc_source *source = &group->sources[i];
		int64_t count = kvc__splitmix_bytes(source, group->coverage);
		all = kvc__splitmix64(all ^ fold_source(source, slot, count));
	}
	return all;
}

/* ---- xxh3 ---- */

/* Bytes that collect until they are hashed: in one go if they fit, else as a stream. */
struct stream {
	XXH3_state_t state;
	int64_t used;
	int streaming;
	uint8_t buffer[KVC__GATHER_BYTES];
};

static void stream_flush(struct stream *stream)
{
	if (!stream->streaming)
		XXH3_64bits_reset(&stream->state);
	stream->streaming = 1;
	XXH3_64bits_update(&stream->state, stream->buffer, (size_t)stream->used);
	stream->used = 0;
}

static void stream_add(
        struct stream *stream, const kvc_source *source, int64_t slot, int64_t first, int64_t count)
{
	while (count > 0) {
		if (stream->used == KVC__GATHER_BYTES)
			stream_flush(stream);
		int64_t taken = smaller(KVC__GATHER_BYTES - stream->used, count);
		kvc__source_copy(source, slot, first, taken, stream->buffer + stream->used);
		stream->used += taken;
		first += taken;
		count -= taken;
	}
}

static uint64_t stream_end(struct stream *stream)
{
	if (!stream->streaming)
		return XXH3_64bits(stream->buffer, (size_t)stream->used);
	stream_flush(stream);
	return XXH3_64bits_digest(&stream->state);
}

/* Heads that start inside read_bytes, and what partial coverage takes of each. */
static int64_t heads_read(const kvc_source *source)
{
	return (source->read_bytes + source->head_bytes - 1) / source->head_bytes;
}

int64_t kvc__xxh3_bytes(const kvc_source *source, int32_t coverage)
{
	return coverage == KVC_COVERAGE_PARTIAL
	               ? heads_read(source) * smaller(KVC__PARTIAL_BYTES, source->head_bytes)
	               : source->read_bytes;
}

void kvc__xxh3_gather(const kvc_source *source, int64_t slot, int32_t coverage, uint8_t *out)
{
	if (coverage == KVC_COVERAGE_ALL) {
		kvc__source_copy(source, slot, 0, source->read_bytes, out);
		return;
	}
	int64_t taken = smaller(KVC__PARTIAL_BYTES, source->head_bytes);
	for (int64_t head = 0; head < heads_read(source); head++) {
		if (source->gather) {
			kvc__source_copy(source, slot, head * source->head_bytes, taken, out);
		} else {
			const uint8_t *from =
			        kvc__source_slot(source, slot) + head * source->head_stride_bytes;
			if (taken == KVC__PARTIAL_BYTES)
				memcpy(out, from, KVC__PARTIAL_BYTES);
			else
				memcpy(out, from, (size_t)taken);
		}
		out += taken;
	}
}

static uint64_t xxh3_gathered(const kvc_source *source, int64_t slot, int32_t coverage)
{
	struct stream stream;

	stream.used = 0;
	stream.streaming = 0;
	if (coverage == KVC_COVERAGE_ALL) {
		stream_add(&stream, source, slot, 0, source->read_bytes);
		return stream_end(&stream);
	}
	int64_t taken = smaller(KVC__PARTIAL_BYTES, source->head_bytes);
	for (int64_t head = 0; head < heads_read(source); head++)
		stream_add(&stream, source, slot, head * source->head_bytes, taken);
	return stream_end(&stream);
}

static uint64_t xxh3_of_source(const kvc_source *source, int64_t slot, int32_t coverage)
{
	if (!kvc__xxh3_together(source, coverage))
		return xxh3_gathered(source, slot, coverage);
	return XXH3_64bits(
	        kvc__source_slot(source, slot), (size_t)kvc__xxh3_bytes(source, coverage));
}

static uint64_t xxh3_of(const kvc_group *group, int64_t slot)
{
	uint64_t sum = 0;

	for (int64_t i = 0; i < group->source_count; i++) {
		const kvc_source *source = &group->sources[i];
		uint64_t hash = xxh3_of_source(source, slot, group->coverage);
		sum += kvc__fingerprint_share(hash, source->id);
	}
	return sum;
}

/* ---- of a group ---- */

uint64_t kvc__fingerprint_portable(const kvc_group *group, int64_t slot)
{
	if (group->coverage == KVC_COVERAGE_NONE)
		return 0;
	if (group->fingerprint == KVC_FINGERPRINT_SPLITMIX)
		return splitmix_of(group, slot);
	return xxh3_of(group, slot);
}

int64_t kvc__fingerprint_bytes(const kvc_group *group)
{
	int64_t bytes = 0;

	if (group->coverage == KVC_COVERAGE_NONE)
		return 0;
	for (int64_t i = 0; i < group->source_count; i++)
		bytes += group->fingerprint == KVC_FINGERPRINT_SPLITMIX
		                 ? kvc__splitmix_bytes(&group->sources[i], group->coverage)
		                 : kvc__xxh3_bytes(&group->sources[i], group->coverage);
	return bytes;
}

int64_t kvc__fingerprint_grain(const kvc_group *group)
{
	/* A slot costs something even where few bytes are covered: its cache lines are cold. */
	int64_t slot_bytes = kvc__fingerprint_bytes(group) + 64 * (group->source_count + 1);

	return slot_bytes >= BYTES_PER_TASK ? 1 : BYTES_PER_TASK / slot_bytes;
}
