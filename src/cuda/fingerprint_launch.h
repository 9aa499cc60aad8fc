/* The fingerprint kernels as a write uses them, too. */
#ifndef KVC__CUDA_FINGERPRINT_LAUNCH_H
#define KVC__CUDA_FINGERPRINT_LAUNCH_H

#include "cuda/fingerprint_params.h"

kvc_status kvc__cuda_launch_fingerprints(const struct kvc__fingerprint_params *p, void *stream);

#endif
