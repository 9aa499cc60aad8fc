/* The table that generate.py makes from the entries, sorted by slug. */
#ifndef KVC__CATALOG_H
#define KVC__CATALOG_H

#include "kvcanary.h"

struct kvc__catalog_row {
	/* A letter per placeholder of the message: d integer, s text, g real number, x hexadecimal,
	 * h shape, t dtype. */
	const char *types;
	kvc_catalog_entry entry;
};

extern const struct kvc__catalog_row kvc__catalog_rows[];
extern const size_t kvc__catalog_row_count;

#endif
