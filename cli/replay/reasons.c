/* Reason bits as text, for the table, the JSON object and the HTML page. */
#include "replay/result.h"

#include <string.h>

const char *replay_reasons_text(char out[REPLAY_REASONS_BYTES], int64_t reasons)
{
	size_t used = 0;
	out[0] = '\0';
	for (int bit = 0; bit < KVC_REASON_COUNT; bit++) {
		if (!(reasons >> bit & 1))
			continue;
		const char *name = kvc_reason_name((int64_t)1 << bit);
		int length = snprintf(out + used, REPLAY_REASONS_BYTES - used, "%s%s",
		        used ? "+" : "", name ? name : "?");
		if (length < 0 || (size_t)length >= REPLAY_REASONS_BYTES - used)
			break;
		used += (size_t)length;
	}
	if (!used)
		memcpy(out, "none", 5);
	return out;
}
