/* What somebody else's program does with an installed kvcanary: the header, one call, one error. */
#include <kvcanary.h>

#include <stdio.h>
#include <string.h>

int main(void)
{
	char version[32];
	snprintf(version, sizeof version, "%d.%d.%d", KVC_VERSION_MAJOR, KVC_VERSION_MINOR,
	        KVC_VERSION_PATCH);
	if (strcmp(version, kvc_version()) != 0)
		return 1;
	if (kvc_scatter_req_token_ids(NULL, NULL) != KVC_E_INVALID_ARGUMENT)
		return 1;
	printf("kvcanary %s: %s\n", kvc_version(), kvc_last_error()->slug);
	return 0;
}
