/* kvc_report_init(): an empty report. */
#include "base/tensor.h"

#include <string.h>

kvc_status kvc_report_init(kvc_report *out, kvc_device device, void *stream)
{
	(void)stream;
	if (!out)
		return kvc__fail_null_argument(-1, "out");
	KVC__TRY(kvc__check_device(device, "out"));
	memset(out, 0, sizeof *out);
	for (int reason = 0; reason < KVC_REPORT_REASON_COUNT; reason++)
		out->first[reason] = -1;
	return KVC_OK;
}
