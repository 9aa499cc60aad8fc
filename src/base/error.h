/*
 * Failing. A function that finds bad input calls the kvc__fail_<slug>() of its catalogue entry and
 * returns what that returns; functions above pass the status on with KVC__TRY and add nothing.
 */
#ifndef KVC__ERROR_H
#define KVC__ERROR_H

#include "catalog_errors.h"
#include "kvcanary.h"

/* Leave the function with the status of 'expr' unless that is KVC_OK. */
#define KVC__TRY(expr)                                                                             \
	do {                                                                                       \
		kvc_status kvc__try_status = (expr);                                               \
		if (kvc__try_status != KVC_OK)                                                     \
			return kvc__try_status;                                                    \
	} while (0)

/* For the generated functions: an error without texts, built beside the stored one, because the
 * arguments of its texts may point into the stored one. */
void kvc__error_start(kvc_error *error, kvc_status status, const char *slug, int64_t where);

/* Make it this thread's last error; returns its status. */
kvc_status kvc__error_store(const kvc_error *error);

#endif
