/* The result as a table for people and as JSON for scripts. */
#include "bench.h"

#include <string.h>

static void print_ns(FILE *out, double ns)
{
	if (ns < 1e4)
		fprintf(out, "%9.0f ns", ns);
	else if (ns < 1e7)
		fprintf(out, "%9.1f us", ns * 1e-3);
	else
		fprintf(out, "%9.2f ms", ns * 1e-6);
}

void bench_print_head(FILE *out, const struct bench_result *result)
{
	const struct bench_machine *m = &result->machine;

	fprintf(out, "machine   %s, %d CPUs, %.0f GB, last-level cache %.0f MiB, load %.1f\n",
	        m->cpu, (int)m->cpus, (double)m->memory_bytes * 1e-9,
	        (double)m->llc_bytes / (1 << 20), m->load);
	fprintf(out, "system    %s, %s\n", m->system, m->date);
	fprintf(out, "compiler  %s\n", m->compiler);
	fprintf(out, "build     %s\n", m->build);
	fprintf(out, "variants  %s\n", result->variants);
	if (result->not_run[0])
		fprintf(out, "not run   %s\n", result->not_run);
	(void)fflush(out);
}

static void print_ceilings(FILE *out, const struct bench_result *result)
{
	fprintf(out,
	        "\nceilings, GB/s (a copy's bytes are read and written, so twice as many move)\n");
	for (int i = 0; i < result->ceiling_count; i++) {
		const struct bench_ceiling *c = &result->ceilings[i];
		fprintf(out, "  %-8s %d thread%s %-5s %6.1f\n", c->name, (int)c->threads,
		        c->threads > 1 ? "s" : " ", c->cold ? "cold" : "hot", c->gb_s);
	}
	if (!result->counts)
		fprintf(out,
		        "  below 90 %% of what this machine reaches (one thread, cold: copy %.1f, "
		        "read "
		        "%.1f):\n  something else is running, and the ratios below do not count\n",
		        result->reference_copy, result->reference_read);
}

static double ratio(double ceiling_ns, double ns)
{
	return ns > 0 ? ceiling_ns / ns : 0;
}

void bench_print_table(FILE *out, const struct bench_result *result)
{
	print_ceilings(out, result);
	fprintf(out, "\n%-25s %-9s %-16s %-10s %8s %2s %-4s %12s %7s %8s %8s %5s\n", "operation",
	        "variant", "dtype", "shape", "tokens", "th", "", "best", "GB/s", "ceiling", "bare",
	        "N");
	for (size_t i = 0; i < result->row_count; i++) {
		const struct bench_row *r = &result->rows[i];
		fprintf(out, "%-25s %-9s %-16s %-10s %8lld %2d %-4s ", r->op, r->variant, r->dtype,
		        r->shape, (long long)r->tokens, (int)r->threads, r->cache);
		print_ns(out, r->ns);
		fprintf(out, " %7.1f %7.0f%%", (double)r->bytes / r->ns,
		        100 * ratio(r->ceiling_ns, r->ns));
		if (r->bare_ns > 0 && strcmp(r->variant, "bare") != 0)
			fprintf(out, " %7.0f%%", 100 * ratio(r->bare_ns, r->ns));
		else
			fprintf(out, " %8s", "");
		fprintf(out, " %5d\n", (int)r->best_of);
	}
	fprintf(out, "\nceiling: share of the fastest plain copy (or read) of as many bytes; bare: "
	             "share of "
	             "the\nsame access pattern without arithmetic and checks; both timed in "
	             "alternation. "
	             "Best of N.\n");
}

/* Names of this program hold nothing that JSON must escape; the machine's might. */
static void print_string(FILE *out, const char *text)
{
	fputc('"', out);
	for (; *text; text++)
		if (*text != '"' && *text != '\\' && (unsigned char)*text >= 32)
			fputc(*text, out);
	fputc('"', out);
}

static void print_field(FILE *out, const char *name, const char *text, const char *after)
{
	fprintf(out, "\"%s\": ", name);
	print_string(out, text);
	fputs(after, out);
}

static void print_row_json(FILE *out, const struct bench_row *r)
{
	fputs("{", out);
	print_field(out, "op", r->op, ", ");
	print_field(out, "variant", r->variant, ", ");
	print_field(out, "beside", r->beside, ", ");
	print_field(out, "dtype", r->dtype, ", ");
	print_field(out, "shape", r->shape, ", ");
	fprintf(out, "\"tokens\": %lld, \"threads\": %d, ", (long long)r->tokens, (int)r->threads);
	print_field(out, "cache", r->cache, ", ");
	fprintf(out, "\"ns\": %.1f, \"bytes\": %lld, \"best_of\": %d, ", r->ns, (long long)r->bytes,
	        (int)r->best_of);
	fprintf(out, "\"of_ceiling\": %.4f, ", ratio(r->ceiling_ns, r->ns));
	if (r->bare_ns > 0)
		fprintf(out, "\"of_bare\": %.4f, ", ratio(r->bare_ns, r->ns));
	else
		fputs("\"of_bare\": null, ", out);
	/* bench/report.py fills these in from a run of the peers. */
	fputs("\"peer\": null, \"times_peer\": null}", out);
}

void bench_print_json(FILE *out, const struct bench_result *result)
{
	const struct bench_machine *m = &result->machine;

	fputs("{\"machine\": {", out);
	print_field(out, "cpu", m->cpu, ", ");
	print_field(out, "system", m->system, ", ");
	print_field(out, "compiler", m->compiler, ", ");
	print_field(out, "build", m->build, ", ");
	print_field(out, "date", m->date, ", ");
	print_field(out, "variants", result->variants, ", ");
	print_field(out, "not_run", result->not_run, ", ");
	fprintf(out,
	        "\"cpus\": %d, \"memory_bytes\": %lld, \"llc_bytes\": %lld, \"load\": %.2f},\n",
	        (int)m->cpus, (long long)m->memory_bytes, (long long)m->llc_bytes, m->load);
	fprintf(out, "\"ratios_count\": %s,\n\"ceilings\": [\n", result->counts ? "true" : "false");
	for (int i = 0; i < result->ceiling_count; i++) {
		const struct bench_ceiling *c = &result->ceilings[i];
		fprintf(out,
		        " {\"name\": \"%s\", \"threads\": %d, \"cache\": \"%s\", \"gb_s\": "
		        "%.2f}%s\n",
		        c->name, (int)c->threads, c->cold ? "cold" : "hot", c->gb_s,
		        i + 1 < result->ceiling_count ? "," : "");
	}
	fputs("],\n\"rows\": [\n", out);
	for (size_t i = 0; i < result->row_count; i++) {
		fputs(" ", out);
		print_row_json(out, &result->rows[i]);
		fputs(i + 1 < result->row_count ? ",\n" : "\n", out);
	}
	fputs("]}\n", out);
}
