// The KV bytes behind slots: reading them in (head, dim) order whatever the layout, and hashing them
// as src/cpu/fingerprint_portable.c does.
//
// Three ways to a fingerprint, each for what it is good at:
//
//   kvc__hash_thread   a thread a slot: short rows (partial coverage, small heads)
//   kvc__hash_block    xxh3: the warps of a block share (slot, source) pairs; a warp has a row of
//                      2 KiB in flight while it works on the one before
//   kvc__fold_warp     splitmix, which is serial in a source: a lane a slot, 32 slots at once, rows
//                      staged through shared memory 256 bytes at a time so that loads stay coalesced
//
// Layouts whose pieces of 16 bytes lie together take wide loads; everything else is put together
// from words or bytes. A gather table is not looked at by the host, so an offset that leaves its row
// reads as zeros here.
#ifndef KVC__CUDA_SLOT_BYTES_CUH
#define KVC__CUDA_SLOT_BYTES_CUH

#include "cpu/hash.h"
#include "cuda/canary_params.h"
#include "cuda/device.cuh"
#include "cuda/xxh3.cuh"

// A slot of a strip: where its bytes begin, or its row and its part of the gather table.
struct kvc__place {
	const char *at;
	const int32_t *units;
};

static __device__ __forceinline__ kvc__place kvc__place_of(const kvc__strip &strip, int64_t slot)
{
	kvc__place place;
	int64_t row = slot, in_page = 0;
	if (strip.page_shift != 255) {
		row = slot >> strip.page_shift;
		in_page = slot & (((int64_t)1 << strip.page_shift) - 1);
	} else {
		row = slot / strip.page_size;
		in_page = slot - row * strip.page_size;
	}
	place.at = strip.base + row * strip.row_stride + in_page * strip.slot_stride;
	place.units = strip.gather ? strip.gather + in_page * strip.units : nullptr;
	return place;
}

// ---- any layout ----

// Up to 8 bytes of a slot from byte 'first' on, in runs of 'run'; 0 past 'bytes'. Little-endian.
static __device__ __noinline__ uint64_t kvc__word_anywhere(const kvc__strip *strip, const char *at,
        const int32_t *units, uint32_t run, uint32_t bytes, uint32_t first)
{
	uint64_t word = 0;
	for (uint32_t done = 0; done < 8 && first + done < bytes;) {
		uint32_t i = first + done, index = i / run, left = run - i % run;
		int64_t offset = (int64_t)index * strip->run_stride + i % run;
		const char *from = at + offset;
		if (units) {
			int64_t unit = (int64_t)1 << strip->unit_shift, inside = offset & (unit - 1);
			int64_t start = __ldg(units + (offset >> strip->unit_shift));
			bool lost = start < 0 || start > strip->row_stride - unit;
			from = lost ? nullptr : at + start + inside;
			left = (uint32_t)(unit - inside < left ? unit - inside : left);
		}
		left = bytes - i < left ? bytes - i : left;
		if (done == 0 && left >= 8 && from && ((uintptr_t)from & 7) == 0)
			return __ldg((const unsigned long long *)from);
		left = left < 8 - done ? left : 8 - done;
		for (uint32_t k = 0; k < left; k++)
			word |= (uint64_t)(from ? (uint8_t)__ldg(from + k) : 0) << 8 * (done + k);
		done += left;
	}
	return word;
}

// What xxh3.cuh asks of bytes, for one thread.
struct kvc__slot_reader {
	const kvc__strip &strip;
	kvc__place place;

	__device__ __forceinline__ uint64_t word(int at) const
	{
		if (strip.is_wide && strip.run == strip.bytes)
			return __ldg((const unsigned long long *)(place.at + at));
		if (strip.is_wide)
			return __ldg((const unsigned long long *)(place.at +
			                                          (uint32_t)at / strip.run * strip.run_stride +
			                                          (uint32_t)at % strip.run));
		return kvc__word_anywhere(
		        &strip, place.at, place.units, strip.run, strip.bytes, (uint32_t)at);
	}
	__device__ __forceinline__ uint32_t byte(int at) const
	{
		return (uint32_t)(word_of(at) & 0xFF);
	}

private:
	// Not word(): 'at' may be odd here.
	__device__ __forceinline__ uint64_t word_of(int at) const
	{
		return kvc__word_anywhere(
		        &strip, place.at, place.units, strip.run, strip.bytes, (uint32_t)at);
	}
};

static __device__ __noinline__ uint64_t kvc__xxh3_thread(const kvc__strip *strip, int64_t slot)
{
	kvc__slot_reader reader = { *strip, kvc__place_of(*strip, slot) };
	return kvc__xxh3_short(reader, (int)strip->bytes);
}

// The commonest short row: one piece of 16 bytes.
static __device__ __forceinline__ uint64_t kvc__xxh3_piece(uint4 v)
{
	uint64_t a = (uint64_t)v.y << 32 | v.x, b = (uint64_t)v.w << 32 | v.z;
	uint64_t lo = a ^ (kvc__secret_at(24) ^ kvc__secret_at(32));
	uint64_t hi = b ^ (kvc__secret_at(40) ^ kvc__secret_at(48));
	return kvc__xxh3_avalanche(16 + kvc__swap64(lo) + hi + kvc__fold128(lo, hi));
}

// The fingerprint of a slot whose only strip is such a piece.
static __device__ __forceinline__ uint64_t kvc__hash_piece(
        const kvc__strips_head &head, const kvc__strip &strip, uint4 v)
{
	if (!head.is_splitmix)
		return kvc__fingerprint_share(kvc__xxh3_piece(v), strip.id);
	uint64_t fold = kvc__splitmix64((uint64_t)v.y << 32 | v.x);
	return kvc__splitmix64(kvc__splitmix64(fold ^ ((uint64_t)v.w << 32 | v.z)));
}

static __device__ __noinline__ uint64_t kvc__fold_thread(const kvc__strip *strip, int64_t slot)
{
	kvc__place place = kvc__place_of(*strip, slot);
	uint64_t fold = 0;
	for (uint32_t at = 0; at < strip->bytes; at += 8)
		fold = kvc__splitmix64(fold ^ kvc__word_anywhere(strip, place.at, place.units,
		                                      strip->run, strip->bytes, at));
	return fold;
}

// The fingerprint of a slot by one thread; xxh3 rows no longer than KVC__XXH_SHORT.
static __device__ __noinline__ uint64_t kvc__hash_thread(
        const kvc__strips_head &head, const kvc__strip *strips, int64_t slot)
{
	uint64_t all = 0;
	for (int s = 0; s < head.hashed; s++) {
		const kvc__strip &strip = strips[s];
		bool piece = strip.is_wide && strip.bytes == 16 && strip.run == 16;
		uint4 v = make_uint4(0, 0, 0, 0);
		if (piece)
			v = __ldg((const uint4 *)kvc__place_of(strip, slot).at);
		if (head.is_splitmix) {
			uint64_t fold;
			if (piece)
				fold = kvc__splitmix64(kvc__splitmix64((uint64_t)v.y << 32 | v.x) ^
				                       ((uint64_t)v.w << 32 | v.z));
			else
				fold = kvc__fold_thread(&strip, slot);
			all = kvc__splitmix64(all ^ fold);
		} else {
			uint64_t hash = piece ? kvc__xxh3_piece(v) : kvc__xxh3_thread(&strip, slot);
			all += kvc__fingerprint_share(hash, strip.id);
		}
	}
	return all;
}

// How many slots a block takes at once, at most 'most': all blocks as many rounds of as many.
static __device__ __forceinline__ int kvc__batch_size(int64_t count, int most)
{
	int64_t each = (count + gridDim.x - 1) / gridDim.x;
	int64_t rounds = (each + most - 1) / most;
	return rounds == 0 ? 1 : (int)((each + rounds - 1) / rounds);
}

// ---- xxh3, a warp a row ----

// Lane l works on 16-byte piece l % 4 of stripes l / 4 + 8 h of every 2 KiB. Of the eight
// accumulators it keeps number 2 (l % 4) + (l / 4) % 2, in the sum over all lanes that have it.
struct kvc__row_hasher {
	uint64_t stripe[4]; // secret of its first and its second stripe in a block of 16
	uint64_t last[2];   // of the row's last stripe
	uint64_t scramble;
	uint64_t start;
	uint64_t sum;
	int lane;

	__device__ __forceinline__ void load_secret()
	{
		lane = threadIdx.x % 32;
		int piece = 16 * (lane % 4), row = 8 * (lane / 4), odd = lane / 4 % 2;
		for (int i = 0; i < 2; i++) {
			stripe[i] = kvc__secret_at(row + piece + 8 * i);
			stripe[2 + i] = kvc__secret_at(row + 64 + piece + 8 * i);
			last[i] = kvc__secret_at(192 - 64 - 7 + piece + 8 * i);
		}
		scramble = kvc__secret_at(192 - 64 + piece + 8 * odd);
		kvc__xxh3_pair pair;
		pair.start(lane);
		start = odd ? pair.b : pair.a;
		sum = start;
	}

	// Up to 16 stripes of block 'block' of a row of 'stripes' stripes, the last one not counted:
	// v[0], v[1] are this lane's pieces. A stripe past the last one adds nothing.
	__device__ __forceinline__ void add_block(const uint4 *v, int block, int stripes)
	{
		kvc__xxh3_pair part = { 0, 0 };
		int row = 16 * block + lane / 4;
		if (16 * block + 16 <= stripes) {
			part.add(v[0], stripe);
			part.add(v[1], stripe + 2);
		} else {
			for (int h = 0; h < 2; h++) {
				uint64_t secret[2];
				secret[0] = row + 8 * h == stripes ? last[0] : stripe[2 * h];
				secret[1] = row + 8 * h == stripes ? last[1] : stripe[2 * h + 1];
				if (row + 8 * h <= stripes)
					part.add(v[h], secret);
			}
		}
		// Neighbours trade: one keeps the even accumulator, the other the odd one.
		bool odd = lane / 4 % 2;
		uint64_t kept = odd ? part.b : part.a, given = odd ? part.a : part.b;
		kept += __shfl_xor_sync(KVC__FULL_WARP, given, 4);
		kept += __shfl_xor_sync(KVC__FULL_WARP, kept, 8);
		kept += __shfl_xor_sync(KVC__FULL_WARP, kept, 16);
		sum += kept;
		if (block < stripes / 16)
			sum = (sum ^ sum >> 47 ^ scramble) * KVC__PRIME32_1;
	}

	// The hash of the row; the next one can begin.
	__device__ __forceinline__ uint64_t finish(uint32_t bytes)
	{
		bool odd = lane / 4 % 2;
		int piece = 16 * (lane % 4);
		uint64_t other = __shfl_xor_sync(KVC__FULL_WARP, sum, 4);
		uint64_t a = odd ? other : sum, b = odd ? sum : other;
		uint64_t h = kvc__fold128(
		        a ^ kvc__secret_at(11 + piece), b ^ kvc__secret_at(11 + piece + 8));
		h += __shfl_xor_sync(KVC__FULL_WARP, h, 1);
		h += __shfl_xor_sync(KVC__FULL_WARP, h, 2);
		sum = start;
		return kvc__xxh3_avalanche(h + (uint64_t)bytes * KVC__PRIME64_1);
	}
};

#define KVC__CHUNK_BYTES 2048

// This lane's pieces of 2 KiB of a row of more than KVC__XXH_SHORT bytes.
template <bool WIDE>
static __device__ __forceinline__ void kvc__load_chunk(
        const kvc__strip &strip, const kvc__place &place, int chunk, int lane, uint4 *v)
{
	int stripes = (int)((strip.bytes - 1) / KVC__XXH_STRIPE);
#pragma unroll
	for (int h = 0; h < 4; h++) {
		int row = 32 * chunk + lane / 4 + 8 * h;
		uint32_t at = row < stripes ? (uint32_t)row * KVC__XXH_STRIPE
		                            : strip.bytes - KVC__XXH_STRIPE;
		at += 16 * (lane % 4);
		v[h] = make_uint4(0, 0, 0, 0);
		if (row > stripes)
			continue;
		if (WIDE) {
			const char *from = place.at + at;
			if (strip.run != strip.bytes)
				from = place.at + at / strip.run * strip.run_stride + at % strip.run;
			v[h] = __ldg((const uint4 *)from);
		} else {
			uint64_t a = kvc__word_anywhere(
			        &strip, place.at, place.units, strip.run, strip.bytes, at);
			uint64_t b = kvc__word_anywhere(
			        &strip, place.at, place.units, strip.run, strip.bytes, at + 8);
			v[h] = make_uint4((uint32_t)a, (uint32_t)(a >> 32), (uint32_t)b, (uint32_t)(b >> 32));
		}
	}
}

// Add a chunk to the hash; true when the row is done.
static __device__ __forceinline__ bool kvc__add_chunk(
        kvc__row_hasher &hasher, uint32_t bytes, int chunk, const uint4 *v)
{
	int stripes = (int)((bytes - 1) / KVC__XXH_STRIPE);
	hasher.add_block(v, 2 * chunk, stripes);
	if (32 * chunk + 16 <= stripes)
		hasher.add_block(v + 2, 2 * chunk + 1, stripes);
	return 32 * chunk + 32 > stripes;
}

// One row after the other, for a warp. The same in every lane.
template <bool WIDE>
static __device__ __forceinline__ uint64_t kvc__xxh3_row(
        kvc__row_hasher &hasher, const kvc__strip &strip, int64_t slot)
{
	kvc__place place = kvc__place_of(strip, slot);
	bool done = false;
	for (int chunk = 0; !done; chunk++) {
		uint4 v[4];
		kvc__load_chunk<WIDE>(strip, place, chunk, hasher.lane, v);
		done = kvc__add_chunk(hasher, strip.bytes, chunk, v);
	}
	return hasher.finish(strip.bytes);
}

// A row that no wide loads can take.
static __device__ __noinline__ uint64_t kvc__xxh3_row_slow(const kvc__strip *strip, int64_t slot)
{
	kvc__row_hasher hasher;
	hasher.load_secret();
	return kvc__xxh3_row<false>(hasher, *strip, slot);
}

static __device__ __forceinline__ bool kvc__is_fast_row(const kvc__strip &strip)
{
	return strip.is_wide && strip.bytes > KVC__XXH_SHORT;
}

// Where a warp is in its list of (slot, strip) pairs and in the row of the current one.
struct kvc__row_cursor {
	int entry, strip, chunk;
	kvc__place place;
};

// Go on to the next pair that has bytes to hash, strip by strip; strip == count at the end.
static __device__ __forceinline__ void kvc__seek_row(kvc__row_cursor &at,
        const kvc__strips_head &head, const kvc__strip *strips, const int64_t *slots, int entries)
{
	int warps = blockDim.x / 32;
	at.chunk = 0;
	while (at.strip < head.hashed) {
		if (!kvc__is_fast_row(strips[at.strip])) {
			at.strip++;
			continue;
		}
		while (at.entry >= entries && at.strip < head.hashed) {
			at.entry -= entries;
			do
				at.strip++;
			while (at.strip < head.hashed && !kvc__is_fast_row(strips[at.strip]));
		}
		if (at.strip >= head.hashed)
			return;
		int64_t slot = slots[at.entry];
		if (slot >= 0) {
			at.place = kvc__place_of(strips[at.strip], slot);
			return;
		}
		at.entry += warps;
	}
}

// xxh3 fingerprints of slots[0 .. entries) (shared memory; a negative one is left out), added to
// sums (shared memory, zeroed). By the whole block; a barrier is needed before and after.
static __device__ __forceinline__ void kvc__hash_block(const kvc__strips_head &head,
        const kvc__strip *strips, const int64_t *slots, unsigned long long *sums, int entries)
{
	for (int s = 0; s < head.hashed; s++) {
		if (kvc__is_fast_row(strips[s]))
			continue;
		bool is_short = strips[s].bytes <= KVC__XXH_SHORT;
		int step = is_short ? blockDim.x : blockDim.x / 32;
		for (int e = is_short ? threadIdx.x : threadIdx.x / 32; e < entries; e += step) {
			if (slots[e] < 0)
				continue;
			uint64_t hash = is_short ? kvc__xxh3_thread(&strips[s], slots[e])
			                         : kvc__xxh3_row_slow(&strips[s], slots[e]);
			if (is_short || threadIdx.x % 32 == 0)
				atomicAdd(&sums[e], (unsigned long long)kvc__fingerprint_share(
				                            hash, strips[s].id));
		}
	}
	if (head.all_short || entries == 0)
		return;
	kvc__row_hasher hasher;
	hasher.load_secret();
	kvc__row_cursor now, next;
	uint4 v[4], ahead[4];
	now.entry = threadIdx.x / 32;
	now.strip = 0;
	kvc__seek_row(now, head, strips, slots, entries);
	if (now.strip < head.hashed)
		kvc__load_chunk<true>(strips[now.strip], now.place, 0, hasher.lane, v);
	while (now.strip < head.hashed) {
		const kvc__strip &strip = strips[now.strip];
		next = now;
		next.chunk++;
		if (32 * next.chunk > (int)((strip.bytes - 1) / KVC__XXH_STRIPE)) {
			next.entry += blockDim.x / 32;
			kvc__seek_row(next, head, strips, slots, entries);
		}
		if (next.strip < head.hashed)
			kvc__load_chunk<true>(strips[next.strip], next.place, next.chunk, hasher.lane, ahead);
		if (kvc__add_chunk(hasher, strip.bytes, now.chunk, v)) {
			uint64_t share = kvc__fingerprint_share(hasher.finish(strip.bytes), strip.id);
			if (hasher.lane == 0)
				atomicAdd(&sums[now.entry], (unsigned long long)share);
		}
		now = next;
#pragma unroll
		for (int h = 0; h < 4; h++)
			v[h] = ahead[h];
	}
}

// ---- splitmix, a lane a slot ----

#define KVC__TILE_STAGE (32 * KVC__TILE_PITCH)

static __device__ __forceinline__ void kvc__copy_piece(void *to, const void *from)
{
	uint32_t shared = (uint32_t)__cvta_generic_to_shared(to);
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
}

// Start copying one tile of all 32 rows: half a warp a row, 16 bytes a lane.
static __device__ __forceinline__ void kvc__stage_tile(
        const kvc__strip &strip, const char *at, int tile, char *stage)
{
	int lane = threadIdx.x % 32;
	uint32_t offset = (uint32_t)tile * KVC__TILE_BYTES + 16 * (lane % 16);
	bool inside = offset < strip.bytes;
	int64_t from = offset;
	if (inside && strip.run != strip.bytes)
		from = offset / strip.run * strip.run_stride + offset % strip.run;
#pragma unroll
	for (int j = 0; j < 16; j++) {
		int row = 2 * j + lane / 16;
		const char *base = (const char *)__shfl_sync(
		        KVC__FULL_WARP, (unsigned long long)(uintptr_t)at, row);
		if (base && inside)
			kvc__copy_piece(stage + row * KVC__TILE_PITCH + 16 * (lane % 16), base + from);
	}
	asm volatile("cp.async.commit_group;" ::: "memory");
}

static __device__ __forceinline__ uint64_t kvc__fold_tiles(
        const kvc__strip &strip, int64_t slot, char *stages)
{
	const char *at = slot < 0 ? nullptr : kvc__place_of(strip, slot).at;
	int tiles = (int)((strip.bytes + KVC__TILE_BYTES - 1) / KVC__TILE_BYTES);
	const char *row = stages + threadIdx.x % 32 * KVC__TILE_PITCH;
	uint64_t fold = 0;

	kvc__stage_tile(strip, at, 0, stages);
	for (int tile = 0; tile < tiles; tile++) {
		if (tile + 1 < tiles) {
			kvc__stage_tile(strip, at, tile + 1, stages + (tile + 1) % 2 * KVC__TILE_STAGE);
			asm volatile("cp.async.wait_group 1;" ::: "memory");
		} else {
			asm volatile("cp.async.wait_group 0;" ::: "memory");
		}
		__syncwarp();
		const uint4 *words = (const uint4 *)(row + tile % 2 * KVC__TILE_STAGE);
		uint32_t left = strip.bytes - (uint32_t)tile * KVC__TILE_BYTES;
		int pieces = (int)((left < KVC__TILE_BYTES ? left : KVC__TILE_BYTES) / 16);
		if (slot >= 0) {
#pragma unroll 4
			for (int i = 0; i < pieces; i++) {
				uint4 v = words[i];
				fold = kvc__splitmix64(fold ^ ((uint64_t)v.y << 32 | v.x));
				fold = kvc__splitmix64(fold ^ ((uint64_t)v.w << 32 | v.z));
			}
		}
		__syncwarp();
	}
	return fold;
}

// The splitmix fingerprint of this lane's slot (negative: none, gives 0). By a whole warp, with
// KVC__TILE_WARP_BYTES of shared memory of its own, 16-byte aligned.
static __device__ __forceinline__ uint64_t kvc__fold_warp(
        const kvc__strips_head &head, const kvc__strip *strips, int64_t slot, char *stages)
{
	uint64_t all = 0;
	for (int s = 0; s < head.hashed; s++) {
		uint64_t fold = 0;
		if (strips[s].is_wide)
			fold = kvc__fold_tiles(strips[s], slot, stages);
		else if (slot >= 0)
			fold = kvc__fold_thread(&strips[s], slot);
		__syncwarp();
		all = kvc__splitmix64(all ^ fold);
	}
	return slot < 0 ? 0 : all;
}

// ---- one slot by one warp, where there are too few slots for anything else ----

#define KVC__ALONE_BYTES 2048

// splitmix: rows are staged by the warp, a lane a source folds; then the sources in order.
static __device__ __forceinline__ uint64_t kvc__fold_alone(
        const kvc__strips_head &head, const kvc__strip *strips, int64_t slot, char *stage)
{
	int lane = threadIdx.x % 32;
	uint64_t fold = 0;
	uint32_t longest = 0, chunk = KVC__ALONE_BYTES;
	for (int s = 0; s < head.hashed; s++)
		longest = strips[s].bytes > longest ? strips[s].bytes : longest;
	while ((int)(KVC__ALONE_BYTES / chunk) < head.hashed)
		chunk /= 2;
	for (uint32_t begin = 0; begin < longest; begin += chunk) {
		for (int s = 0; s < head.hashed; s++) {
			const kvc__strip &strip = strips[s];
			kvc__place place = kvc__place_of(strip, slot);
			uint32_t left = strip.bytes > begin ? strip.bytes - begin : 0;
			left = left < chunk ? left : chunk;
			char *to = stage + (uint32_t)s * chunk;
#pragma unroll 4
			for (uint32_t i = 16 * lane; i < left; i += 512) {
				uint32_t at = begin + i;
				if (strip.is_wide) {
					const char *from = place.at + at;
					if (strip.run != strip.bytes)
						from = place.at + at / strip.run * strip.run_stride + at % strip.run;
					kvc__copy_piece(to + i, from);
				} else {
					for (int k = 0; k < 16; k += 8)
						*(uint64_t *)(to + i + k) = kvc__word_anywhere(&strip, place.at,
						        place.units, strip.run, strip.bytes, at + k);
				}
			}
		}
		asm volatile("cp.async.commit_group;" ::: "memory");
		asm volatile("cp.async.wait_group 0;" ::: "memory");
		__syncwarp();
		if (lane < head.hashed && strips[lane].bytes > begin) {
			uint32_t left = strips[lane].bytes - begin;
			int words = (int)(((left < chunk ? left : chunk) + 7) / 8);
			const uint64_t *word = (const uint64_t *)(stage + (uint32_t)lane * chunk);
#pragma unroll 8
			for (int i = 0; i < words; i++)
				fold = kvc__splitmix64(fold ^ word[i]);
		}
		__syncwarp();
	}
	uint64_t all = 0;
	for (int s = 0; s < head.hashed; s++)
		all = kvc__splitmix64(all ^ __shfl_sync(KVC__FULL_WARP, fold, s));
	return all;
}

static __device__ __forceinline__ uint64_t kvc__xxh3_alone(
        const kvc__strips_head &head, const kvc__strip *strips, int64_t slot)
{
	kvc__row_hasher hasher;
	uint64_t all = 0;
	hasher.load_secret();
	for (int s = 0; s < head.hashed; s++) {
		const kvc__strip &strip = strips[s];
		uint64_t hash = 0;
		if (strip.bytes <= KVC__XXH_SHORT) {
			if (hasher.lane == 0)
				hash = kvc__xxh3_thread(&strip, slot);
			hash = __shfl_sync(KVC__FULL_WARP, hash, 0);
		} else if (strip.is_wide) {
			hash = kvc__xxh3_row<true>(hasher, strip, slot);
		} else {
			hash = kvc__xxh3_row_slow(&strip, slot);
		}
		all += kvc__fingerprint_share(hash, strip.id);
	}
	return all;
}

// The fingerprint of one slot; at most KVC__STRIPS_SMALL strips. All lanes get it. 'stage':
// KVC__ALONE_BYTES of shared memory for splitmix.
static __device__ __forceinline__ uint64_t kvc__hash_alone(
        const kvc__strips_head &head, const kvc__strip *strips, int64_t slot, char *stage)
{
	return head.is_splitmix ? kvc__fold_alone(head, strips, slot, stage)
	                        : kvc__xxh3_alone(head, strips, slot);
}

// ---- values that are not finite ----

// Elements of a word that are NaN or infinite, as a mask with one bit (the lowest) an element.
static __device__ __forceinline__ uint64_t kvc__nonfinite_in(uint64_t word, int kind)
{
	uint64_t mask, low;
	int top; // bits above an element's lowest that the mask reaches
	switch (kind) {
	case KVC__FINITE_F64:
		return (word & 0x7FF0000000000000ull) == 0x7FF0000000000000ull;
	case KVC__FINITE_F32:
		mask = 0x7F8000007F800000ull, low = 0x0000000100000001ull, top = 32;
		break;
	case KVC__FINITE_F16:
		mask = 0x7C007C007C007C00ull, low = 0x0001000100010001ull, top = 16;
		break;
	case KVC__FINITE_BF16:
		mask = 0x7F807F807F807F80ull, low = 0x0001000100010001ull, top = 16;
		break;
	case KVC__FINITE_E4M3:
		mask = 0x7F7F7F7F7F7F7F7Full, low = 0x0101010101010101ull, top = 8;
		break;
	case KVC__FINITE_E5M2:
		mask = 0x7C7C7C7C7C7C7C7Cull, low = 0x0101010101010101ull, top = 8;
		break;
	default:
		return 0;
	}
	// A bit of the mask that is missing leaves something in the element; its sign bit is free, so
	// adding all ones below it carries exactly where something was left.
	uint64_t missing = ~word & mask, free = low << (top - 1);
	uint64_t carried = (missing + (free - low)) & free;
	return (free & ~carried) >> (top - 1);
}

static __device__ __forceinline__ uint64_t kvc__finite_word(
        const kvc__strip &strip, const kvc__place &place, uint32_t at)
{
	return kvc__word_anywhere(
	        &strip, place.at, place.units, strip.finite_run, strip.finite_bytes, at);
}

// Is there one in this lane's words of the slot? Lanes of a warp share a row.
static __device__ __forceinline__ bool kvc__nonfinite_lane(const kvc__strip &strip, int64_t slot)
{
	kvc__place place = kvc__place_of(strip, slot);
	bool found = false;
	for (uint32_t at = 8 * (threadIdx.x % 32); at < strip.finite_bytes && !found; at += 256)
		found = kvc__nonfinite_in(kvc__finite_word(strip, place, at), strip.finite_kind) != 0;
	return found;
}

#endif
