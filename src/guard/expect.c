/*
 * What a step's requests should find, from their expected tokens alone: chains and input tokens.
 *
 * A chain depends on nothing but tokens and positions, so whoever knows the tokens knows what every
 * record must say without reading one. That is what tells a whole foreign prefix, sound in itself,
 * from the right one; and a write whose chain is known needs no seed, which another request of the
 * same step may be about to stamp.
 */
#include <string.h>

#include "cpu/hash.h"
#include "guard/guard.h"

int kvc__step_token(const struct kvc__step *step, const struct kvc__guard_group *group, int64_t r,
        int64_t position, int64_t *token_out)
{
	int64_t column;

	if (!step->expected || __builtin_add_overflow(position, group->token_offset, &column))
		return 0;
	if (column < 0 || column >= step->valid_lens[r] || column >= step->expected_columns ||
	        step->rows[r] >= step->expected_rows)
		return 0;
	*token_out = step->expected[step->rows[r] * step->expected_stride + column];
	return *token_out != -1;
}

/* Start the request's chain anew unless it can be carried on to 'length'. */
static void chain_for(struct kvc__chain *chain, const struct kvc__step *step, int64_t r,
        int64_t length, int is_new)
{
	uint64_t name_space = step->namespaces ? (uint64_t)step->namespaces[r] : 0;

	if (!is_new && chain->request == step->owner_request[r] &&
	        chain->name_space == name_space && chain->length <= length)
		return;
	chain->request = step->owner_request[r];
	chain->name_space = name_space;
	chain->length = 0;
	chain->value = kvc__chain_start(name_space);
}

/* The chain after 'length' tokens, 0 if one of them is not known. */
static uint64_t chain_up_to(struct kvc__chain *chain, const struct kvc__step *step,
        const struct kvc__guard_group *group, int64_t r, int64_t length)
{
	int64_t token;

	while (chain->length < length && kvc__step_token(step, group, r, chain->length, &token)) {
		chain->value = kvc__chain_next(chain->value, token, chain->length);
		chain->length++;
	}
	return chain->length == length ? chain->value : 0;
}

static void expect_chains(kvc_guard *guard, struct kvc__guard_group *group, int64_t r)
{
	struct kvc__step *step = &guard->step;
	const struct kvc__entry *entry = &step->entries[r];
	struct kvc__chain *chain = &group->at_prefix[step->rows[r]];
	int64_t window_start = kvc__guard_window_start(group, entry->prefix);
	int64_t first = step->start_first[r];
	uint64_t before_window = 0, at_first = 0, at_prefix;

	if (window_start > 0) {
		struct kvc__chain *low = &group->at_window[step->rows[r]];
		chain_for(low, step, r, window_start, entry->is_new);
		before_window = chain_up_to(low, step, group, r, window_start);
		if (entry->is_new)
			*chain = *low;
	}
	chain_for(chain, step, r, first > window_start ? first : entry->prefix,
	        entry->is_new && window_start == 0);
	if (first > window_start)
		at_first = chain_up_to(chain, step, group, r, first);
	at_prefix = chain_up_to(chain, step, group, r, entry->prefix);
	group->start_again[r] = window_start;
	group->chain_again[r] = (int64_t)before_window;
	group->chain_first[r] = (int64_t)(first > window_start ? at_first : before_window);
	group->chain_last[r] = entry->prefix > 0 ? (int64_t)at_prefix : 0;
	group->chain_write[r] = (int64_t)at_prefix;
	if (step->chain_end && step->chain_end[r] != 0)
		group->chain_last[r] = step->chain_end[r];
}

/* What the input check compares with: the token that the request holds where that is known, else
 * the token itself, which is then not checked. */
static void expect_input(kvc_guard *guard, struct kvc__guard_group *group)
{
	struct kvc__step *step = &guard->step;
	int64_t token;

	memcpy(group->write_tokens, step->tokens,
	        (size_t)step->token_count * sizeof(*group->write_tokens));
	for (int64_t r = 0; r < step->request_count; r++)
		for (int64_t i = step->offsets[r]; i < step->offsets[r + 1]; i++)
			if (kvc__step_token(step, group, r, step->expected_positions[i], &token))
				group->write_tokens[i] = token;
}

void kvc__step_expect(kvc_guard *guard, struct kvc__guard_group *group)
{
	struct kvc__step *step = &guard->step;

	for (int64_t r = 0; r < step->request_count; r++) {
		group->start_again[r] = 0;
		group->chain_again[r] = 0;
		group->chain_first[r] = 0;
		group->chain_last[r] = 0;
		group->chain_write[r] = 0;
		if (step->entries[r].live)
			expect_chains(guard, group, r);
	}
	if (step->token_count > 0)
		expect_input(guard, group);
}
