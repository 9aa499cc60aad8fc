/* What side_read.c opens and side_match.c matches with. */
#ifndef KVCANARY_SNAPSHOT_SIDE_PARTS_H
#define KVCANARY_SNAPSHOT_SIDE_PARTS_H

#include "snapshot/safetensors.h"
#include "snapshot/side.h"

/* A file that the side file has stamps of. */
struct stamped_file {
	const char *path;
	int64_t number;
};

struct side {
	char *path;
	struct saved_file *file;
	struct safetensors *container;
	struct stamped_file *files; /* by path */
	int64_t file_count;
};

/* The number of a file's stamp, by its path, else by its name; -1: none, -2: several of this name. */
int64_t side_find_file(const struct side *side, const char *path);

/* The last part of a path. */
const char *side_base_name(const char *path);

#endif
