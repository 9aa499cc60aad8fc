/* Rows of equal tokens in layer 0, compared; content.h says why they must agree. */
#include "snapshot/content.h"
#include "snapshot/check_parts.h"
#include "snapshot/content_rows.h"
#include "snapshot/reader.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES_MAX 64 /* pairs that tell whether parameters fit */
#define GROUPS_NAMED_MAX 1000
#define FIT_POSITIONS_MAX ((int64_t)1 << 18)
#define FITS_MAX 64 /* rows whose rotation is looked for */
#define DIM_MAX 65536

/* One tensor of layer 0 being compared. */
struct content {
	struct findings *findings;
	bool *incomplete;
	const struct saved_cache *cache;
	const struct rope_given *given;
	int64_t part;
	int64_t layer; /* index in the part */
	int tensor;
	struct content_rows rows;
	struct undoing undoing;
	int64_t last_position;
	float *a, *b; /* a head each */
	int fits;     /* looked for so far */
};

static const struct saved_part *content_part(const struct content *content)
{
	return &content->cache->parts[content->part];
}

static void say_doubt(struct content *content, const char *kind, const char *detail)
{
	struct finding finding =
	        place_finding(kind, FINDING_DOUBT, content->cache, content_part(content), -1);

	if (content->tensor >= 0)
		place_in_tensor(
		        &finding, content_part(content), content->layer, content->tensor, -1, -1);
	snprintf(finding.detail, sizeof(finding.detail), "%s", detail);
	findings_add(content->findings, &finding);
	*content->incomplete = true;
}

/* ---- agreement ---- */

static bool heads_agree(struct content *content, int64_t one, int64_t other, int64_t head)
{
	const struct content_rows *rows = &content->rows;

	content_head(content->a, rows, one, head, &content->undoing, content_position(rows, one));
	content_head(
	        content->b, rows, other, head, &content->undoing, content_position(rows, other));
	return content_agrees(rows, content->a, content->b, content->last_position);
}

static bool members_agree(struct content *content, int64_t one, int64_t other)
{
	for (int64_t head = 0; head < content->rows.tensor->heads; head++)
		if (!heads_agree(content, one, other, head))
			return false;
	return true;
}

/* Of neighbouring rows of a group, at most SAMPLES_MAX pairs. */
static double agreement(struct content *content)
{
	int64_t pairs = 0, agreeing = 0;

	for (int64_t g = 0; g < content->rows.group_count && pairs < SAMPLES_MAX; g++) {
		const struct token_group *group = &content->rows.groups[g];
		for (int64_t i = 1; i < group->count && pairs < SAMPLES_MAX; i++, pairs++)
			agreeing += members_agree(content, group->first + i - 1, group->first + i);
	}
	return pairs ? (double)agreeing / (double)pairs : 0;
}

/* ---- parameters ---- */

static bool set_rope(struct content *content, double base, int style)
{
	content->undoing.rotary_offset = content->given->rotary_offset;
	content->undoing.rotated = true;
	return rope_given_init(
	        &content->undoing.rope, content->given, content->rows.tensor->dim, base, style);
}

/* Takes what agrees best of what the user left open; how well that is in *best. */
static bool choose_undoing(struct content *content, double *best)
{
	const struct rope_given *given = content->given;
	struct undoing chosen = { .rotated = false };
	bool any = false;

	*best = -1;
	for (int style = KVC_ROPE_NEOX; style <= KVC_ROPE_INTERLEAVED; style++)
		for (int hadamard = 0; hadamard <= content->rows.tensor->hadamard_doubt;
		        hadamard++) {
			double share;
			if (given->style_known && style != given->options.style)
				continue;
			content->undoing.hadamard = hadamard && content->rows.tensor->dim % 64 == 0;
			if (!set_rope(content, 0, style))
				continue;
			share = agreement(content);
			any = true;
			if (share <= *best)
				continue;
			*best = share;
			chosen = content->undoing;
		}
	content->undoing = chosen;
	return any;
}

static const char *style_name(int style)
{
	return style == KVC_ROPE_INTERLEAVED ? "interleaved" : "half";
}

/* Whether nearly all rows agree under other parameters; then it is these that are wrong. */
static bool other_parameters_fit(struct content *content, char *detail, size_t detail_bytes)
{
	static const double bases[] = { 0, 10000, 50000, 100000, 160000, 500000, 1e6, 5e6, 1e7 };
	const struct undoing given = content->undoing;
	bool found = false;

	content->undoing.rotated = false;
	if (agreement(content) >= 0.9) {
		snprintf(detail, detail_bytes, "K fits these parameters only if it is not rotated");
		found = true;
	}
	for (size_t i = 0; !found && i < sizeof(bases) / sizeof(bases[0]); i++)
		for (int style = KVC_ROPE_NEOX; !found && style <= KVC_ROPE_INTERLEAVED; style++) {
			if (!set_rope(content, bases[i], style) || agreement(content) < 0.9)
				continue;
			snprintf(detail, detail_bytes, "K fits base %.10g, style %s instead",
			        bases[i] > 0 ? bases[i] : content->given->options.rope_base,
			        style_name(style));
			found = true;
		}
	content->undoing = given;
	return found;
}

/* ---- a rotation that fits another position ---- */

/* A pair of a row times the conjugate of that of the reference, and one step of position. */
struct turning {
	double re, im;
	double step_re, step_im;
};

/* out[i] for each rotated pair: how far the row is turned against what the reference was. */
static int32_t turn_pairs(struct content *content, struct turning *out, int64_t member,
        int64_t reference, int64_t head)
{
	const struct content_rows *rows = &content->rows;
	struct undoing still = content->undoing;
	int32_t pairs = still.rope.rotary_dim / 2;
	bool interleaved = still.rope.style == KVC_ROPE_INTERLEAVED;
	const float *row = content->a + still.rotary_offset;
	const float *base = content->b + still.rotary_offset;

	still.rotated = false;
	content_head(content->a, rows, member, head, &still, 0);
	content_head(content->b, rows, reference, head, &content->undoing,
	        content_position(rows, reference));
	for (int32_t i = 0; i < pairs; i++) {
		double x = row[interleaved ? 2 * i : i];
		double y = row[interleaved ? 2 * i + 1 : i + pairs];
		double u = base[interleaved ? 2 * i : i];
		double v = base[interleaved ? 2 * i + 1 : i + pairs];
		out[i].re += x * u + y * v;
		out[i].im += y * u - x * v;
	}
	return pairs;
}

/* The position that turns the sum of all pairs closest to the reference. */
static int64_t best_position(struct turning *turnings, int32_t pairs, int64_t most)
{
	double best = -INFINITY;
	int64_t at = -1;

	for (int64_t position = 0; position < most; position++) {
		double sum = 0;
		for (int32_t i = 0; i < pairs; i++) {
			struct turning *t = &turnings[i];
			double re = t->re * t->step_re + t->im * t->step_im;
			sum += t->re;
			t->im = t->im * t->step_re - t->re * t->step_im;
			t->re = re;
		}
		if (sum > best) {
			best = sum;
			at = position;
		}
	}
	return at;
}

static bool agrees_at(struct content *content, int64_t member, int64_t position, int64_t reference,
        int64_t first_head, int64_t end_head)
{
	const struct content_rows *rows = &content->rows;

	for (int64_t head = first_head; head < end_head; head++) {
		content_head(content->a, rows, member, head, &content->undoing, position);
		content_head(content->b, rows, reference, head, &content->undoing,
		        content_position(rows, reference));
		if (!content_agrees(rows, content->a, content->b, content->last_position))
			return false;
	}
	return true;
}

/* The other position for which the row (one head, or all: -1) agrees with the reference; or -1. */
static int64_t fitting_position(
        struct content *content, int64_t member, int64_t reference, int64_t head)
{
	struct turning turnings[KVC_ROTARY_DIM_MAX / 2] = { { 0, 0, 0, 0 } };
	int64_t first = head < 0 ? 0 : head;
	int64_t end = head < 0 ? content->rows.tensor->heads : head + 1;
	int64_t most = content->last_position + 4096, position;
	int32_t pairs = content->undoing.rope.rotary_dim / 2;

	if (!content->undoing.rotated || content->fits++ >= FITS_MAX)
		return -1;
	for (int64_t h = first; h < end; h++)
		turn_pairs(content, turnings, member, reference, h);
	for (int32_t i = 0; i < pairs; i++) {
		turnings[i].step_re = cos(content->undoing.rope.inv_freq[i]);
		turnings[i].step_im = sin(content->undoing.rope.inv_freq[i]);
	}
	position =
	        best_position(turnings, pairs, most < FIT_POSITIONS_MAX ? most : FIT_POSITIONS_MAX);
	return position >= 0 && position != content_position(&content->rows, member) &&
	                       agrees_at(content, member, position, reference, first, end)
	               ? position
	               : -1;
}

/* ---- one group ---- */

/* Which rows of a group agree, for one head. */
struct verdict {
	int64_t leader; /* a member of the largest set that agrees */
	int64_t size;   /* of that set */
};

/* odd[i * heads + head] = 1 for members outside the largest set. */
static struct verdict judge_head(
        struct content *content, const struct token_group *group, int64_t head, unsigned char *odd)
{
	struct verdict best = { group->first, 0 };
	int64_t heads = content->rows.tensor->heads;

	for (int64_t lead = 0; lead < group->count && 2 * best.size <= group->count; lead++) {
		int64_t size = 0;
		for (int64_t i = 0; i < group->count; i++)
			size += i == lead ||
			        heads_agree(content, group->first + lead, group->first + i, head);
		if (size > best.size)
			best = (struct verdict){ group->first + lead, size };
	}
	for (int64_t i = 0; i < group->count; i++)
		odd[i * heads + head] = group->first + i != best.leader &&
		                        !heads_agree(content, best.leader, group->first + i, head);
	return best;
}

/* "0, 2, 6" */
static void list_positions(
        struct content *content, const struct token_group *group, char *out, size_t bytes)
{
	size_t used = 0;

	out[0] = '\0';
	for (int64_t i = 0; i < group->count; i++) {
		if (used + 24 > bytes) {
			snprintf(out + used, bytes - used, ", ...");
			return;
		}
		used += (size_t)snprintf(out + used, bytes - used, "%s%lld", i ? ", " : "",
		        (long long)content_position(&content->rows, group->first + i));
	}
}

static struct finding content_finding(const struct content *content, const char *kind,
        int64_t member, int64_t token, int64_t head)
{
	struct finding finding = place_finding(kind, FINDING_DAMAGE, content->cache,
	        content_part(content), member < 0 ? -1 : content->rows.rows[member]);

	place_in_tensor(&finding, content_part(content), content->layer, content->tensor, head, -1);
	/* In the model, whatever the file's own numbering: only layer 0 can be compared. */
	finding.layer = 0;
	finding.token = token;
	return finding;
}

/* Whether all rows without NaN and infinity agree; the others are in the report already. */
static bool finite_members_agree(
        struct content *content, const struct token_group *group, int64_t head)
{
	int64_t reference = -1;

	for (int64_t i = 0; i < group->count; i++) {
		int64_t member = group->first + i;
		if (!heads_agree(content, member, member, head)) /* NaN is not like itself */
			continue;
		if (reference >= 0 && !heads_agree(content, reference, member, head))
			return false;
		reference = member;
	}
	return true;
}

static bool all_finite_agree(struct content *content, const struct token_group *group, int64_t head)
{
	int64_t first = head < 0 ? 0 : head;
	int64_t end = head < 0 ? content->rows.tensor->heads : head + 1;

	for (int64_t h = first; h < end; h++)
		if (!finite_members_agree(content, group, h))
			return false;
	return true;
}

/* No set is larger than the rest: any of the rows may be the wrong one. */
static void say_undecided(struct content *content, const struct token_group *group, int64_t head)
{
	struct finding finding =
	        content_finding(content, "token_rows_differ", -1, group->token, head);
	char positions[96];
	int used;

	if (all_finite_agree(content, group, head))
		return;
	list_positions(content, group, positions, sizeof(positions));
	used = snprintf(finding.detail, sizeof(finding.detail),
	        "rows at positions %s must agree; which is wrong cannot be told", positions);
	if (group->count == 2) {
		int64_t a = group->first, b = group->first + 1;
		int64_t fit_a = fitting_position(content, a, b, head);
		int64_t fit_b = fitting_position(content, b, a, head);
		if (fit_b >= 0)
			used += snprintf(finding.detail + used,
			        sizeof(finding.detail) - (size_t)used,
			        "; %lld is rotated as for %lld",
			        (long long)content_position(&content->rows, b), (long long)fit_b);
		if (fit_a >= 0 && (size_t)used < sizeof(finding.detail))
			snprintf(finding.detail + used, sizeof(finding.detail) - (size_t)used,
			        "%s %lld as for %lld", fit_b >= 0 ? ", or" : ";",
			        (long long)content_position(&content->rows, a), (long long)fit_a);
	}
	findings_add(content->findings, &finding);
}

static void say_odd(struct content *content, const struct token_group *group, int64_t member,
        int64_t head, int64_t leader)
{
	int64_t fit = fitting_position(content, member, leader, head);
	struct finding finding = content_finding(
	        content, fit >= 0 ? "rotation" : "token_rows_differ", member, group->token, head);
	char positions[96];

	list_positions(content, group, positions, sizeof(positions));
	if (fit >= 0)
		snprintf(finding.detail, sizeof(finding.detail), "rotated as for position %lld",
		        (long long)fit);
	else
		snprintf(finding.detail, sizeof(finding.detail),
		        "differs from the other rows of this token (positions %s)", positions);
	findings_add(content->findings, &finding);
}

/* Findings of a group of which some heads disagree: all heads in one where that is so. */
static void say_group(struct content *content, const struct token_group *group,
        const struct verdict *verdicts, const unsigned char *odd)
{
	int64_t heads = content->rows.tensor->heads, undecided = 0;

	for (int64_t head = 0; head < heads; head++)
		undecided += 2 * verdicts[head].size <= group->count;
	if (undecided == heads)
		say_undecided(content, group, -1);
	for (int64_t head = 0; undecided < heads && head < heads; head++)
		if (2 * verdicts[head].size <= group->count)
			say_undecided(content, group, head);
	for (int64_t i = 0; i < group->count; i++) {
		int64_t count = 0;
		for (int64_t head = 0; head < heads; head++)
			count += odd[i * heads + head] && 2 * verdicts[head].size > group->count;
		if (count == heads) {
			say_odd(content, group, group->first + i, -1, verdicts[0].leader);
			continue;
		}
		for (int64_t head = 0; count > 0 && head < heads; head++)
			if (odd[i * heads + head] && 2 * verdicts[head].size > group->count)
				say_odd(content, group, group->first + i, head,
				        verdicts[head].leader);
	}
}

static bool group_agrees(struct content *content, const struct token_group *group)
{
	for (int64_t i = 1; i < group->count; i++)
		if (!members_agree(content, group->first, group->first + i))
			return false;
	return true;
}

static int judge_group(struct content *content, const struct token_group *group)
{
	int64_t heads = content->rows.tensor->heads;
	struct verdict *verdicts = malloc((size_t)heads * sizeof(*verdicts));
	unsigned char *odd = malloc((size_t)(heads * group->count));
	bool good = verdicts && odd;

	for (int64_t head = 0; good && head < heads; head++)
		verdicts[head] = judge_head(content, group, head, odd);
	if (good)
		say_group(content, group, verdicts, odd);
	free(verdicts);
	free(odd);
	return good ? 0 : -1;
}

static int judge_groups(struct content *content)
{
	int named = 0;

	for (int64_t g = 0; g < content->rows.group_count && named < GROUPS_NAMED_MAX; g++) {
		if (group_agrees(content, &content->rows.groups[g]))
			continue;
		if (judge_group(content, &content->rows.groups[g]) != 0)
			return -1;
		named++;
	}
	return 0;
}

/* ---- K and V of layer 0 ---- */

/* Whether K can be compared; says why not. */
static bool prepare_k(struct content *content)
{
	double share;
	char detail[128];

	if (!choose_undoing(content, &share)) {
		say_doubt(content, "rope_parameters",
		        "the rotary dimension given does not fit a head of this cache");
		return false;
	}
	if (share >= 0.5 || !other_parameters_fit(content, detail, sizeof(detail)))
		return true;
	say_doubt(content, "rope_parameters", detail);
	return false;
}

static bool heads_told(const struct content *content)
{
	const char *format = content->cache->format;

	return content->rows.tensor->heads > 1 || content->given->heads == 1 ||
	       content->given->rotary_offset > 0 ||
	       (strncmp(format, "llamacpp", 8) != 0 && strncmp(format, "vllm", 4) != 0);
}

static int compare_tensor(struct content *content)
{
	if (content->rows.some_left_out) {
		struct finding note = place_finding(
		        "content_sampled", FINDING_NOTE, content->cache, content_part(content), -1);
		place_in_tensor(
		        &note, content_part(content), content->layer, content->tensor, -1, -1);
		snprintf(note.detail, sizeof(note.detail), "%lld rows of equal tokens compared",
		        (long long)content->rows.row_count);
		findings_add(content->findings, &note);
	}
	if (content->tensor == SAVED_V) {
		content->undoing = (struct undoing){ .rotated = false };
		return judge_groups(content);
	}
	if (!heads_told(content)) {
		say_doubt(content, "heads_unknown",
		        "K is not compared: this format does not tell the number of heads; give "
		        "--heads");
		return 0;
	}
	return prepare_k(content) ? judge_groups(content) : 0;
}

static int64_t last_position_of(const struct saved_part *part)
{
	int64_t last = 0;

	for (int64_t row = 0; row < part->row_count; row++)
		if (saved_position(part, row) > last)
			last = saved_position(part, row);
	return last;
}

static int content_begin(struct content *content, int tensor, struct saved_error *error)
{
	const struct saved_part *part = content_part(content);
	const struct saved_tensor *of = &part->layers[content->layer].tensor[tensor];
	size_t head = (size_t)of->dim * sizeof(float);

	content->tensor = tensor;
	content->last_position = last_position_of(part);
	content->a = malloc(head + 1);
	content->b = malloc(head + 1);
	if (!content->a || !content->b)
		return saved_fail_memory(error, content->cache->path);
	return content_rows_read(&content->rows, part, of, error);
}

static void content_end(struct content *content)
{
	content_rows_free(&content->rows);
	free(content->a);
	free(content->b);
	content->a = content->b = NULL;
}

/* ---- which layer is layer 0 ---- */

static bool can_compare_values(const struct saved_part *part, int64_t layer, int tensor)
{
	const struct saved_tensor *of = &part->layers[layer].tensor[tensor];

	return of->present && of->type != SAVED_OPAQUE;
}

/* Models with sliding windows have two parts, and the file does not say which has layer 0: it is
 * that whose V agrees better. -1 if no share is above 0. */
static int share_of_v(double *share, struct content *content, struct saved_error *error)
{
	const struct saved_part *part = content_part(content);
	int tensor = can_compare_values(part, content->layer, SAVED_V) ? SAVED_V : SAVED_K;

	*share = 0;
	if (content_begin(content, tensor, error) != 0) {
		content_end(content);
		return -1;
	}
	content->undoing = (struct undoing){ .rotated = false };
	*share = agreement(content);
	content_end(content);
	return 0;
}

/* Index of layer 0 in a part; -1: it has none, or nothing to compare. */
static int64_t first_layer(const struct saved_part *part)
{
	if (!part->tokens || part->row_count < 2)
		return -1;
	for (int64_t layer = 0; layer < part->layer_count; layer++)
		if (part->layers[layer].number_is_known ? part->layers[layer].number == 0
		                                        : layer == 0)
			return part->layers[layer].tensor[SAVED_K].type == SAVED_OPAQUE ? -1
			                                                                : layer;
	return -1;
}

/* Parts of one stream that may hold layer 0 are named differently ("base", "window"). */
static int64_t rival_of(const struct saved_cache *cache, int64_t number)
{
	const struct saved_part *part = &cache->parts[number];

	for (int64_t i = 0; i < cache->part_count; i++) {
		const struct saved_part *other = &cache->parts[i];
		if (i != number && other->stream == part->stream && other->name && part->name &&
		        strcmp(other->name, part->name) != 0 && other->layer_count > 0 &&
		        part->layer_count > 0 && !other->layers[0].number_is_known &&
		        !part->layers[0].number_is_known)
			return i;
	}
	return -1;
}

static int part_has_layer_0(
        bool *has, const struct content *content, int64_t rival, struct saved_error *error)
{
	struct content here = *content, there = *content;
	double share_here, share_there = 0;

	there.part = rival;
	there.layer = first_layer(content_part(&there));
	if (share_of_v(&share_here, &here, error) != 0)
		return -1;
	if (there.layer >= 0 && share_of_v(&share_there, &there, error) != 0)
		return -1;
	*has = share_here > share_there;
	return 0;
}

static int compare_part(struct content *content, struct saved_error *error)
{
	int64_t rival = rival_of(content->cache, content->part);
	bool has = true;

	if (rival >= 0 && part_has_layer_0(&has, content, rival, error) != 0)
		return -1;
	for (int tensor = SAVED_K; has && tensor <= SAVED_V; tensor++) {
		int failed = 0;
		if (!can_compare_values(content_part(content), content->layer, tensor))
			continue;
		failed = content_begin(content, tensor, error);
		if (!failed && compare_tensor(content) != 0)
			failed = saved_fail_memory(error, content->cache->path);
		content_end(content);
		if (failed)
			return -1;
	}
	return 0;
}

static bool has_note(const struct saved_cache *cache, const char *kind)
{
	for (int64_t i = 0; i < cache->note_count; i++)
		if (strcmp(cache->notes[i].kind, kind) == 0)
			return true;
	return false;
}

int check_content(struct findings *findings, bool *incomplete, const struct saved_cache *cache,
        const struct rope_given *given, struct saved_error *error)
{
	struct content content = { .findings = findings,
		.incomplete = incomplete,
		.cache = cache,
		.given = given,
		.tensor = -1 };
	bool any = false;

	if (cache->part_count == 0)
		return 0;
	if (has_note(cache, "recurrent_state")) {
		say_doubt(&content, "content_unknown",
		        "with recurrent layers before it, no layer here depends on the token "
		        "alone");
		return 0;
	}
	for (content.part = 0; content.part < cache->part_count; content.part++) {
		content.layer = first_layer(content_part(&content));
		content.tensor = -1;
		if (content.layer < 0)
			continue;
		any = true;
		if (compare_part(&content, error) != 0)
			return -1;
	}
	content.part = 0;
	content.tensor = -1;
	if (!any)
		say_doubt(&content, "tokens_unknown",
		        "contents are not compared: the tokens of layer 0 are not known; give "
		        "--tokens");
	return 0;
}
