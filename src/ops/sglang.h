/*
 * SGLang's interface (section 12 of kvcanary.h): what its files share. Texts that are SGLang's own
 * come from the entries sglang-*; what SGLang does not look at is checked like any other call.
 */
#ifndef KVC__SGLANG_H
#define KVC__SGLANG_H

#include "base/tensor.h"

/* torch's is_contiguous(): row-major without gaps; strides of single entries do not count. */
int kvc__sglang_is_contiguous(const kvc_tensor *tensor);

/* Each contiguous, in this order; the text names the first that is not. A NULL tensor passes. */
kvc_status kvc__sglang_check_contiguous(const struct kvc__named *list, size_t count);

/* Every tensor there, null-argument otherwise; with shapes that can be read. */
kvc_status kvc__sglang_check_all_present(const struct kvc__named *list, size_t count);

/*
 * 'out' and *count_out from the context's sources, for kvc_group; *slot_limit_out is the number of
 * slots that all of them have. None if the mode covers nothing.
 */
kvc_status kvc__sglang_take_sources(kvc_source out[KVC_SGLANG_SOURCES_MAX], int64_t *count_out,
        int64_t *slot_limit_out, const kvc_sglang_context *context);

#endif
