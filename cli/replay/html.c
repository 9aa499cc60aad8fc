/* The page of 'kvcanary replay --html': report.html, which the build embeds, with the run's data. */
#include "page.h"
#include "replay/html_data.h"

/* report.html, by cmake/embed.cmake. */
extern const unsigned char replay_page[];
extern const size_t replay_page_bytes;

static struct page page_of_replay(void)
{
	return (struct page){ replay_page, replay_page_bytes };
}

int replay_html_write(FILE *out, const struct replay_result *result)
{
	json_t *data = replay_page_data(result);
	int failed = page_write(out, page_of_replay(), data);

	json_decref(data);
	return failed;
}

int replay_html_save(const char *path, const struct replay_result *result)
{
	json_t *data = replay_page_data(result);
	int code = page_save(path, page_of_replay(), data);

	json_decref(data);
	return code;
}

int replay_html_check(const char *path)
{
	return page_check(path);
}
