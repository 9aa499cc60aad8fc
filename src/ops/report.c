/* kvc_report_init(): an empty report. */
#include "base/tensor.h"
#include "cuda/cuda.h"

#include <string.h>

kvc_status kvc_report_init(kvc_report *out, kvc_device device, void *stream)
{
	const struct kvc__cuda_ops *cuda;

	if (!out)
		return kvc__fail_null_argument(-1, "out");
	if (kvc__is_cuda(device)) {
		KVC__TRY(kvc__cuda_find(&cuda, device, "out"));
		KVC__TRY(kvc__cuda_check_pointer(out, "out"));
		return cuda->report_init(out, stream);
	}
	KVC__TRY(kvc__check_device(device, "out"));
	memset(out, 0, sizeof *out);
	for (int reason = 0; reason < KVC_REPORT_REASON_COUNT; reason++)
		out->first[reason] = -1;
	return KVC_OK;
}
