/* kvcanary cpu: which kernels there are, which this machine can run, and which do run. */
#include "cli.h"
#include "json_line.h"

static const struct cli_manual manual = {
	"cpu",
	"[OPTION]...",
	"List the CPU variants of this build, which of them this machine can run, which one was\n"
	"chosen, and which kernel does each operation. All variants store the same bytes.\n"
	"KVC_CPU=NAME in the environment forces one.",
	cli_json_options,
	NULL,
	"0, or 2 if KVC_CPU names a variant that this machine cannot run",
	"KVC_CPU=portable kvcanary cpu",
};

static json_t *variant_object(size_t index)
{
	kvc_cpu_variant variant = kvc_cpu_variant_at(index);
	json_t *kernels = json_object();

	for (size_t k = 0; kvc_cpu_operation_at(k); k++)
		json_object_set_new(
		        kernels, kvc_cpu_operation_at(k), json_string(kvc_cpu_kernel_at(index, k)));
	return json_pack("{s:s, s:b, s:b, s:o}", "name", variant.name, "supported",
	        variant.supported != 0, "chosen", variant.chosen != 0, "kernels", kernels);
}

static void print_variants_json(const char *chosen)
{
	json_t *variants = json_array();

	for (size_t i = 0; i < kvc_cpu_variant_count(); i++)
		json_array_append_new(variants, variant_object(i));
	cli_write_json(stdout, json_pack("{s:s?, s:o}", "chosen", chosen, "variants", variants), 0);
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
	bool json;
	int code;
	size_t chosen;
	kvc_status status;

	if (!cli_read_json_options(&manual, argc, argv, &json, &code))
		return code;
	status = kvc_cpu_chosen(&chosen);
	if (json)
		print_variants_json(status == KVC_OK ? kvc_cpu_variant_at(chosen).name : NULL);
	else
		print_variants();
	return status == KVC_OK ? CLI_GOOD : cli_fail_library();
}
