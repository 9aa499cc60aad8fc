/* The prefix cache; prefix_tree.h says what each function promises. */
#include "replay/prefix_tree.h"

#include <stdlib.h>
#include <string.h>

static int32_t bucket_of(const struct prefix_tree *tree, int32_t parent, int64_t hash_id)
{
	uint64_t x = (uint64_t)hash_id * 0x9E3779B97F4A7C15u + (uint64_t)(uint32_t)parent;

	x = (x ^ x >> 32) * 0xD6E8FEB86659FD93u;
	return (int32_t)((x ^ x >> 32) % (uint64_t)tree->bucket_count);
}

static void unlink_use(struct prefix_tree *tree, int32_t index)
{
	struct prefix_node *node = &tree->nodes[index];

	if (node->older >= 0)
		tree->nodes[node->older].newer = node->newer;
	else
		tree->oldest = node->newer;
	if (node->newer >= 0)
		tree->nodes[node->newer].older = node->older;
	else
		tree->newest = node->older;
}

static void append_use(struct prefix_tree *tree, int32_t index)
{
	struct prefix_node *node = &tree->nodes[index];

	node->older = tree->newest;
	node->newer = -1;
	if (tree->newest >= 0)
		tree->nodes[tree->newest].newer = index;
	else
		tree->oldest = index;
	tree->newest = index;
}

bool prefix_tree_open(struct prefix_tree *out, struct allocator *allocator, int32_t block_pages)
{
	int32_t capacity = allocator->page_count / block_pages + 2;
	size_t count = (size_t)capacity;

	*out = (struct prefix_tree){ .allocator = allocator, .block_pages = block_pages };
	out->node_capacity = capacity;
	out->bucket_count = 2 * capacity + 1;
	out->nodes = calloc(count, sizeof(*out->nodes));
	out->pages = calloc(count * (size_t)block_pages, sizeof(*out->pages));
	out->buckets = malloc((size_t)out->bucket_count * sizeof(*out->buckets));
	out->blocked = calloc(count, sizeof(*out->blocked));
	if (!out->nodes || !out->pages || !out->buckets || !out->blocked) {
		prefix_tree_close(out);
		return false;
	}
	memset(out->buckets, 0xFF, (size_t)out->bucket_count * sizeof(*out->buckets));
	out->node_count = 1;
	out->oldest = out->newest = -1;
	out->free_node = -1;
	for (int32_t i = capacity - 1; i > PREFIX_ROOT; i--) {
		out->nodes[i].parent = -1;
		out->nodes[i].bucket_next = out->free_node;
		out->free_node = i;
	}
	return true;
}

void prefix_tree_close(struct prefix_tree *tree)
{
	free(tree->nodes);
	free(tree->pages);
	free(tree->buckets);
	free(tree->blocked);
	*tree = (struct prefix_tree){ 0 };
}

int32_t prefix_tree_find(const struct prefix_tree *tree, int32_t parent, int64_t hash_id)
{
	int32_t index = tree->buckets[bucket_of(tree, parent, hash_id)];

	while (index >= 0 &&
	        (tree->nodes[index].parent != parent || tree->nodes[index].hash_id != hash_id))
		index = tree->nodes[index].bucket_next;
	return index;
}

const int32_t *prefix_tree_pages(const struct prefix_tree *tree, int32_t node)
{
	return tree->pages + (size_t)node * (size_t)tree->block_pages;
}

void prefix_tree_touch(struct prefix_tree *tree, int32_t node)
{
	if (node == PREFIX_ROOT)
		return;
	unlink_use(tree, node);
	append_use(tree, node);
}

int32_t prefix_tree_insert(
        struct prefix_tree *tree, int32_t parent, int64_t hash_id, const int32_t *pages)
{
	int32_t index = tree->free_node;
	int32_t bucket = bucket_of(tree, parent, hash_id);
	struct prefix_node *node;

	if (index < 0)
		return -1;
	node = &tree->nodes[index];
	tree->free_node = node->bucket_next;
	*node = (struct prefix_node){ .hash_id = hash_id,
		.parent = parent,
		.depth = tree->nodes[parent].depth + 1,
		.bucket_next = tree->buckets[bucket] };
	tree->buckets[bucket] = index;
	tree->nodes[parent].children++;
	tree->node_count++;
	append_use(tree, index);
	memcpy(tree->pages + (size_t)index * (size_t)tree->block_pages, pages,
	        (size_t)tree->block_pages * sizeof(*pages));
	for (int32_t i = 0; i < tree->block_pages; i++) {
		allocator_hold(tree->allocator, pages[i]);
		if (tree->watch)
			tree->watch(tree->watch_context, pages[i], 1);
	}
	return index;
}

bool prefix_tree_idle(const struct prefix_tree *tree, int32_t node)
{
	/* Requests hold whole blocks, so the first page speaks for all. */
	return tree->allocator->refs[prefix_tree_pages(tree, node)[0]] <= 1;
}

/* Give up one node that has no children. */
static void drop(struct prefix_tree *tree, int32_t index)
{
	struct prefix_node *node = &tree->nodes[index];
	int32_t *link = &tree->buckets[bucket_of(tree, node->parent, node->hash_id)];

	while (*link != index)
		link = &tree->nodes[*link].bucket_next;
	*link = node->bucket_next;
	unlink_use(tree, index);
	tree->nodes[node->parent].children--;
	tree->node_count--;
	node->parent = -1;
	node->bucket_next = tree->free_node;
	tree->free_node = index;
	for (int32_t i = 0; i < tree->block_pages; i++) {
		int32_t page = prefix_tree_pages(tree, index)[i];
		allocator_release(tree->allocator, page);
		if (tree->watch)
			tree->watch(tree->watch_context, page, -1);
	}
}

int32_t prefix_tree_evict(struct prefix_tree *tree)
{
	for (int32_t i = tree->oldest; i >= 0; i = tree->nodes[i].newer) {
		if (tree->nodes[i].children > 0 || !prefix_tree_idle(tree, i))
			continue;
		drop(tree, i);
		return i;
	}
	return -1;
}

int32_t prefix_tree_remove(struct prefix_tree *tree, int32_t node)
{
	int32_t removed = 1;

	for (int32_t i = 1; tree->nodes[node].children > 0 && i < tree->node_capacity; i++)
		if (tree->nodes[i].parent == node)
			removed += prefix_tree_remove(tree, i);
	drop(tree, node);
	return removed;
}

int32_t prefix_tree_idle_count(struct prefix_tree *tree)
{
	int32_t count = 0;

	memset(tree->blocked, 0, (size_t)tree->node_capacity * sizeof(*tree->blocked));
	for (int32_t i = tree->oldest; i >= 0; i = tree->nodes[i].newer)
		if (!prefix_tree_idle(tree, i))
			for (int32_t up = i; up != PREFIX_ROOT && !tree->blocked[up];
			        up = tree->nodes[up].parent)
				tree->blocked[up] = true;
	for (int32_t i = tree->oldest; i >= 0; i = tree->nodes[i].newer)
		count += !tree->blocked[i];
	return count;
}
