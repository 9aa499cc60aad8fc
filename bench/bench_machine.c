/* What the figures were measured on: they mean nothing without it. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#ifndef KVC_BENCH_BUILD
#define KVC_BENCH_BUILD "unknown"
#endif

/* The value of the first line of /proc/cpuinfo that begins with 'key'. */
static void read_cpu_name(char *out, size_t out_bytes)
{
	char line[256];
	FILE *file = fopen("/proc/cpuinfo", "r");

	(void)snprintf(out, out_bytes, "unknown");
	while (file && fgets(line, sizeof line, file)) {
		char *colon = strchr(line, ':');
		if (!colon ||
		        (strncmp(line, "model name", 10) != 0 && strncmp(line, "CPU part", 8) != 0))
			continue;
		colon[strcspn(colon, "\n")] = '\0';
		(void)snprintf(out, out_bytes, "%s", colon + 1 + strspn(colon + 1, " \t"));
		break;
	}
	if (file)
		(void)fclose(file);
}

/* Of the last level that the system knows; 32 MiB if it does not say. */
static int64_t read_llc_bytes(void)
{
	int64_t largest = 0;
	for (int index = 0; index < 8; index++) {
		char path[96], unit = 'K';
		long long size = 0;
		(void)snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size",
		        index);
		FILE *file = fopen(path, "r");
		if (!file)
			break;
		if (fscanf(file, "%lld%c", &size, &unit) >= 1) {
			int64_t bytes = size * (unit == 'M' ? 1 << 20 : 1 << 10);
			largest = bytes > largest ? bytes : largest;
		}
		(void)fclose(file);
	}
	return largest > 0 ? largest : (int64_t)32 << 20;
}

void bench_machine_read(struct bench_machine *out)
{
	struct utsname system;
	time_t now = time(NULL);
	struct tm date;

	memset(out, 0, sizeof *out);
	read_cpu_name(out->cpu, sizeof out->cpu);
	if (uname(&system) == 0)
		(void)snprintf(out->system, sizeof out->system, "%.20s %.40s %.20s", system.sysname,
		        system.release, system.machine);
#if defined(__clang__)
	(void)snprintf(out->compiler, sizeof out->compiler, "clang %s", __clang_version__);
#else
	(void)snprintf(out->compiler, sizeof out->compiler, "gcc %s", __VERSION__);
#endif
	(void)snprintf(
	        out->build, sizeof out->build, "kvcanary %s, %s", kvc_version(), KVC_BENCH_BUILD);
	if (gmtime_r(&now, &date))
		(void)strftime(out->date, sizeof out->date, "%Y-%m-%dT%H:%M:%SZ", &date);
	out->cpus = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
	out->memory_bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
	out->llc_bytes = read_llc_bytes();
	if (getloadavg(&out->load, 1) != 1)
		out->load = -1;
}
