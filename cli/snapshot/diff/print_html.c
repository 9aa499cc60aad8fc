/* The page of kvcanary diff --html: report_diff.html with the result and its map as data. */
#include "page.h"
#include "snapshot/diff/print.h"

/* report_diff.html, by cmake/embed.cmake. */
extern const unsigned char diff_page[];
extern const size_t diff_page_bytes;

int diff_save_html(const char *path, const struct diff_result *result)
{
	json_t *data = diff_object(result);
	int code = page_save(path, (struct page){ diff_page, diff_page_bytes }, data);

	json_decref(data);
	return code;
}
