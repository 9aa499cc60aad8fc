/* What a guard has done, and what went longest without a check. */
#include "guard/guard.h"

#include <string.h>

#include "base/tensor.h"

/* The stamped slot whose last stamp or check is the oldest; the first of them in order of groups
 * and slots. */
static void find_oldest(const kvc_guard *guard, kvc_guard_statistics *out)
{
	out->oldest_unchecked_steps = 0;
	out->oldest_unchecked_slot = -1;
	out->oldest_unchecked_group = -1;
	for (int32_t g = 0; g < guard->group_count; g++) {
		const struct kvc__guard_group *group = guard->groups[g];
		for (int64_t slot = 0; slot < group->group.record_count; slot++) {
			int64_t age = guard->last_step - (int64_t)group->seen[slot];
			if (group->seen[slot] == KVC__NEVER_SEEN ||
			        age <= out->oldest_unchecked_steps)
				continue;
			out->oldest_unchecked_steps = age;
			out->oldest_unchecked_slot = slot;
			out->oldest_unchecked_group = g;
		}
	}
}

kvc_status kvc_guard_stats(const kvc_guard *guard, kvc_guard_statistics *out)
{
	kvc_guard_statistics now;
	size_t out_bytes;

	if (!guard)
		return kvc__fail_null_argument(-1, "guard");
	KVC__TRY(kvc__check_struct(out, sizeof(now), sizeof(now), "out"));
	out_bytes = out->struct_bytes;
	now = guard->statistics;
	for (int32_t g = 0; g < guard->group_count; g++)
		if (guard->groups[g]->group.coverage != KVC_COVERAGE_NONE)
			now.sources += guard->groups[g]->group.source_count;
	now.violations = guard->counters.violations;
	now.violations_dropped = guard->counters.dropped;
	now.memory_bytes = (size_t)guard->memory_bytes;
	find_oldest(guard, &now);
	now.struct_bytes = out_bytes;
	memcpy(out, &now, sizeof(now));
	return KVC_OK;
}
