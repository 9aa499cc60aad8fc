/* The last error of each thread, and the names of the statuses. Nothing here allocates. */
#include "base/error.h"

static _Thread_local kvc_error last_error = { .slug = "ok", .where = -1 };

const kvc_error *kvc_last_error(void)
{
	return &last_error;
}

void kvc__error_start(kvc_error *error, kvc_status status, const char *slug, int64_t where)
{
	error->status = status;
	error->slug = slug;
	error->where = where;
	error->message[0] = '\0';
	error->hint[0] = '\0';
}

kvc_status kvc__error_store(const kvc_error *error)
{
	last_error = *error;
	return error->status;
}

/* No default: the compiler then says which status is missing. */
const char *kvc_status_name(kvc_status status)
{
	switch (status) {
	case KVC_OK:
		return "KVC_OK";
	case KVC_E_INVALID_ARGUMENT:
		return "KVC_E_INVALID_ARGUMENT";
	case KVC_E_SHAPE:
		return "KVC_E_SHAPE";
	case KVC_E_DTYPE:
		return "KVC_E_DTYPE";
	case KVC_E_DEVICE:
		return "KVC_E_DEVICE";
	case KVC_E_STRIDE:
		return "KVC_E_STRIDE";
	case KVC_E_OVERLAP:
		return "KVC_E_OVERLAP";
	case KVC_E_LENGTH:
		return "KVC_E_LENGTH";
	case KVC_E_CONFIG:
		return "KVC_E_CONFIG";
	case KVC_E_SLOT_RANGE:
		return "KVC_E_SLOT_RANGE";
	case KVC_E_SLOT_DUPLICATE:
		return "KVC_E_SLOT_DUPLICATE";
	case KVC_E_POSITION_RANGE:
		return "KVC_E_POSITION_RANGE";
	case KVC_E_TOKEN_RANGE:
		return "KVC_E_TOKEN_RANGE";
	case KVC_E_ROW_RANGE:
		return "KVC_E_ROW_RANGE";
	case KVC_E_ROW_DUPLICATE:
		return "KVC_E_ROW_DUPLICATE";
	case KVC_E_NONFINITE:
		return "KVC_E_NONFINITE";
	case KVC_E_NO_CUDA:
		return "KVC_E_NO_CUDA";
	case KVC_E_NO_MEMORY:
		return "KVC_E_NO_MEMORY";
	case KVC_E_STATE:
		return "KVC_E_STATE";
	case KVC_E_CUDA:
		return "KVC_E_CUDA";
	}
	return "KVC_E_?";
}
