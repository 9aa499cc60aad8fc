/* kvcanary cpu: which kernels there are, which this machine can run, and which do run. */
#include "cli.h"

#include <getopt.h>
#include <string.h>

static const char cpu_help[] =
        "usage: kvcanary cpu [--json]\n\n"
        "List the CPU variants of this build, which of them this machine can run, which one was\n"
        "chosen, and which kernel does each operation. All variants store the same bytes.\n"
        "KVC_CPU=NAME in the environment forces one.\n\n"
        "  --json    print one JSON object\n"
        "  --help    this text\n\n"
        "exit code: 0, or 2 if KVC_CPU names a variant that this machine cannot run\n"
        "example:   KVC_CPU=portable kvcanary cpu\n";

/* The lists cannot fail; names are plain words, so JSON needs no escapes. */
static void print_variants_json(const char *chosen)
{
	const char *quote = chosen ? "\"" : "";

	printf("{\"chosen\": %s%s%s, \"variants\": [", quote, chosen ? chosen : "null", quote);
	for (size_t i = 0; i < kvc_cpu_variant_count(); i++) {
		kvc_cpu_variant variant = kvc_cpu_variant_at(i);
		printf("%s{\"name\": \"%s\", \"supported\": %s, \"chosen\": %s, \"kernels\": {",
		        i ? ", " : "", variant.name, variant.supported ? "true" : "false",
		        variant.chosen ? "true" : "false");
		for (size_t k = 0; kvc_cpu_operation_at(k); k++)
			printf("%s\"%s\": \"%s\"", k ? ", " : "", kvc_cpu_operation_at(k),
			        kvc_cpu_kernel_at(i, k));
		printf("}}");
	}
	printf("]}\n");
}

static void print_variants(void)
{
	size_t count = kvc_cpu_variant_count();

	printf("%-10s %s\n", "variant", "this machine");
	for (size_t i = 0; i < count; i++) {
		kvc_cpu_variant variant = kvc_cpu_variant_at(i);
		printf("%-10s %s%s\n", variant.name, variant.supported ? "can run it" : "cannot",
		        variant.chosen ? "; chosen" : "");
	}
	printf("\n%-18s", "kernels");
	for (size_t i = 0; i < count; i++)
		printf(" %-9s", kvc_cpu_variant_at(i).name);
	printf("\n");
	for (size_t k = 0; kvc_cpu_operation_at(k); k++) {
		printf("%-18s", kvc_cpu_operation_at(k));
		for (size_t i = 0; i < count; i++)
			printf(" %-9s", kvc_cpu_kernel_at(i, k));
		printf("\n");
	}
}

int cli_cpu(int argc, char **argv)
{
	static const struct option options[] = { { "json", no_argument, NULL, 'j' },
		{ "help", no_argument, NULL, 'h' }, { NULL, 0, NULL, 0 } };
	int json = 0;
	int option;
	size_t chosen;
	kvc_status status;

	while ((option = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
		switch (option) {
		case 'j':
			json = 1;
			break;
		case 'h':
			printf("%s", cpu_help);
			return CLI_GOOD;
		default:
			return cli_fail_option("kvcanary cpu", argv, option);
		}
	}
	status = kvc_cpu_chosen(&chosen);
	if (json)
		print_variants_json(status == KVC_OK ? kvc_cpu_variant_at(chosen).name : NULL);
	else
		print_variants();
	return status == KVC_OK ? CLI_GOOD : cli_fail_library();
}
