/* The version of the library. */
#include "kvcanary.h"

#define TEXT_OF(x) #x
#define VERSION(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)

const char *kvc_version(void)
{
	return VERSION(KVC_VERSION_MAJOR, KVC_VERSION_MINOR, KVC_VERSION_PATCH);
}
