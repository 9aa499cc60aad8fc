/* kvcanary cuda: what the kernels were built for, the driver, and the devices of this machine. */
#include "cli.h"
#include "json_line.h"

/* No host has more. */
#define DEVICES_MAX 64

static const struct cli_manual manual = {
	"cuda",
	"[OPTION]...",
	"Say what the CUDA kernels of this build were made for, which driver there is, and which\n"
	"devices it finds.",
	cli_json_options,
	NULL,
	"0, or 2 if no device can be used; the reason goes to stderr",
	"kvcanary cuda --json",
};

struct devices {
	kvc_cuda_device at[DEVICES_MAX];
	size_t count;
	int32_t driver; /* 12040 is 12.4; 0: none */
};

/* 12040 as "12.4". */
static const char *driver_text(char *out, size_t bytes, int32_t driver)
{
	snprintf(out, bytes, "%d.%d", driver / 1000, driver % 1000 / 10);
	return out;
}

static json_t *device_object(const kvc_cuda_device *device, size_t ordinal)
{
	char compute[32];

	snprintf(compute, sizeof(compute), "%d.%d", device->compute_major, device->compute_minor);
	return json_pack("{s:I, s:s, s:s, s:i, s:I, s:b}", "ordinal", (json_int_t)ordinal, "name",
	        device->name, "compute", compute, "multiprocessors", device->multiprocessors,
	        "memory_bytes", (json_int_t)device->memory_bytes, "supported",
	        device->supported != 0);
}

static void print_devices_json(const struct devices *devices)
{
	char driver[32];
	json_t *list = json_array(), *object;

	for (size_t i = 0; i < devices->count; i++)
		json_array_append_new(list, device_object(&devices->at[i], i));
	object = json_pack("{s:s, s:s?, s:o}", "built_for", kvc_cuda_architectures(), "driver",
	        devices->driver ? driver_text(driver, sizeof(driver), devices->driver) : NULL,
	        "devices", list);
	cli_write_json(stdout, object, 0);
}

static void print_devices(const struct devices *devices)
{
	const char *built_for = kvc_cuda_architectures();
	char driver[32];

	printf("kernels built for  %s\n",
	        built_for[0] ? built_for : "nothing: a build without CUDA");
	if (devices->driver)
		printf("driver             CUDA %s\n",
		        driver_text(driver, sizeof(driver), devices->driver));
	for (size_t i = 0; i < devices->count; i++) {
		const kvc_cuda_device *device = &devices->at[i];
		printf("device %-11zu %s, compute %d.%d, %d multiprocessors, %.1f GiB%s\n", i,
		        device->name, device->compute_major, device->compute_minor,
		        device->multiprocessors, (double)device->memory_bytes / (1 << 30),
		        device->supported ? "" : "; no kernels for it in this build");
	}
}

int cli_cuda(int argc, char **argv)
{
	static struct devices devices;
	bool json;
	int code;
	kvc_status status;

	if (!cli_read_json_options(&manual, argc, argv, &json, &code))
		return code;
	status = kvc_cuda_devices(devices.at, DEVICES_MAX, &devices.count, &devices.driver);
	if (devices.count > DEVICES_MAX)
		devices.count = DEVICES_MAX;
	if (json)
		print_devices_json(&devices);
	else
		print_devices(&devices);
	return status == KVC_OK ? CLI_GOOD : cli_fail_library();
}
