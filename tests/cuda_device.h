/*
 * A GPU for tests: memory and copies through the driver API, opened at run time. Where there is no
 * GPU, or the library was built without CUDA, cuda_device_open() returns 0 and the test skips.
 */
#ifndef KVC_TESTS_CUDA_DEVICE_H
#define KVC_TESTS_CUDA_DEVICE_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long cuda_pointer;

static struct {
	int (*init)(unsigned);
	int (*device_get)(int *, int);
	int (*retain)(void **, int);
	int (*set_current)(void *);
	int (*allocate)(cuda_pointer *, size_t);
	int (*release)(cuda_pointer);
	int (*to_device)(cuda_pointer, const void *, size_t);
	int (*to_host)(void *, cuda_pointer, size_t);
	int (*fill)(cuda_pointer, unsigned char, size_t);
	int (*synchronize)(void);
	int (*stream_create)(void **, unsigned);
	int (*stream_destroy)(void *);
	int (*stream_synchronize)(void *);
	int (*capture_begin)(void *, int);
	int (*capture_end)(void *, void **);
	int (*graph_instantiate)(void **, void *, unsigned long long);
	int (*graph_launch)(void *, void *);
	int (*graph_exec_destroy)(void *);
	int (*graph_destroy)(void *);
} cuda;

static const struct {
	const char *name;
	void *slot;
} cuda_symbols[] = {
	{ "cuInit", &cuda.init },
	{ "cuDeviceGet", &cuda.device_get },
	{ "cuDevicePrimaryCtxRetain", &cuda.retain },
	{ "cuCtxSetCurrent", &cuda.set_current },
	{ "cuMemAlloc_v2", &cuda.allocate },
	{ "cuMemFree_v2", &cuda.release },
	{ "cuMemcpyHtoD_v2", &cuda.to_device },
	{ "cuMemcpyDtoH_v2", &cuda.to_host },
	{ "cuMemsetD8_v2", &cuda.fill },
	{ "cuCtxSynchronize", &cuda.synchronize },
	{ "cuStreamCreate", &cuda.stream_create },
	{ "cuStreamDestroy_v2", &cuda.stream_destroy },
	{ "cuStreamSynchronize", &cuda.stream_synchronize },
	{ "cuStreamBeginCapture_v2", &cuda.capture_begin },
	{ "cuStreamEndCapture", &cuda.capture_end },
	{ "cuGraphInstantiateWithFlags", &cuda.graph_instantiate },
	{ "cuGraphLaunch", &cuda.graph_launch },
	{ "cuGraphExecDestroy", &cuda.graph_exec_destroy },
	{ "cuGraphDestroy", &cuda.graph_destroy },
};

static int cuda_device_open(void)
{
	static int state = -1;
	void *library, *context = NULL;
	int device = 0;

	if (state >= 0)
		return state;
	state = 0;
	library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library)
		return 0;
	for (size_t i = 0; i < sizeof(cuda_symbols) / sizeof(*cuda_symbols); i++) {
		void *symbol = dlsym(library, cuda_symbols[i].name);
		if (!symbol)
			return 0;
		memcpy(cuda_symbols[i].slot, &symbol, sizeof(symbol));
	}
	state = cuda.init(0) == 0 && cuda.device_get(&device, 0) == 0 &&
	        cuda.retain(&context, device) == 0 && cuda.set_current(context) == 0;
	return state;
}

static inline void cuda_must(int result, const char *what)
{
	if (result != 0) {
		fprintf(stderr, "%s: CUDA error %d\n", what, result);
		exit(1);
	}
}

/* KVC_TEST_SMALL=1 is for compute-sanitizer, under which a call takes a hundred times as long: fewer
 * random cases, and none of the largest. */
static inline int cuda_is_small(void)
{
	return getenv("KVC_TEST_SMALL") != NULL;
}

static inline int cuda_rounds(int rounds)
{
	return cuda_is_small() ? (rounds + 19) / 20 : rounds;
}

/* A host buffer and its twin on the device, red zones around the twin. */
#define CUDA_RED_ZONE 4096
#define CUDA_RED_BYTE 0xD7
struct cuda_twin {
	char *host;
	cuda_pointer base;
	size_t bytes;
};

static inline void *cuda_twin_device(const struct cuda_twin *twin)
{
	return (void *)(uintptr_t)(twin->base + CUDA_RED_ZONE);
}

static inline struct cuda_twin cuda_twin_make(void *host, size_t bytes)
{
	struct cuda_twin twin = { host, 0, bytes };
	cuda_must(cuda.allocate(&twin.base, bytes + 2 * CUDA_RED_ZONE), "allocate");
	cuda_must(cuda.fill(twin.base, CUDA_RED_BYTE, bytes + 2 * CUDA_RED_ZONE), "fill");
	if (bytes)
		cuda_must(cuda.to_device(twin.base + CUDA_RED_ZONE, host, bytes), "copy in");
	return twin;
}

/* Bytes of the red zones that were written over. */
static inline int cuda_twin_trespassed(const struct cuda_twin *twin)
{
	unsigned char zones[2 * CUDA_RED_ZONE];
	int count = 0;
	cuda_must(cuda.to_host(zones, twin->base, CUDA_RED_ZONE), "zone");
	cuda_must(cuda.to_host(zones + CUDA_RED_ZONE, twin->base + CUDA_RED_ZONE + twin->bytes,
	                  CUDA_RED_ZONE),
	        "zone");
	for (int i = 0; i < 2 * CUDA_RED_ZONE; i++)
		count += zones[i] != CUDA_RED_BYTE;
	return count;
}

/* Compare the twin with the host buffer byte by byte: the first difference, or -1. */
static inline int64_t cuda_twin_differs(const struct cuda_twin *twin)
{
	char *copy = malloc(twin->bytes ? twin->bytes : 1);
	int64_t at = -1;
	if (twin->bytes)
		cuda_must(cuda.to_host(copy, twin->base + CUDA_RED_ZONE, twin->bytes), "copy out");
	for (size_t i = 0; at < 0 && i < twin->bytes; i++)
		if (copy[i] != twin->host[i])
			at = (int64_t)i;
	free(copy);
	return at;
}

static inline void cuda_twin_free(struct cuda_twin *twin)
{
	if (twin->base)
		cuda_must(cuda.release(twin->base), "release");
	twin->base = 0;
}

/* A stream that captures, then the graph of what was enqueued. */
struct cuda_graph {
	void *stream, *graph, *exec;
};

static inline struct cuda_graph cuda_graph_begin(void)
{
	struct cuda_graph g = { NULL, NULL, NULL };

	cuda_must(cuda.stream_create(&g.stream, 1), "stream");
	cuda_must(cuda.capture_begin(g.stream, 0), "capture");
	return g;
}

static inline void cuda_graph_end(struct cuda_graph *g)
{
	cuda_must(cuda.capture_end(g->stream, &g->graph), "capture end");
	cuda_must(cuda.graph_instantiate(&g->exec, g->graph, 0), "instantiate");
}

static inline void cuda_graph_replay(const struct cuda_graph *g)
{
	/* Its stream waits for no other, and copies to the device may still be under way. */
	cuda_must(cuda.synchronize(), "contents");
	cuda_must(cuda.graph_launch(g->exec, g->stream), "launch");
	cuda_must(cuda.stream_synchronize(g->stream), "replay");
}

static inline void cuda_graph_free(struct cuda_graph *g)
{
	cuda.graph_exec_destroy(g->exec);
	cuda.graph_destroy(g->graph);
	cuda.stream_destroy(g->stream);
}

#endif
