/*
 * The container: tensors by name in one file, and metadata strings. What the names mean is the
 * matter of the schemas (schema_*.c) and of the side file of 'stamp'.
 *
 * Everything the format's text demands is checked here, so that whoever uses a tensor need not: its
 * bytes lie inside the file, are as many as dtype and shape say, and belong to it alone. Beyond the
 * reference reader these are refused: white space before the header, a name or metadata key given
 * twice even with the same value, NUL in a name, more than SAFETENSORS_ENTRIES_MAX entries. The
 * header may have 100 MB; memory stays below twice that, whatever it holds.
 */
#ifndef KVCANARY_SNAPSHOT_SAFETENSORS_H
#define KVCANARY_SNAPSHOT_SAFETENSORS_H

#include "snapshot/file.h"

#define SAFETENSORS_HEADER_MAX 100000000
#define SAFETENSORS_ENTRIES_MAX (1 << 18) /* tensors, and metadata strings */
#define SAFETENSORS_RANK_MAX 6            /* dimensions that are kept */

enum safetensors_dtype {
	SAFETENSORS_BOOL,
	SAFETENSORS_F4,
	SAFETENSORS_F6_E2M3,
	SAFETENSORS_F6_E3M2,
	SAFETENSORS_U8,
	SAFETENSORS_I8,
	SAFETENSORS_F8_E5M2,
	SAFETENSORS_F8_E4M3,
	SAFETENSORS_F8_E8M0,
	SAFETENSORS_F8_E4M3FNUZ,
	SAFETENSORS_F8_E5M2FNUZ,
	SAFETENSORS_I16,
	SAFETENSORS_U16,
	SAFETENSORS_F16,
	SAFETENSORS_BF16,
	SAFETENSORS_I32,
	SAFETENSORS_U32,
	SAFETENSORS_F32,
	SAFETENSORS_C64,
	SAFETENSORS_F64,
	SAFETENSORS_I64,
	SAFETENSORS_U64,
	SAFETENSORS_DTYPE_COUNT
};

const char *safetensors_dtype_name(enum safetensors_dtype dtype); /* "BF16" */
unsigned safetensors_dtype_bits(enum safetensors_dtype dtype);    /* of one element */

struct safetensors_tensor {
	const char *name; /* unescaped UTF-8 */
	uint64_t offset;  /* first byte in the file */
	uint64_t bytes;
	uint64_t shape[SAFETENSORS_RANK_MAX]; /* of a higher rank only the first ones */
	uint32_t rank;
	enum safetensors_dtype dtype;
};

struct safetensors_pair {
	const char *key;
	const char *value;
};

struct safetensors {
	const struct saved_file *file;
	uint64_t data_offset; /* first byte behind the header */
	size_t tensor_count;
	const struct safetensors_tensor *tensors; /* sorted by name (strcmp) */
	size_t metadata_count;
	const struct safetensors_pair *metadata; /* sorted by key */
};

/* Reads and checks the header. 0 and *out, or -1 and *error. The file stays the caller's and must
 * outlive *out. */
int safetensors_open(
        struct safetensors **out, const struct saved_file *file, struct saved_error *error);
void safetensors_close(struct safetensors *container); /* NULL is fine */

/* NULL if there is none of this name. */
const struct safetensors_tensor *safetensors_find(
        const struct safetensors *container, const char *name);
const char *safetensors_metadata(const struct safetensors *container, const char *key);

/*
 * A tensor of integers (I32, U32, I64) as int64_t: elements first .. first + count - 1. 0, or -1 and
 * *error.
 */
int safetensors_read_integers(const struct safetensors *container,
        const struct safetensors_tensor *tensor, uint64_t first, size_t count, int64_t *out,
        struct saved_error *error);

#endif
