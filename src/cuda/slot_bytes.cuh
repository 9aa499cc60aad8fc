// The KV bytes behind slots: reading them in (head, dim) order whatever the layout, and hashing them
// as src/cpu/fingerprint_portable.c does.
//
// Three ways to a fingerprint, each for what it is good at:
//
//   kvc__hash_thread   a thread a slot: short rows (partial coverage, small heads)
//   kvc__xxh3_warp, _plain   a lane has a slot; all lanes read two rows at a time, 4 KiB in flight, and add
//                      up; each lane finishes its own hash. Few instructions a row: with more of
//                      them the arithmetic, not the memory, would be the limit
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
	if (strip.page_shift == 0) {
		place.at = strip.base + slot * strip.row_stride;
		place.units = strip.gather;
		return place;
	}
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

// How many slots a warp takes at once: all warps as many rounds of as many.
static __device__ __forceinline__ int kvc__batch_size(int64_t count, int64_t warps)
{
	int64_t each = (count + warps - 1) / warps, rounds = (each + 31) / 32;
	return rounds == 0 ? 1 : (int)((each + rounds - 1) / rounds);
}

// ---- xxh3, a warp one or two rows at a time ----

// Lane l works on 16-byte piece l % 4 of stripes l / 4 and l / 4 + 8 of every block of XXH3. Of the
// eight accumulators of a row it keeps number 2 (l % 4) + (l / 4) % 2, of two rows that of row
// (l / 8) % 2: what the lanes have added up is traded until each has one whole sum.
struct kvc__row_keys {
	uint64_t stripe[4]; // secret of its first and its second stripe in a block
	uint64_t last[2];   // of the row's last stripe
	uint64_t scramble;
	uint64_t start;

	__device__ __forceinline__ void load()
	{
		int lane = threadIdx.x % 32, piece = 2 * (lane % 4), row = lane / 4, odd = row % 2;
		for (int i = 0; i < 2; i++) {
			stripe[i] = kvc__xxh_secret[row + piece + i];
			stripe[2 + i] = kvc__xxh_secret[row + 8 + piece + i];
			last[i] = kvc__xxh_last[piece + i];
		}
		scramble = kvc__xxh_secret[16 + piece + odd];
		kvc__xxh3_pair pair;
		pair.start(lane);
		start = odd ? pair.b : pair.a;
	}
};

// What a block adds to this lane's accumulator. v[row][h]: its pieces of stripes l / 4 + 8 h of a
// chunk of two blocks. The last stripe, number 'stripes', has a key of its own; behind it is nothing.
template <int ROWS>
static __device__ __forceinline__ uint64_t kvc__block_sum(
        const kvc__row_keys &keys, const uint4 (&v)[ROWS][4], int half, int block, int stripes)
{
	int lane = threadIdx.x % 32;
	bool full = 16 * block + 16 <= stripes, odd = lane & 4, second = lane & 8;
	kvc__xxh3_pair part[ROWS];
	uint64_t kept[ROWS];
#pragma unroll
	for (int r = 0; r < ROWS; r++)
		part[r].a = part[r].b = 0;
#pragma unroll
	for (int h = 0; h < 2; h++) {
		int stripe = 16 * block + lane / 4 + 8 * h;
		bool is_last = !full && stripe == stripes;
		uint64_t key[2] = { is_last ? keys.last[0] : keys.stripe[2 * h],
			is_last ? keys.last[1] : keys.stripe[2 * h + 1] };
		if (full || stripe <= stripes)
#pragma unroll
			for (int r = 0; r < ROWS; r++)
				part[r].add(v[r][2 * half + h], key);
	}
#pragma unroll
	for (int r = 0; r < ROWS; r++) {
		uint64_t given = odd ? part[r].a : part[r].b;
		kept[r] = (odd ? part[r].b : part[r].a) + __shfl_xor_sync(KVC__FULL_WARP, given, 4);
	}
	uint64_t mine = ROWS == 2 && second ? kept[ROWS - 1] : kept[0];
	uint64_t given = ROWS == 2 && !second ? kept[ROWS - 1] : kept[0];
	mine += __shfl_xor_sync(KVC__FULL_WARP, given, 8);
	return mine + __shfl_xor_sync(KVC__FULL_WARP, mine, 16);
}

// Where this lane's pieces of a chunk (2 KiB, four stripes apart by eight) lie in a slot.
static __device__ __forceinline__ void kvc__piece_offsets(
        const kvc__strip &strip, int chunk, int64_t (&offset)[4])
{
	int lane = threadIdx.x % 32;
#pragma unroll
	for (int h = 0; h < 4; h++) {
		uint32_t at = (uint32_t)(32 * chunk + lane / 4 + 8 * h) * KVC__XXH_STRIPE;
		at = (at < strip.bytes - KVC__XXH_STRIPE ? at : strip.bytes - KVC__XXH_STRIPE) +
		     16 * (lane % 4);
		offset[h] = strip.run == strip.bytes
		                    ? (int64_t)at
		                    : at / strip.run * strip.run_stride + at % strip.run;
	}
}

// This lane's accumulator after whole rows that wide loads can take; at[row]: their slots.
template <int ROWS>
static __device__ __forceinline__ uint64_t kvc__sum_rows(const kvc__row_keys &keys,
        const kvc__strip &strip, const char *const (&at)[ROWS], int64_t (&offset)[4])
{
	int stripes = (int)((strip.bytes - 1) / KVC__XXH_STRIPE), stripe = threadIdx.x % 32 / 4;
	uint64_t sum = keys.start;
	for (int chunk = 0; 32 * chunk <= stripes; chunk++) {
		uint4 v[ROWS][4];
		if (stripes >= 32)
			kvc__piece_offsets(strip, chunk, offset);
#pragma unroll
		for (int r = 0; r < ROWS; r++)
#pragma unroll
			for (int h = 0; h < 4; h++)
				v[r][h] = 32 * chunk + 8 * h + stripe <= stripes
				                  ? __ldg((const uint4 *)(at[r] + offset[h]))
				                  : make_uint4(0, 0, 0, 0);
		if (KVC__MOVES_ONLY) {
#pragma unroll
			for (int i = 0; i < 4 * ROWS; i++)
				sum ^= kvc__xor_words(v[i / 4][i % 4]);
			continue;
		}
#pragma unroll
		for (int half = 0; half < 2; half++) {
			int block = 2 * chunk + half;
			if (16 * block > stripes)
				break;
			sum += kvc__block_sum<ROWS>(keys, v, half, block, stripes);
			if (block < stripes / 16)
				sum = (sum ^ sum >> 47 ^ keys.scramble) * KVC__PRIME32_1;
		}
	}
	return sum;
}

// Read once, and not kept in L1.
static __device__ __forceinline__ uint4 kvc__load_once(const char *from)
{
	uint4 v;
	asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
	             : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
	             : "l"(from));
	return v;
}

// Two rows of whole KiB whose bytes lie together, which is what nearly all rows are: every block is
// full, and only its place in the row says which stripe is the last. 'last': the keys of a lane's second
// stripe in the row's last block.
static __device__ __forceinline__ uint64_t kvc__sum_plain_rows(const kvc__row_keys &keys,
        const uint64_t (&last)[2], uint32_t bytes, const char *a, const char *b)
{
	bool odd = threadIdx.x & 4, second = threadIdx.x & 8;
	uint64_t sum = keys.start;
	a += 16 * (threadIdx.x % 32);
	b += 16 * (threadIdx.x % 32);
	for (uint32_t left = bytes; left > 0;) {
		uint4 v[2][4];
		bool two = left > KVC__XXH_BLOCK;
#pragma unroll
		for (int h = 0; h < 4; h++)
			if (h < 2 || two) {
				v[0][h] = kvc__load_once(a + 512 * h);
				v[1][h] = kvc__load_once(b + 512 * h);
			}
		a += 2 * KVC__XXH_BLOCK;
		b += 2 * KVC__XXH_BLOCK;
		if (KVC__MOVES_ONLY) {
#pragma unroll
			for (int h = 0; h < 4; h++)
				if (h < 2 || two)
					sum ^= kvc__xor_words(v[0][h]) ^ kvc__xor_words(v[1][h]);
			left -= two ? 2 * KVC__XXH_BLOCK : KVC__XXH_BLOCK;
			continue;
		}
#pragma unroll
		for (int half = 0; half < 2; half++) {
			if (half == 1 && !two)
				break;
			bool ends = left == KVC__XXH_BLOCK;
			uint64_t key[2] = { ends ? last[0] : keys.stripe[2],
				ends ? last[1] : keys.stripe[3] };
			uint64_t kept[2];
#pragma unroll
			for (int r = 0; r < 2; r++) {
				kvc__xxh3_pair part = { 0, 0 };
				part.add(v[r][2 * half], keys.stripe);
				part.add(v[r][2 * half + 1], key);
				uint64_t given = odd ? part.a : part.b;
				kept[r] = (odd ? part.b : part.a) +
				          __shfl_xor_sync(KVC__FULL_WARP, given, 4);
			}
			uint64_t mine = second ? kept[1] : kept[0], given = second ? kept[0] : kept[1];
			mine += __shfl_xor_sync(KVC__FULL_WARP, given, 8);
			sum += mine + __shfl_xor_sync(KVC__FULL_WARP, mine, 16);
			left -= KVC__XXH_BLOCK;
			if (!ends)
				sum = (sum ^ sum >> 47 ^ keys.scramble) * KVC__PRIME32_1;
		}
	}
	return sum;
}

// The hash of a row from its eight accumulators, by one thread.
static __device__ __forceinline__ uint64_t kvc__finish_row(const uint64_t *sums, uint32_t bytes)
{
	uint64_t h = (uint64_t)bytes * KVC__PRIME64_1;
#pragma unroll
	for (int i = 0; i < 8; i += 2)
		h += kvc__fold128(sums[i] ^ kvc__xxh_merge[i], sums[i + 1] ^ kvc__xxh_merge[i + 1]);
	return kvc__xxh3_avalanche(h);
}

// The hash of this lane's row (slot negative: none): all lanes add up two rows at a time, then each
// finishes its own. PLAIN: as kvc__sum_plain_rows wants them. 'sums': KVC__SUMS_WARP words of shared
// memory of this warp.
template <bool PLAIN>
static __device__ __forceinline__ uint64_t kvc__xxh3_rows(
        const kvc__row_keys &keys, const kvc__strip &strip, int64_t slot, uint64_t *sums)
{
	int lane = threadIdx.x % 32, accumulator = 2 * (lane % 4) + lane / 4 % 2;
	uint64_t at = slot < 0 ? 0 : (uint64_t)(uintptr_t)kvc__place_of(strip, slot).at;
	unsigned waiting = __ballot_sync(KVC__FULL_WARP, slot >= 0);
	uint64_t last[2] = { lane < 28 ? keys.stripe[2] : keys.last[0],
		lane < 28 ? keys.stripe[3] : keys.last[1] };
	uint64_t moved = 0;
	int64_t offset[4];
	if (!PLAIN)
		kvc__piece_offsets(strip, 0, offset);
	while (waiting) {
		int first = __ffs((int)waiting) - 1;
		waiting &= waiting - 1;
		int second = waiting ? __ffs((int)waiting) - 1 : first;
		waiting &= waiting - 1;
		const char *const rows[2] = {
			(const char *)(uintptr_t)__shfl_sync(KVC__FULL_WARP, at, first),
			(const char *)(uintptr_t)__shfl_sync(KVC__FULL_WARP, at, second)
		};
		uint64_t sum = PLAIN ? kvc__sum_plain_rows(keys, last, strip.bytes, rows[0], rows[1])
		                     : kvc__sum_rows<2>(keys, strip, rows, offset);
		moved ^= sum;
		if (!KVC__MOVES_ONLY && lane < 16)
			sums[(lane & 8 ? second : first) * KVC__SUMS_PITCH + accumulator] = sum;
	}
	if (KVC__MOVES_ONLY)
		return moved;
	__syncwarp();
	uint64_t hash = 0;
	if (slot >= 0)
		hash = kvc__finish_row(sums + lane * KVC__SUMS_PITCH, strip.bytes);
	__syncwarp();
	return hash;
}

// A row that no wide loads can take, for a warp; all lanes get the hash.
struct kvc__piece_reader {
	const kvc__strip *strip;
	kvc__place place;

	__device__ __forceinline__ uint64_t word(uint32_t at) const
	{
		return kvc__word_anywhere(
		        strip, place.at, place.units, strip->run, strip->bytes, at);
	}
	__device__ __forceinline__ uint4 piece(int64_t at) const
	{
		uint64_t a = word((uint32_t)at), b = word((uint32_t)at + 8);
		return make_uint4((uint32_t)a, (uint32_t)(a >> 32), (uint32_t)b, (uint32_t)(b >> 32));
	}
};

static __device__ __noinline__ uint64_t kvc__xxh3_row_slow(const kvc__strip *strip, int64_t slot)
{
	kvc__piece_reader reader = { strip, kvc__place_of(*strip, slot) };
	kvc__xxh3_lane secret;
	secret.load(threadIdx.x % 32);
	return kvc__xxh3_long(reader, strip->bytes, secret, threadIdx.x % 32);
}

// The xxh3 fingerprint of this lane's slot (negative: none, gives 0). By a whole warp, with
// KVC__SUMS_WARP words of shared memory of its own.
static __device__ __forceinline__ uint64_t kvc__xxh3_warp(
        const kvc__strips_head &head, const kvc__strip *strips, int64_t slot, uint64_t *sums)
{
	uint64_t all = 0;
	kvc__row_keys keys;
	if (!head.all_short)
		keys.load();
	for (int s = 0; s < head.hashed; s++) {
		const kvc__strip &strip = strips[s];
		uint64_t hash = 0;
		if (strip.bytes <= KVC__XXH_SHORT) {
			if (slot >= 0)
				hash = kvc__xxh3_thread(&strip, slot);
		} else if (strip.is_wide) {
			hash = kvc__xxh3_rows<false>(keys, strip, slot, sums);
		} else {
#pragma unroll 1
			for (int e = 0; e < 32; e++) {
				int64_t other = __shfl_sync(KVC__FULL_WARP, slot, e);
				uint64_t found = other < 0 ? 0 : kvc__xxh3_row_slow(&strip, other);
				hash = (int)(threadIdx.x % 32) == e ? found : hash;
			}
		}
		all += kvc__fingerprint_share(hash, strip.id);
	}
	return slot < 0 ? 0 : all;
}

// The same where all strips are plain (head.all_plain): no calls, so that nothing is put aside.
static __device__ __forceinline__ uint64_t kvc__xxh3_plain(const kvc__strips_head &head,
        const kvc__strip *strips, const kvc__row_keys &keys, int64_t slot, uint64_t *sums)
{
	uint64_t all = 0;
	for (int s = 0; s < head.hashed; s++)
		all += kvc__fingerprint_share(
		        kvc__xxh3_rows<true>(keys, strips[s], slot, sums), strips[s].id);
	return slot < 0 ? 0 : all;
}

// ---- splitmix, a lane a slot ----

#define KVC__TILE_STAGE (32 * KVC__TILE_PITCH)

static __device__ __forceinline__ void kvc__copy_piece(void *to, const void *from)
{
	uint32_t shared = (uint32_t)__cvta_generic_to_shared(to);
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
}

// Start copying one tile of all 32 rows, 16 bytes a lane, neighbouring lanes a row.
static __device__ __forceinline__ void kvc__stage_tile(
        const kvc__strip &strip, const char *at, int tile, char *stage)
{
	constexpr int LANES = KVC__TILE_BYTES / 16;
	int lane = threadIdx.x % 32;
	uint32_t offset = (uint32_t)tile * KVC__TILE_BYTES + 16 * (lane % LANES);
	bool inside = offset < strip.bytes;
	int64_t from = offset;
	if (inside && strip.run != strip.bytes)
		from = offset / strip.run * strip.run_stride + offset % strip.run;
#pragma unroll
	for (int row = lane / LANES; row < 32; row += 32 / LANES) {
		const char *base = (const char *)__shfl_sync(
		        KVC__FULL_WARP, (unsigned long long)(uintptr_t)at, row);
		if (base && inside)
			kvc__copy_piece(stage + row * KVC__TILE_PITCH + 16 * (lane % LANES), base + from);
	}
}

static __device__ __forceinline__ uint64_t kvc__fold_tiles(
        const kvc__strip &strip, int64_t slot, char *stages)
{
	const char *at = slot < 0 ? nullptr : kvc__place_of(strip, slot).at;
	int tiles = (int)((strip.bytes + KVC__TILE_BYTES - 1) / KVC__TILE_BYTES);
	const char *row = stages + threadIdx.x % 32 * KVC__TILE_PITCH;
	uint64_t fold = 0;

	for (int tile = 0; tile < KVC__TILE_STAGES - 1; tile++) {
		if (tile < tiles)
			kvc__stage_tile(strip, at, tile, stages + tile * KVC__TILE_STAGE);
		asm volatile("cp.async.commit_group;" ::: "memory");
	}
	for (int tile = 0; tile < tiles; tile++) {
		int next = tile + KVC__TILE_STAGES - 1;
		if (next < tiles)
			kvc__stage_tile(strip, at, next, stages + next % KVC__TILE_STAGES * KVC__TILE_STAGE);
		asm volatile("cp.async.commit_group;" ::: "memory");
		asm volatile("cp.async.wait_group %0;" ::"n"(KVC__TILE_STAGES - 1) : "memory");
		__syncwarp();
		const uint4 *words = (const uint4 *)(row + tile % KVC__TILE_STAGES * KVC__TILE_STAGE);
		uint32_t left = strip.bytes - (uint32_t)tile * KVC__TILE_BYTES;
		int pieces = (int)((left < KVC__TILE_BYTES ? left : KVC__TILE_BYTES) / 16);
		if (slot >= 0 && !KVC__MOVES_ONLY) {
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

// Words of shared memory, 16-byte aligned; the next eight are read while these are folded.
static __device__ __forceinline__ uint64_t kvc__fold_words(
        uint64_t fold, const uint64_t *word, int words)
{
	const ulonglong2 *pair = (const ulonglong2 *)word;
	ulonglong2 next[4], now[4];
	int eights = words / 8;
	for (int k = 0; k < 4 && eights > 0; k++)
		next[k] = pair[k];
#pragma unroll 2
	for (int i = 1; i <= eights; i++) {
#pragma unroll
		for (int k = 0; k < 4; k++)
			now[k] = next[k];
		if (i < eights)
#pragma unroll
			for (int k = 0; k < 4; k++)
				next[k] = pair[4 * i + k];
#pragma unroll
		for (int k = 0; k < 4; k++)
			fold = kvc__splitmix64(kvc__splitmix64(fold ^ now[k].x) ^ now[k].y);
	}
	for (int i = 8 * eights; i < words; i++)
		fold = kvc__splitmix64(fold ^ word[i]);
	return fold;
}

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
		if (!KVC__MOVES_ONLY && lane < head.hashed && strips[lane].bytes > begin) {
			uint32_t left = strips[lane].bytes - begin;
			int words = (int)(((left < chunk ? left : chunk) + 7) / 8);
			fold = kvc__fold_words(fold, (const uint64_t *)(stage + (uint32_t)lane * chunk), words);
		}
		__syncwarp();
	}
	uint64_t all = 0;
	for (int s = 0; s < head.hashed; s++)
		all = kvc__splitmix64(all ^ __shfl_sync(KVC__FULL_WARP, fold, s));
	return all;
}

static __device__ __forceinline__ uint64_t kvc__xxh3_alone(const kvc__strips_head &head,
        const kvc__strip *strips, const kvc__row_keys &keys, int64_t slot)
{
	int lane = threadIdx.x % 32, piece = 2 * (lane % 4);
	uint64_t all = 0;
	for (int s = 0; s < head.hashed; s++) {
		const kvc__strip &strip = strips[s];
		uint64_t hash = 0;
		if (strip.bytes <= KVC__XXH_SHORT) {
			if (lane == 0)
				hash = kvc__xxh3_thread(&strip, slot);
			hash = __shfl_sync(KVC__FULL_WARP, hash, 0);
		} else if (strip.is_wide) {
			const char *const rows[1] = { kvc__place_of(strip, slot).at };
			int64_t offset[4];
			kvc__piece_offsets(strip, 0, offset);
			uint64_t sum = kvc__sum_rows<1>(keys, strip, rows, offset);
			uint64_t other = __shfl_xor_sync(KVC__FULL_WARP, sum, 4);
			bool odd = lane & 4;
			kvc__xxh3_pair pair = { odd ? other : sum, odd ? sum : other };
			hash = pair.finish(strip.bytes, kvc__xxh_merge + piece);
		} else {
			hash = kvc__xxh3_row_slow(&strip, slot);
		}
		all += kvc__fingerprint_share(hash, strip.id);
	}
	return all;
}

// The fingerprint of one slot; at most KVC__STRIPS_SMALL strips. All lanes get it. 'stage':
// KVC__ALONE_BYTES of shared memory for splitmix.
static __device__ __forceinline__ uint64_t kvc__hash_alone(const kvc__strips_head &head,
        const kvc__strip *strips, const kvc__row_keys &keys, int64_t slot, char *stage)
{
	return head.is_splitmix ? kvc__fold_alone(head, strips, slot, stage)
	                        : kvc__xxh3_alone(head, strips, keys, slot);
}

// ---- values that are not finite ----

// Elements of a word that are NaN or infinite, as a mask with one bit (the lowest) an element.
static __device__ __forceinline__ uint64_t kvc__nonfinite_in(uint64_t word, int kind)
{
	if (KVC__MOVES_ONLY)
		return kvc__never(word);
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
