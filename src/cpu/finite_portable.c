/*
 * Looking for NaN and infinity in KV bytes, on the bit patterns: exponent all ones. Integers have
 * neither, and are not looked at; float8_e4m3fn has no infinity, and one NaN of each sign.
 */
#include <string.h>

#include "cpu/dispatch.h"
#include "cpu/fingerprint.h"

/* Bits that are all set in a value that is not finite, and the bytes of an element; 0 bytes if the
 * type has no such values. */
struct kind {
	int64_t bytes;
	uint64_t mask;
};

static struct kind kind_of(kvc_dtype dtype)
{
	static const struct {
		uint8_t code, bits;
		struct kind kind;
	} kinds[] = {
		{ KVC_CODE_FLOAT, 64, { 8, 0x7FF0000000000000u } },
		{ KVC_CODE_FLOAT, 32, { 4, 0x7F800000u } },
		{ KVC_CODE_FLOAT, 16, { 2, 0x7C00u } },
		{ KVC_CODE_BFLOAT, 16, { 2, 0x7F80u } },
		{ KVC_CODE_FLOAT8_E4M3FN, 8, { 1, 0x7Fu } },
		{ KVC_CODE_FLOAT8_E5M2, 8, { 1, 0x7Cu } },
	};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (kinds[i].code == dtype.code && kinds[i].bits == dtype.bits && dtype.lanes == 1)
			return kinds[i].kind;
	return (struct kind){ 0, 0 };
}

static uint64_t element_at(const uint8_t *bytes, int64_t width)
{
	uint64_t value64;
	uint32_t value32;
	uint16_t value16;

	switch (width) {
	case 8:
		memcpy(&value64, bytes, sizeof(value64));
		return value64;
	case 4:
		memcpy(&value32, bytes, sizeof(value32));
		return value32;
	case 2:
		memcpy(&value16, bytes, sizeof(value16));
		return value16;
	default:
		return *bytes;
	}
}

int64_t kvc__nonfinite_portable(const kvc_source *source, int64_t slot, int64_t *first_out)
{
	struct kind kind = kind_of(source->dtype);
	uint8_t buffer[KVC__GATHER_BYTES]; /* holds whole elements of every width */
	int64_t found = 0;

	if (kind.bytes == 0)
		return 0;
	int64_t last = source->read_bytes - source->read_bytes % kind.bytes;
	for (int64_t at = 0; at < last; at += KVC__GATHER_BYTES) {
		int64_t count = last - at < KVC__GATHER_BYTES ? last - at : KVC__GATHER_BYTES;
		kvc__source_copy(source, slot, at, count, buffer);
		for (int64_t i = 0; i < count; i += kind.bytes) {
			uint64_t value = element_at(buffer + i, kind.bytes);
			if ((value & kind.mask) != kind.mask)
				continue;
			if (found == 0)
				*first_out = at + i;
			found++;
		}
	}
	return found;
}

/* The masks of a type repeated over a word: cpu/kernels.h. */
static struct kvc__finite_masks masks_of(struct kind kind)
{
	uint64_t lanes = kind.bytes == 8 ? 1 : UINT64_MAX / ((UINT64_C(1) << 8 * kind.bytes) - 1);
	uint64_t lowest = kind.mask & (~kind.mask + 1);

	return (struct kvc__finite_masks){ kind.mask * lanes, lowest * lanes,
		(kind.mask + lowest) * lanes };
}

int kvc__source_nonfinite(
        const struct kvc__cpu_variant *cpu, const kvc_source *source, int64_t slot, int64_t next)
{
	struct kind kind = kind_of(source->dtype);
	uint8_t buffer[KVC__GATHER_BYTES];
	int64_t first;

	if (kind.bytes == 0)
		return 0;
	struct kvc__finite_masks masks = masks_of(kind);
	if (source->read_bytes % 8 != 0) /* a tail: element by element */
		return kvc__nonfinite_portable(source, slot, &first) > 0;
	if (kvc__source_together(source))
		return cpu->nonfinite(kvc__source_slot(source, slot),
		               kvc__source_slot(source, next), source->read_bytes, &masks) != 0;
	for (int64_t at = 0; at < source->read_bytes; at += KVC__GATHER_BYTES) {
		int64_t left = source->read_bytes - at;
		int64_t count = left < KVC__GATHER_BYTES ? left : KVC__GATHER_BYTES;
		kvc__source_copy(source, slot, at, count, buffer);
		if (cpu->nonfinite(buffer, buffer, count, &masks))
			return 1;
	}
	return 0;
}

int kvc__slot_nonfinite(
        const struct kvc__cpu_variant *cpu, const kvc_group *group, int64_t slot, int64_t next)
{
	for (int64_t i = 0; i < group->source_count; i++)
		if (kvc__source_nonfinite(cpu, &group->sources[i], slot, next))
			return 1;
	return 0;
}
