/* kvcanary cuda: what the kernels were built for, the driver, and the devices of this machine. */
#include "cli.h"

#include <getopt.h>

/* No host has more. */
#define DEVICES_MAX 64

static const char cuda_help[] =
        "usage: kvcanary cuda [--json]\n\n"
        "Say what the CUDA kernels of this build were made for, which driver there is, and which\n"
        "devices it finds.\n\n"
        "  --json    print one JSON object\n"
        "  --help    this text\n\n"
        "exit code: 0, or 2 if no device can be used; the reason goes to stderr\n"
        "example:   kvcanary cuda --json\n";

struct devices {
	kvc_cuda_device at[DEVICES_MAX];
	size_t count;
	int32_t driver; /* 12040 is 12.4; 0: none */
};

static void print_json_text(const char *text)
{
	for (; *text; text++)
		printf(*text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
}

static void print_devices_json(const struct devices *devices)
{
	printf("{\"built_for\": \"%s\", \"driver\": ", kvc_cuda_architectures());
	if (devices->driver)
		printf("\"%d.%d\"", devices->driver / 1000, devices->driver % 1000 / 10);
	else
		printf("null");
	printf(", \"devices\": [");
	for (size_t i = 0; i < devices->count; i++) {
		const kvc_cuda_device *device = &devices->at[i];
		printf("%s{\"ordinal\": %zu, \"name\": \"", i ? ", " : "", i);
		print_json_text(device->name);
		printf("\", \"compute\": \"%d.%d\", \"multiprocessors\": %d, \"memory_bytes\": "
		       "%lld, "
		       "\"supported\": %s}",
		        device->compute_major, device->compute_minor, device->multiprocessors,
		        (long long)device->memory_bytes, device->supported ? "true" : "false");
	}
	printf("]}\n");
}

static void print_devices(const struct devices *devices)
{
	const char *built_for = kvc_cuda_architectures();

	printf("kernels built for  %s\n",
	        built_for[0] ? built_for : "nothing: a build without CUDA");
	if (devices->driver)
		printf("driver             CUDA %d.%d\n", devices->driver / 1000,
		        devices->driver % 1000 / 10);
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
	static const struct option options[] = { { "json", no_argument, NULL, 'j' },
		{ "help", no_argument, NULL, 'h' }, { NULL, 0, NULL, 0 } };
	static struct devices devices;
	int json = 0;
	int option;
	kvc_status status;

	while ((option = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
		switch (option) {
		case 'j':
			json = 1;
			break;
		case 'h':
			printf("%s", cuda_help);
			return CLI_GOOD;
		default:
			return cli_fail_option("kvcanary cuda", argv, option);
		}
	}
	status = kvc_cuda_devices(devices.at, DEVICES_MAX, &devices.count, &devices.driver);
	if (devices.count > DEVICES_MAX)
		devices.count = DEVICES_MAX;
	if (json)
		print_devices_json(&devices);
	else
		print_devices(&devices);
	return status == KVC_OK ? CLI_GOOD : cli_fail_library();
}
