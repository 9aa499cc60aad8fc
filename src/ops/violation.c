/*
 * Names and texts of violations, and reading a text back. The first line of a text is stable: the
 * catalogue's templates, dashboards and kvc_violation_parse() rely on it. With SGLang's rules the
 * whole text is what its kv-canary logs, byte for byte.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "kvcanary.h"

/* ---- names ---- */

struct reason {
	int64_t bit;
	const char *name;
	const char *slug;
};

/* In order of bits. */
static const struct reason reasons[KVC_REASON_COUNT] = {
	{ KVC_REASON_VERIFY_CHAIN_HASH, "verify_chain_hash", "violation-verify-chain-hash" },
	{ KVC_REASON_VERIFY_POSITION, "verify_position", "violation-verify-position" },
	{ KVC_REASON_VERIFY_REAL_KV_HASH, "verify_real_kv_hash", "violation-verify-real-kv-hash" },
	{ KVC_REASON_WRITE_TOKEN, "write_token", "violation-write-token" },
	{ KVC_REASON_WRITE_POSITION, "write_position", "violation-write-position" },
	{ KVC_REASON_VERIFY_TOKEN, "verify_token", "violation-verify-token" },
	{ KVC_REASON_NEVER_STAMPED, "never_stamped", "violation-never-stamped" },
	{ KVC_REASON_NONFINITE, "nonfinite", "violation-nonfinite" },
	{ KVC_REASON_SLOT_RANGE, "slot_range", "violation-slot-range" },
	{ KVC_REASON_CHAIN_END, "chain_end", "violation-chain-end" },
	{ KVC_REASON_SLOT_ALIASED, "slot_aliased", "violation-slot-aliased" },
};

/* What explains a set best: where nothing could be compared, then foreign content, then what
 * follows from it. */
static const int64_t explain_order[KVC_REASON_COUNT] = {
	KVC_REASON_SLOT_RANGE,
	KVC_REASON_NEVER_STAMPED,
	KVC_REASON_NONFINITE,
	KVC_REASON_SLOT_ALIASED,
	KVC_REASON_WRITE_TOKEN,
	KVC_REASON_VERIFY_TOKEN,
	KVC_REASON_WRITE_POSITION,
	KVC_REASON_VERIFY_POSITION,
	KVC_REASON_VERIFY_CHAIN_HASH,
	KVC_REASON_CHAIN_END,
	KVC_REASON_VERIFY_REAL_KV_HASH,
};

static const struct {
	int64_t tag;
	const char *name;
	const char *canary_kind; /* SGLang's word for it; NULL if the tag is ours */
} tags[] = {
	{ KVC_TAG_HEAD_K_FULL, "HEAD_K_FULL", "per_forward_head_k_full" },
	{ KVC_TAG_HEAD_V_FULL, "HEAD_V_FULL", "per_forward_head_v_full" },
	{ KVC_TAG_TAIL_K_FULL, "TAIL_K_FULL", "per_forward_tail_k_full" },
	{ KVC_TAG_TAIL_V_FULL, "TAIL_V_FULL", "per_forward_tail_v_full" },
	{ KVC_TAG_SWEEP_K_FULL, "SWEEP_K_FULL", "sweep_k_full" },
	{ KVC_TAG_SWEEP_V_FULL, "SWEEP_V_FULL", "sweep_v_full" },
	{ KVC_TAG_HEAD_K_SWA, "HEAD_K_SWA", "per_forward_head_k_swa" },
	{ KVC_TAG_HEAD_V_SWA, "HEAD_V_SWA", "per_forward_head_v_swa" },
	{ KVC_TAG_TAIL_K_SWA, "TAIL_K_SWA", "per_forward_tail_k_swa" },
	{ KVC_TAG_TAIL_V_SWA, "TAIL_V_SWA", "per_forward_tail_v_swa" },
	{ KVC_TAG_SWEEP_K_SWA, "SWEEP_K_SWA", "sweep_k_swa" },
	{ KVC_TAG_SWEEP_V_SWA, "SWEEP_V_SWA", "sweep_v_swa" },
	{ KVC_TAG_STEP_READ, "STEP_READ", NULL },
	{ KVC_TAG_STEP_WRITE, "STEP_WRITE", NULL },
	{ KVC_TAG_SWEEP, "SWEEP", NULL },
};
#define TAG_COUNT (sizeof(tags) / sizeof(tags[0]))

/* The bits that SGLang knows. */
#define SGLANG_REASONS 63

static const struct reason *find_reason(int64_t bit)
{
	for (int i = 0; i < KVC_REASON_COUNT; i++)
		if (reasons[i].bit == bit)
			return &reasons[i];
	return NULL;
}

const char *kvc_reason_name(int64_t reason_bit)
{
	const struct reason *reason = find_reason(reason_bit);

	return reason ? reason->name : NULL;
}

const char *kvc_tag_name(int64_t launch_tag)
{
	for (size_t i = 0; i < TAG_COUNT; i++)
		if (tags[i].tag == launch_tag)
			return tags[i].name;
	return NULL;
}

const char *kvc_reason_slug(int64_t bits)
{
	for (int i = 0; i < KVC_REASON_COUNT; i++)
		if (bits & explain_order[i])
			return find_reason(explain_order[i])->slug;
	return NULL;
}

/* ---- writing ---- */

/* Text that goes on being measured where it no longer fits. */
struct writer {
	char *out;
	size_t capacity;
	size_t used;
};

__attribute__((format(printf, 2, 3))) static void add(
        struct writer *writer, const char *format, ...)
{
	size_t room = writer->used < writer->capacity ? writer->capacity - writer->used : 0;
	va_list values;

	va_start(values, format);
	int count = vsnprintf(room ? writer->out + writer->used : NULL, room, format, values);
	va_end(values);
	if (count > 0)
		writer->used += (size_t)count;
}

/* A tag as SGLang prints it in two places: its name, and the kind of check. */
static void add_tag(struct writer *writer, int64_t tag, int32_t rules, int as_kind)
{
	for (size_t i = 0; i < TAG_COUNT; i++) {
		if (tags[i].tag != tag || (rules == KVC_RULES_SGLANG && !tags[i].canary_kind))
			continue;
		add(writer, "%s", as_kind ? tags[i].canary_kind : tags[i].name);
		return;
	}
	add(writer, "unknown(%" PRId64 ")", tag);
}

static void add_reasons(struct writer *writer, int64_t bits, int32_t rules, const char *between)
{
	const char *before = "";

	if (rules == KVC_RULES_SGLANG)
		bits &= SGLANG_REASONS;
	for (int i = 0; i < KVC_REASON_COUNT; i++) {
		if (!(bits & reasons[i].bit))
			continue;
		add(writer, "%s%s", before, reasons[i].name);
		before = between;
	}
	if (!*before)
		add(writer, "none");
}

static void add_first_line(struct writer *writer, const kvc_violation *v, int32_t rules)
{
	add(writer, "kv_canary violation: launch_tag=");
	add_tag(writer, v->launch_tag, rules, 0);
	add(writer, " fail_reason=");
	add_reasons(writer, v->reasons, rules, "+");
	add(writer,
	        " slot_idx=%" PRId64 " position=%" PRId64 " stored_token=%" PRId64
	        " expected_token=%" PRId64 " stored_chain_hash=0x%016" PRIx64
	        " expected_aux=0x%016" PRIx64,
	        v->slot, v->position, v->stored_token, v->expected_token, v->stored_chain,
	        v->expected_aux);
}

static int is_write_reason(int64_t bits)
{
	return (bits & (KVC_REASON_WRITE_TOKEN | KVC_REASON_WRITE_POSITION)) != 0;
}

static int has_token_reason(int64_t bits)
{
	return (bits & (KVC_REASON_WRITE_TOKEN | KVC_REASON_VERIFY_TOKEN)) != 0;
}

static void add_sglang_lines(struct writer *writer, const kvc_violation *v)
{
	add(writer, "\nKV cache canary violation detected (kernel_kind=");
	add_tag(writer, v->launch_tag, KVC_RULES_SGLANG, 0);
	add(writer, ", slot_idx=%" PRId64 ", position=%" PRId64 ")\ncanary_kind:       ", v->slot,
	        v->position);
	add_tag(writer, v->launch_tag, KVC_RULES_SGLANG, 1);
	add(writer, "\n  fail_reasons: ");
	add_reasons(writer, v->reasons, KVC_RULES_SGLANG, " ");
	add(writer, "\n  %s token_id=%" PRId64 "   position=%" PRId64 " prev_hash=0x%016" PRIx64,
	        is_write_reason(v->reasons) ? "actual:  " : "stored:  ", v->stored_token,
	        v->position, v->stored_chain);
	add(writer, "\n  expected:");
	if (is_write_reason(v->reasons)) {
		add(writer, " token_id=%" PRId64 "   position=%" PRId64, v->expected_token,
		        (int64_t)v->expected_aux);
		return;
	}
	if (has_token_reason(v->reasons))
		add(writer, " token_id=%" PRId64, v->expected_token);
	add(writer, " prev_hash=0x%016" PRIx64, v->expected_aux);
}

static void add_sglang_totals(struct writer *writer, const kvc_violation_totals *totals)
{
	add(writer, "\n  total_violations=%" PRId64 " ring_overflow=%s step_when_pumped=%" PRId64,
	        totals->violations, totals->ring_overflow ? "True" : "False", totals->step);
}

/* What the slot holds and what was expected there: only what was compared. */
static void add_comparison(struct writer *writer, const kvc_violation *v)
{
	int64_t bits = v->reasons;
	int wrote = is_write_reason(bits);

	add(writer, "\n  %s token %" PRId64 " at position %" PRId64,
	        wrote ? "written: " : "stored:  ", v->stored_token, v->position);
	if (bits & KVC_REASON_VERIFY_REAL_KV_HASH)
		add(writer, ", bytes 0x%016" PRIx64, v->stored_fingerprint);
	add(writer, "\n  expected: ");
	if (v->expected_token == -1)
		add(writer, "any token at position %" PRId64, v->expected_position);
	else
		add(writer, "token %" PRId64 " at position %" PRId64, v->expected_token,
		        v->expected_position);
	if (bits & KVC_REASON_VERIFY_REAL_KV_HASH)
		add(writer, ", bytes 0x%016" PRIx64, v->expected_fingerprint);
}

static void add_who(struct writer *writer, const kvc_violation *v)
{
	add(writer, "\n  request:  ");
	if (v->request_row >= 0)
		add(writer, "row %" PRId64 " of the request table", v->request_row);
	else
		add(writer, "not known");
	add(writer, "\n  stamped:  ");
	if (v->owner_request != -1)
		add(writer, "last by request %" PRId64 " in step %" PRId64, v->owner_request,
		        v->owner_step);
	else
		add(writer, "by whom is not known");
	if (v->source_id != -1)
		add(writer, "\n  source:   %" PRIu64, (uint64_t)v->source_id);
}

static void add_own_lines(
        struct writer *writer, const kvc_violation *v, const kvc_violation_totals *totals)
{
	const char *slug = kvc_reason_slug(v->reasons);
	const kvc_catalog_entry *entry = slug ? kvc_catalog_find(slug) : NULL;

	add_comparison(writer, v);
	add_who(writer, v);
	if (entry && *entry->hint)
		add(writer, "\n  advice:   %s", entry->hint);
	if (slug)
		add(writer, "\n  explain:  kvcanary explain %s", slug);
	if (totals)
		add(writer, "\n  so far:   %" PRId64 " violations by step %" PRId64 "%s",
		        totals->violations, totals->step,
		        totals->ring_overflow ? ", some of them dropped" : "");
}

size_t kvc_violation_text(char *out, size_t out_bytes, const kvc_violation *violation,
        int32_t rules, const kvc_violation_totals *totals)
{
	struct writer writer = { out, out ? out_bytes : 0, 0 };

	if (writer.capacity > 0)
		out[0] = '\0';
	if (!violation)
		return 0;
	add_first_line(&writer, violation, rules);
	if (rules != KVC_RULES_SGLANG) {
		add_own_lines(&writer, violation, totals);
		return writer.used;
	}
	add_sglang_lines(&writer, violation);
	if (totals)
		add_sglang_totals(&writer, totals);
	return writer.used;
}

/* ---- reading ---- */

/* Step over 'expected' if it stands here. */
static int skip(const char **at, const char *expected)
{
	size_t count = strlen(expected);

	if (strncmp(*at, expected, count) != 0)
		return 0;
	*at += count;
	return 1;
}

static int read_int(const char **at, int64_t *out)
{
	int negative = **at == '-';
	const char *digit = *at + negative;
	int64_t value = 0;

	if (*digit < '0' || *digit > '9')
		return 0;
	for (; *digit >= '0' && *digit <= '9'; digit++) {
		int64_t step = negative ? '0' - *digit : *digit - '0';
		if (__builtin_mul_overflow(value, 10, &value) ||
		        __builtin_add_overflow(value, step, &value))
			return 0;
	}
	*at = digit;
	*out = value;
	return 1;
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int read_hash(const char **at, uint64_t *out)
{
	uint64_t value = 0;

	if (!skip(at, "0x"))
		return 0;
	for (int i = 0; i < 16; i++, (*at)++) {
		if (hex_digit(**at) < 0)
			return 0;
		value = value << 4 | (uint64_t)hex_digit(**at);
	}
	*out = value;
	return hex_digit(**at) < 0;
}

/* Is this word, up to 'past', a name? */
static int word_is(const char *word, const char *past, const char *name)
{
	size_t count = (size_t)(past - word);

	return strlen(name) == count && memcmp(word, name, count) == 0;
}

static int read_tag(const char **at, int64_t *out)
{
	const char *past = *at + strcspn(*at, " ");

	if (skip(at, "unknown("))
		return read_int(at, out) && skip(at, ")");
	for (size_t i = 0; i < TAG_COUNT; i++) {
		if (!word_is(*at, past, tags[i].name))
			continue;
		*out = tags[i].tag;
		*at = past;
		return 1;
	}
	return 0;
}

static int64_t reason_of_word(const char *word, const char *past)
{
	for (int i = 0; i < KVC_REASON_COUNT; i++)
		if (word_is(word, past, reasons[i].name))
			return reasons[i].bit;
	return 0;
}

static int read_reasons(const char **at, int64_t *out)
{
	*out = 0;
	if (skip(at, "none"))
		return 1;
	do {
		const char *past = *at + strcspn(*at, "+ ");
		int64_t bit = reason_of_word(*at, past);
		if (bit == 0)
			return 0;
		*out |= bit;
		*at = past;
	} while (skip(at, "+"));
	return 1;
}

/* The first line from behind its opening words on. */
static int read_line(kvc_violation *v, const char *at)
{
	return skip(&at, "launch_tag=") && read_tag(&at, &v->launch_tag) &&
	       skip(&at, " fail_reason=") && read_reasons(&at, &v->reasons) &&
	       skip(&at, " slot_idx=") && read_int(&at, &v->slot) && skip(&at, " position=") &&
	       read_int(&at, &v->position) && skip(&at, " stored_token=") &&
	       read_int(&at, &v->stored_token) && skip(&at, " expected_token=") &&
	       read_int(&at, &v->expected_token) && skip(&at, " stored_chain_hash=") &&
	       read_hash(&at, &v->stored_chain) && skip(&at, " expected_aux=") &&
	       read_hash(&at, &v->expected_aux);
}

int kvc_violation_parse(kvc_violation *out, const char *line)
{
	static const char opening[] = "kv_canary violation: ";

	for (const char *at = strstr(line, opening); at; at = strstr(at + 1, opening)) {
		kvc_violation v = { 0 };
		v.expected_position = -1;
		v.request_row = -1;
		v.owner_request = -1;
		v.owner_step = -1;
		v.source_id = -1;
		v.sequence = -1;
		if (read_line(&v, at + sizeof(opening) - 1)) {
			*out = v;
			return 1;
		}
	}
	return 0;
}
