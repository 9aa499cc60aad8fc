/* Asserting that a call fails as the catalogue says: status, slug, message, place. */
#ifndef EXPECT_H
#define EXPECT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kvcanary.h"

static inline void expect_error_at(const char *file, int line, kvc_status got, kvc_status status,
        const char *slug, const char *message, int64_t where)
{
	const kvc_error *error = kvc_last_error();

	if (got != status)
		print_error("%s:%d: %s, expected %s (last error: %s)\n", file, line,
		        kvc_status_name(got), kvc_status_name(status), error->message);
	_assert_int_equal((unsigned long)got, (unsigned long)status, file, line);
	_assert_int_equal((unsigned long)error->status, (unsigned long)status, file, line);
	_assert_string_equal(error->slug, slug, file, line);
	if (message)
		_assert_string_equal(error->message, message, file, line);
	_assert_int_equal((unsigned long)error->where, (unsigned long)where, file, line);
}

/* 'call' fails with this status, slug, message (NULL: any) and place. */
#define expect_error(call, status, slug, message, where)                                           \
	expect_error_at(__FILE__, __LINE__, (call), (status), (slug), (message), (where))

static inline void expect_ok_at(const char *file, int line, kvc_status got)
{
	if (got != KVC_OK)
		print_error("%s:%d: %s: %s\n", file, line, kvc_last_error()->slug,
		        kvc_last_error()->message);
	_assert_int_equal((unsigned long)got, KVC_OK, file, line);
}

#define expect_ok(call) expect_ok_at(__FILE__, __LINE__, (call))

#endif
