/*
 * The prefix cache: a tree of blocks, found by the trace's hash ids. A node is one full block with
 * its pages; the tree holds each of them once. Least recently used leaves go first.
 */
#ifndef KVCANARY_CLI_REPLAY_PREFIX_TREE_H
#define KVCANARY_CLI_REPLAY_PREFIX_TREE_H

#include "replay/allocator.h"

#include <stdbool.h>
#include <stdint.h>

/* Index of the root, which has no pages; it is nobody's child and is never removed. */
#define PREFIX_ROOT 0

struct prefix_node {
	int64_t hash_id;
	int32_t parent; /* -1: this node is not in use */
	int32_t depth;  /* blocks before this one + 1; the root has 0 */
	int32_t children;
	int32_t bucket_next;
	int32_t older; /* neighbours in the order of use, -1 at the ends */
	int32_t newer;
};

struct prefix_tree {
	struct allocator *allocator;
	struct prefix_node *nodes;
	int32_t *pages; /* [node_capacity][block_pages] */
	int32_t *buckets;
	bool *blocked; /* [node_capacity] scratch */
	int32_t node_capacity;
	int32_t node_count; /* in use, the root included */
	int32_t bucket_count;
	int32_t block_pages;
	int32_t free_node; /* list through bucket_next */
	int32_t oldest;
	int32_t newest;
	/* Told of each page that a node takes (+1) or gives up (-1); may be NULL. */
	void (*watch)(void *context, int32_t page, int change);
	void *watch_context;
};

/* Returns false if memory is short; then *out needs no close. The allocator is borrowed. */
bool prefix_tree_open(struct prefix_tree *out, struct allocator *allocator, int32_t block_pages);
void prefix_tree_close(struct prefix_tree *tree);

/* The child of 'parent' with this hash id, -1 if there is none. */
int32_t prefix_tree_find(const struct prefix_tree *tree, int32_t parent, int64_t hash_id);

/* Pages of a node, block_pages of them. */
const int32_t *prefix_tree_pages(const struct prefix_tree *tree, int32_t node);

/* Move a node to the young end of the order of use. */
void prefix_tree_touch(struct prefix_tree *tree, int32_t node);

/* A new leaf that holds 'pages'. The child must not exist. -1 if the tree is full. */
int32_t prefix_tree_insert(
        struct prefix_tree *tree, int32_t parent, int64_t hash_id, const int32_t *pages);

/* Nobody but the tree holds the node's pages. */
bool prefix_tree_idle(const struct prefix_tree *tree, int32_t node);

/* Remove the oldest idle leaf; returns its index, -1 if there is none. */
int32_t prefix_tree_evict(struct prefix_tree *tree);

/* Remove a node and all below it, in use or not; returns how many. */
int32_t prefix_tree_remove(struct prefix_tree *tree, int32_t node);

/* Blocks that eviction could free now, one after the other: idle, and so is all below them. */
int32_t prefix_tree_idle_count(struct prefix_tree *tree);

#endif
