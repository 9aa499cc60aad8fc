/* Any line: parsing stays inside it, and what was parsed prints as a line that parses alike. */
#include "kvcanary.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t data_bytes);

static void check_round_trip(const kvc_violation *violation)
{
	char text[4096];
	kvc_violation again;

	if (kvc_violation_text(text, sizeof text, violation, KVC_RULES_OWN, NULL) == 0)
		abort();
	if (!kvc_violation_parse(&again, text))
		abort();
	if (again.slot != violation->slot || again.position != violation->position ||
	        again.stored_chain != violation->stored_chain ||
	        again.expected_aux != violation->expected_aux)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t data_bytes)
{
	kvc_violation violation;
	char *line = malloc(data_bytes + 1);

	if (!line)
		abort();
	memcpy(line, data, data_bytes);
	line[data_bytes] = '\0';
	if (kvc_violation_parse(&violation, line))
		check_round_trip(&violation);
	free(line);
	return 0;
}
