/*
 * A random engine and random faults. The engine admits requests with shared prefixes (of earlier
 * steps and of the same one), prefills them in chunks, decodes, preempts, aborts, rejects drafts,
 * evicts and reuses slots. Without a fault the guard must stay silent, whatever the engine does.
 * With one it must find it at the next read of what the fault touched, if first reads and the
 * budget reach it, and nothing else may be named.
 */
#include "guard_engine.h"
#include "seeded.h"

enum { PAGE = 4, PAGES = ENGINE_SLOTS / PAGE, CACHED = 12, STEPS = 60 };

/* A request that runs. Its row's table holds 'held' columns. */
struct running {
	int64_t id; /* 0 = the row is free */
	int64_t seed;
	int64_t prompt; /* tokens to prefill, then it decodes */
	int64_t done;   /* positions in the cache */
	int64_t held;
	int64_t name_space;
	int finishes; /* with the step that is being made */
};

/* A finished prefix that others may start from; holds a reference on its pages. */
struct cached {
	int64_t seed;
	int64_t name_space;
	int64_t length; /* whole pages; 0 = free */
	int64_t since;  /* the step that writes it */
	int32_t slots[ENGINE_COLUMNS];
};

struct world {
	struct engine *e;
	struct seeded random;
	struct running running[ENGINE_ROWS];
	struct cached cached[CACHED];
	int32_t references[PAGES]; /* page 0 is the reserved one */
	int64_t next_id;
	int same_step_sharing;
	int64_t hits, preemptions, aborts; /* what happened, so that a test can see it did */
};

/* ---- pages ---- */

/* A page to whoever asks, -1 if there is none. Its records are voided, as for any new owner. */
static int64_t take_page(struct world *w)
{
	int64_t start = seeded_in(&w->random, 1, PAGES - 1);

	for (int64_t n = 0; n < PAGES; n++) {
		int64_t page = (start + n) % PAGES, slots[PAGE], count = PAGE;
		if (page == 0 || w->references[page] > 0)
			continue;
		w->references[page] = 1;
		for (int64_t i = 0; i < PAGE; i++)
			slots[i] = page * PAGE + i;
		kvc_tensor tensor = engine_vector(slots, &count);
		expect_ok(kvc_guard_void(w->e->guard, w->e->full, &tensor, NULL));
		if (w->e->window >= 0) {
			for (int64_t i = 0; i < PAGE; i++)
				slots[i] = w->e->mapping[slots[i]];
			expect_ok(kvc_guard_void(w->e->guard, w->e->window, &tensor, NULL));
		}
		return page;
	}
	return -1;
}

static void refer(struct world *w, const int32_t *slots, int64_t length, int32_t amount)
{
	for (int64_t p = 0; p < length; p += PAGE)
		w->references[slots[p] / PAGE] += amount;
}

/* Make row hold at least 'length' columns; 0 if there are no pages. */
static int hold(struct world *w, int64_t row, int64_t length)
{
	struct running *run = &w->running[row];

	while (run->held < length) {
		int64_t page = take_page(w);
		if (page < 0)
			return 0;
		engine_place(w->e, row, run->held, run->held + PAGE, page * PAGE);
		run->held += PAGE;
	}
	return 1;
}

static void release(struct world *w, int64_t row)
{
	refer(w, w->e->table[row], w->running[row].held, -1);
	w->running[row].held = 0;
	w->running[row].done = 0;
	/* The row keeps what it said: engines do not clean up. */
}

/* ---- the prefix cache ---- */

static void cache_prefix(struct world *w, int64_t row, int64_t length, int64_t since)
{
	struct running *run = &w->running[row];
	struct cached *entry = &w->cached[seeded_in(&w->random, 0, CACHED - 1)];

	length -= length % PAGE;
	if (length == 0 || length > run->held)
		return;
	if (entry->length > 0)
		refer(w, entry->slots, entry->length, -1);
	entry->seed = run->seed;
	entry->name_space = run->name_space;
	entry->length = length;
	entry->since = since;
	memcpy(entry->slots, w->e->table[row], (size_t)length * sizeof(int32_t));
	refer(w, entry->slots, length, 1);
}

static void evict_one(struct world *w)
{
	struct cached *entry = &w->cached[seeded_in(&w->random, 0, CACHED - 1)];

	if (entry->length > 0)
		refer(w, entry->slots, entry->length, -1);
	entry->length = 0;
}

/* Let the row start from a cached prefix of its tokens, if there is one. */
static void match_prefix(struct world *w, int64_t row)
{
	struct running *run = &w->running[row];

	for (int i = 0; i < CACHED; i++) {
		struct cached *entry = &w->cached[i];
		if (entry->length == 0 || entry->seed != run->seed ||
		        entry->name_space != run->name_space ||
		        (entry->since == w->e->step && !w->same_step_sharing))
			continue;
		int64_t length = entry->length;
		while (length >= run->prompt)
			length -= PAGE;
		if (length <= 0)
			continue;
		memcpy(w->e->table[row], entry->slots, (size_t)length * sizeof(int32_t));
		refer(w, entry->slots, length, 1);
		run->held = run->done = length;
		w->hits++;
		return;
	}
}

/* ---- requests ---- */

/* Returns its row, 0 if all are taken. */
static int64_t admit(struct world *w)
{
	for (int64_t row = 1; row < ENGINE_ROWS; row++) {
		struct running *run = &w->running[row];
		if (run->id != 0)
			continue;
		run->id = ++w->next_id;
		run->seed = seeded_in(&w->random, 1, 3);
		run->prompt = seeded_in(&w->random, 1, 30);
		run->name_space = seeded_in(&w->random, 0, 1) * 9;
		run->done = run->held = 0;
		engine_tokens(w->e, row, run->seed);
		match_prefix(w, row);
		return row;
	}
	return 0;
}

/* Add what the row does in this step. */
static void schedule(struct world *w, int64_t row)
{
	struct engine *e = w->e;
	struct running *run = &w->running[row];
	int64_t left = run->prompt - run->done;
	int64_t extend = left > 0 ? seeded_in(&w->random, 1, left < 12 ? left : 12) : 1;
	int drafts = left <= 0 && seeded_one_in(&w->random, 4);

	if (drafts)
		extend = 3;
	if (run->done + extend > ENGINE_COLUMNS - PAGE || !hold(w, row, run->done + extend)) {
		release(w, row);
		if (seeded_one_in(&w->random, 2)) {
			w->aborts++;
			run->id = 0;
		} else {
			w->preemptions++; /* it comes back under its id */
			match_prefix(w, row);
		}
		return;
	}
	int64_t first = e->token_count;
	engine_add(e, row, run->id, run->done, extend);
	e->namespaces[e->request_count - 1] = run->name_space;
	if (drafts) { /* one is accepted, the others are not the request's */
		e->valid_lens[e->request_count - 1] = run->done + 1;
		for (int64_t i = 1; i < extend; i++)
			e->tokens[first + i] = 29000 + i;
		extend = 1;
	}
	run->done += extend;
	if (!drafts && w->same_step_sharing && seeded_one_in(&w->random, 2))
		cache_prefix(w, row, run->done < run->prompt ? run->done : run->prompt, e->step);
}

static void make_batch(struct world *w)
{
	if (seeded_one_in(&w->random, 2))
		admit(w);
	if (seeded_one_in(&w->random, 5))
		evict_one(w);
	for (int64_t row = 1; row < ENGINE_ROWS; row++) {
		struct running *run = &w->running[row];
		if (run->id == 0 || seeded_one_in(&w->random, 4))
			continue;
		schedule(w, row);
		run->finishes =
		        run->id != 0 && run->done > run->prompt && seeded_one_in(&w->random, 6);
	}
	/* A late one may start from what the others write in this very step. */
	int64_t row = seeded_one_in(&w->random, 2) ? admit(w) : 0;
	if (row > 0)
		schedule(w, row);
}

static void run_batch(struct world *w)
{
	make_batch(w);
	assert_true(w->e->token_count < ENGINE_TOKENS - 16);
	engine_step(w->e);
	for (int64_t row = 1; row < ENGINE_ROWS; row++) {
		struct running *run = &w->running[row];
		if (!run->finishes)
			continue;
		cache_prefix(w, row, run->prompt, w->e->step - 1); /* the prompt stays cached */
		release(w, row);
		run->id = 0;
		run->finishes = 0;
	}
}

static struct world *new_world(uint64_t seed, struct engine_options options)
{
	struct world *w = calloc(1, sizeof(*w));

	assert_non_null(w);
	w->random.state = seed;
	w->e = engine_open(options);
	w->same_step_sharing = seeded_one_in(&w->random, 2);
	return w;
}

static void end_world(struct world *w)
{
	engine_close(w->e);
	free(w);
}

static struct engine_options random_options(struct seeded *random)
{
	static const int64_t budgets[] = { -1, 0, 5, 4096 };
	struct engine_options options = engine_defaults();

	options.stamping = seeded_one_in(random, 2) ? KVC_STAMP_CLEAR : KVC_STAMP_COMPUTE;
	options.coverage = (int)seeded_in(random, KVC_COVERAGE_NONE, KVC_COVERAGE_ALL);
	options.budget = budgets[seeded_in(random, 0, 3)];
	options.check_finite = seeded_one_in(random, 2);
	options.expected = seeded_one_in(random, 2);
	options.k_only = seeded_one_in(random, 4);
	options.window = seeded_one_in(random, 3) ? 7 : 0;
	options.page_size = seeded_one_in(random, 2) ? PAGE : 1;
	return options;
}

/* Full and window slots one to one here: the window pool gives nothing back early. */
static void map_one_to_one(struct world *w)
{
	for (int64_t slot = 0; slot < ENGINE_SLOTS; slot++)
		w->e->mapping[slot] = slot == 0 ? 0 : ENGINE_SLOTS - slot;
}

static void sound_engines_raise_no_alarm(void **state)
{
	struct seeded random = seeded_start("sound_engines_raise_no_alarm");
	int64_t hits = 0, preemptions = 0, aborts = 0, excluded = 0, verified = 0;

	(void)state;
	for (int round = 0; round < 60; round++) {
		uint64_t seed = seeded_next(&random);
		struct world *w = new_world(seed, random_options(&random));
		map_one_to_one(w);
		for (int n = 0; n < STEPS; n++) {
			run_batch(w);
			if (w->e->finding_count) {
				print_error(
				        "round %d, seed %" PRIu64 ", step %d\n", round, seed, n);
				engine_expect_clean(w->e);
			}
		}
		hits += w->hits, preemptions += w->preemptions, aborts += w->aborts;
		excluded += engine_stats(w->e).slots_excluded;
		verified += engine_stats(w->e).slots_verified;
		end_world(w);
	}
	/* All of it must have happened for the silence to mean anything. */
	printf("%d prefix hits, %d preemptions, %d aborts, %d reads of slots just being written, "
	       "%d slots verified\n",
	        (int)hits, (int)preemptions, (int)aborts, (int)excluded, (int)verified);
	assert_true(hits > 100 && preemptions > 20 && aborts > 20 && excluded > 0);
}

/* ---- faults ---- */

/* What a fault did: the slot that must be named, by whom it is read. */
struct fault {
	int64_t row;
	int64_t position;
	int64_t slot;
	int64_t reasons; /* at least these */
};

static void flip_bit(struct world *w, struct fault *fault)
{
	uint8_t *bytes = (uint8_t *)w->e->k[seeded_in(&w->random, 0, 1)][fault->slot];
	int64_t bit = seeded_in(&w->random, 0, ENGINE_HEADS * ENGINE_DIM * 32 - 1);

	bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
	fault->reasons = KVC_REASON_VERIFY_REAL_KV_HASH;
}

static void zero_slot(struct world *w, struct fault *fault)
{
	memset(w->e->k[0][fault->slot], 0, sizeof(w->e->k[0][fault->slot]));
	fault->reasons = KVC_REASON_VERIFY_REAL_KV_HASH;
}

/* The table names a slot that nobody has written. */
static void misdirect_entry(struct world *w, struct fault *fault)
{
	int64_t page = take_page(w);

	if (page < 0)
		page = 0; /* then the reserved one */
	fault->slot = page * PAGE + (page ? seeded_in(&w->random, 0, PAGE - 1) : 0);
	fault->reasons = page ? KVC_REASON_NEVER_STAMPED : KVC_REASON_SLOT_RANGE;
	w->e->table[fault->row][fault->position] = (int32_t)fault->slot;
}

/* The table names another of the request's own slots. */
static void repeat_entry(struct world *w, struct fault *fault)
{
	int64_t other = fault->position > 0 ? fault->position - 1 : fault->position + 1;

	fault->slot = w->e->table[fault->row][other];
	fault->reasons = KVC_REASON_VERIFY_POSITION;
	w->e->table[fault->row][fault->position] = (int32_t)fault->slot;
}

static void void_slot(struct world *w, struct fault *fault)
{
	int64_t one = 1;
	kvc_tensor slots = engine_vector(&fault->slot, &one);

	expect_ok(kvc_guard_void(w->e->guard, w->e->full, &slots, NULL));
	fault->reasons = KVC_REASON_NEVER_STAMPED;
}

/* A row with at least two cached positions, at a random one of them. 0 if there is none. */
static int aim(struct world *w, struct fault *fault)
{
	for (int64_t n = 0, row = seeded_in(&w->random, 1, ENGINE_ROWS - 1); n < ENGINE_ROWS;
	        n++, row = row % (ENGINE_ROWS - 1) + 1) {
		struct running *run = &w->running[row];
		if (run->id == 0 || run->done < 3)
			continue;
		fault->row = row;
		fault->position = seeded_in(&w->random, 0, run->done - 1);
		fault->slot = w->e->table[row][fault->position];
		return 1;
	}
	return 0;
}

/* A step in which the aimed row alone reads everything it has. */
static void read_row(struct world *w, int64_t row)
{
	w->e->request_count = w->e->token_count = 0;
	engine_add(w->e, row, w->running[row].id, w->running[row].done, 0);
	w->e->namespaces[0] = w->running[row].name_space;
	engine_step(w->e);
}

static void every_fault_is_found(void **state)
{
	static void (*const faults[])(struct world *, struct fault *) = { flip_bit, zero_slot,
		misdirect_entry, repeat_entry, void_slot };
	struct seeded random = seeded_start("every_fault_is_found");
	int injected = 0;

	(void)state;
	for (int round = 0; round < 250; round++) {
		struct engine_options options = random_options(&random);
		uint64_t seed = seeded_next(&random);
		options.coverage = KVC_COVERAGE_ALL;
		options.window = 0;
		if (options.budget == 0 || options.budget == 5)
			options.budget = 4096;
		struct world *w = new_world(seed, options);
		struct fault fault = { 0 };
		int64_t steps = seeded_in(&random, 3, 20), kind = seeded_in(&random, 0, 4);
		for (int64_t n = 0; n < steps; n++) {
			run_batch(w);
			engine_expect_clean(w->e);
		}
		if (!aim(w, &fault)) {
			end_world(w);
			continue;
		}
		faults[kind](w, &fault);
		read_row(w, fault.row);
		int found = 0;
		for (int64_t i = 0; i < w->e->finding_count; i++) {
			const kvc_finding *f = &w->e->findings[i];
			assert_int_equal(f->victim_request, w->running[fault.row].id);
			assert_in_range(f->victim_position,
			        fault.position - (kind == 3 && fault.position > 0),
			        fault.position + 1);
			found |= f->violation.slot == fault.slot &&
			         f->victim_position == fault.position &&
			         (f->violation.reasons & fault.reasons) == fault.reasons;
		}
		if (!found) {
			print_error("round %d, seed %" PRIu64 ", fault %d at slot %d\n", round,
			        seed, (int)kind, (int)fault.slot);
			engine_print(w->e);
		}
		assert_true(found);
		injected++;
		end_world(w);
	}
	assert_in_range(injected, 100, 250);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sound_engines_raise_no_alarm),
		cmocka_unit_test(every_fault_is_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
