/*
 * Goal: the bytes under every reader. A zstd file is what was compressed, or refused at its place; a
 * file that is one of many is the one that was opened; what is written is there whole or not at all.
 * Method: files made here, cut at every byte, damaged at every byte, replaced between two reads.
 */
#include "saved_world.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <zstd.h>

#include "snapshot/write_safetensors.h"

static struct saved_error error;
static char folder[] = "/tmp/kvcanary-files-XXXXXX";

/* ---- zstd ---- */

/* Content with checksums, in so many frames. */
static size_t compress(unsigned char *out, size_t room, const unsigned char *data, size_t bytes,
        int frames, bool says_size)
{
	ZSTD_CCtx *context = ZSTD_createCCtx();
	size_t used = 0;

	ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
	ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, says_size);
	for (int i = 0; i < frames; i++) {
		size_t begin = bytes * (size_t)i / (size_t)frames;
		size_t end = bytes * (size_t)(i + 1) / (size_t)frames;
		size_t written =
		        ZSTD_compress2(context, out + used, room - used, data + begin, end - begin);
		assert_false(ZSTD_isError(written));
		used += written;
	}
	ZSTD_freeCCtx(context);
	return used;
}

static bool opens_to(const char *path, const unsigned char *data, size_t bytes)
{
	struct saved_file *file;
	unsigned char *got = malloc(bytes + 1);
	bool same = false;

	if (saved_file_open(&file, path, &error) == 0) {
		same = saved_file_size(file) == bytes &&
		       saved_file_read(file, 0, bytes, got, "x", &error) == 0 &&
		       memcmp(got, data, bytes) == 0;
		saved_file_close(file);
		if (!same)
			fail_msg("other bytes than were compressed");
	}
	free(got);
	return same;
}

static void zstd_of_any_kind_is_its_contents(void **state)
{
	static const size_t sizes[] = { 0, 1, 1192, 131072, 262144, 262145, 1000000 };
	size_t room = 2000000;
	unsigned char *data = malloc(room), *packed = malloc(room);

	(void)state;
	for (size_t i = 0; i < room; i++) /* a stretch of zeros becomes a hole */
		data[i] = i > 300000 && i < 900000 ? 0 : (unsigned char)(i * i >> 7);
	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
		for (int frames = 1; frames <= 3; frames++)
			for (int says_size = 0; says_size < 2; says_size++) {
				size_t bytes =
				        compress(packed, room, data, sizes[s], frames, says_size);
				struct bytes_file file = bytes_file_new(packed, bytes);
				assert_true(opens_to(file.path, data, sizes[s]));
				close(file.descriptor);
			}
	/* A skippable frame before and behind. */
	static const unsigned char skippable[] = { 0x5b, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3 };
	memcpy(packed, skippable, sizeof(skippable));
	size_t bytes =
	        sizeof(skippable) + compress(packed + sizeof(skippable), 4096, data, 99, 1, 1);
	memcpy(packed + bytes, skippable, sizeof(skippable));
	struct bytes_file file = bytes_file_new(packed, bytes + sizeof(skippable));
	assert_true(opens_to(file.path, data, 99));
	close(file.descriptor);
	free(data);
	free(packed);
}

static void zstd_that_is_cut_or_damaged_is_refused(void **state)
{
	size_t bytes, packed_bytes;
	unsigned char *data = read_whole(SAFETENSORS_DATA "tr-hf.safetensors", &bytes);
	unsigned char packed[4096];
	struct bytes_file file;

	(void)state;
	packed_bytes = compress(packed, sizeof(packed), data, bytes, 2, true);
	file = bytes_file_new(packed, packed_bytes);
	for (size_t i = 4; i < packed_bytes; i++) {
		unsigned char damaged = packed[i] ^ 0x10;
		assert_int_equal(pwrite(file.descriptor, &damaged, 1, (off_t)i), 1);
		if (!opens_to(file.path, data, bytes)) {
			assert_int_equal(strncmp(error.slug, "snapshot-", 9), 0);
			assert_string_equal(error.path, file.path);
		}
		assert_int_equal(pwrite(file.descriptor, &packed[i], 1, (off_t)i), 1);
	}
	for (size_t cut = packed_bytes; cut-- > 4;) {
		assert_int_equal(ftruncate(file.descriptor, (off_t)cut), 0);
		struct saved_file *opened;
		/* Cut between the frames it is a shorter file, and what is in it will say so. */
		if (saved_file_open(&opened, file.path, &error) == 0) {
			assert_int_equal(saved_file_size(opened), bytes / 2);
			saved_file_close(opened);
			continue;
		}
		assert_string_equal(error.slug, "snapshot-bad-compression");
		assert_string_equal(error.kind, "truncated");
		assert_int_equal(error.offset, cut);
	}
	close(file.descriptor);
	free(data);
}

static void a_zstd_cache_is_a_cache(void **state)
{
	size_t bytes;
	unsigned char *data = read_whole(SAFETENSORS_DATA "mlx-0.32.2-kv.safetensors", &bytes);
	unsigned char *packed = malloc(bytes * 2);
	size_t packed_bytes = compress(packed, bytes * 2, data, bytes, 1, true);
	struct bytes_file file = bytes_file_new(packed, packed_bytes);
	struct saved_cache *cache = open_with(file.path, NULL);

	(void)state;
	assert_string_equal(cache->format, "safetensors-mlx");
	assert_int_equal(cache->parts[0].row_count, 6);
	assert_int_equal(read_every_row(cache), 2 * 2 * 6 * 16);
	saved_close(cache);
	close(file.descriptor);
	free(packed);
	free(data);
}

/* A few KiB that claim 2^50 bytes, and a folder that is not there. */
static void zstd_without_room_is_refused(void **state)
{
	static const unsigned char claim[] = { 0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 0, 0, 4, 0,
		0 };
	struct bytes_file file = bytes_file_new(claim, sizeof(claim));
	struct saved_file *opened;

	(void)state;
	assert_int_equal(saved_file_open(&opened, file.path, &error), -1);
	assert_string_equal(error.slug, "snapshot-no-space");
	close(file.descriptor);
	unsigned char packed[64];
	size_t bytes = compress(packed, sizeof(packed), (const unsigned char *)"abc", 3, 1, true);
	file = bytes_file_new(packed, bytes);
	setenv("TMPDIR", "/nonexistent", 1);
	assert_int_equal(saved_file_open(&opened, file.path, &error), -1);
	assert_string_equal(error.slug, "snapshot-no-space");
	assert_non_null(strstr(error.message, "/nonexistent"));
	unsetenv("TMPDIR");
	close(file.descriptor);
}

/* ---- one of many ---- */

static const char *in_folder(const char *name)
{
	static char path[256];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return path;
}

static void put_file(const char *name, const char *text)
{
	FILE *file = fopen(in_folder(name), "w");

	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static void one_of_many_is_the_one_that_was_opened(void **state)
{
	struct saved_file *file;
	char bytes[8];

	(void)state;
	put_file("page", "0123456789");
	assert_int_equal(saved_file_open_one_of_many(&file, in_folder("page"), &error), 0);
	assert_int_equal(saved_file_size(file), 10);
	assert_int_equal(saved_file_read(file, 3, 4, bytes, "x", &error), 0);
	assert_memory_equal(bytes, "3456", 4);
	assert_int_equal(saved_file_read(file, 8, 3, bytes, "x", &error), -1);
	assert_string_equal(error.kind, "truncated");
	put_file("page", "0123");
	assert_int_equal(saved_file_read(file, 3, 4, bytes, "x", &error), -1);
	assert_string_equal(error.kind, "changed");
	put_file("other", "abcdefghij");
	char other[256];
	snprintf(other, sizeof(other), "%s", in_folder("other"));
	assert_int_equal(rename(other, in_folder("page")), 0);
	assert_int_equal(saved_file_read(file, 3, 4, bytes, "x", &error), -1);
	assert_string_equal(error.kind, "changed");
	unlink(in_folder("page"));
	assert_int_equal(saved_file_read(file, 3, 4, bytes, "x", &error), -1);
	assert_string_equal(error.kind, "unreadable");
	saved_file_close(file);
}

/* ---- writing ---- */

static int files_in_folder(void)
{
	DIR *entries = opendir(folder);
	int count = 0;

	for (struct dirent *entry; (entry = readdir(entries));)
		count += entry->d_name[0] != '.';
	closedir(entries);
	return count;
}

static struct safetensors_writer *new_writer(const char *name)
{
	struct safetensors_writer *writer;

	if (safetensors_writer_new(&writer, in_folder(name), &error))
		fail_msg("%s", error.message);
	return writer;
}

static void what_is_written_is_read_again(void **state)
{
	static const uint64_t shapes[][3] = { { 5 }, { 2, 3 }, { 0, 7 }, { 2, 2, 2 } };
	struct safetensors_writer *writer = new_writer("a.safetensors");
	struct saved_file *file;
	struct safetensors *container;
	unsigned char data[64];

	(void)state;
	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (unsigned char)(i + 1);
	safetensors_writer_metadata(writer, "key \"\\\n", "value \xc3\xa9");
	assert_int_equal(safetensors_writer_tensor(writer, "u8", SAFETENSORS_U8, 1, shapes[0]), 0);
	assert_int_equal(
	        safetensors_writer_tensor(writer, "u64", SAFETENSORS_U64, 2, shapes[1]), 1);
	assert_int_equal(safetensors_writer_tensor(writer, "no", SAFETENSORS_F32, 2, shapes[2]), 2);
	assert_int_equal(
	        safetensors_writer_tensor(writer, "i\xc3\xa9", SAFETENSORS_I32, 3, shapes[3]), 3);
	assert_int_equal(safetensors_writer_tensor(writer, "one", SAFETENSORS_F16, 0, NULL), 4);
	assert_int_equal(safetensors_writer_begin(writer, &error), 0);
	assert_int_equal(access(in_folder("a.safetensors"), F_OK), -1);
	assert_int_equal(safetensors_writer_write(writer, 4, 0, data, 2, &error), 0);
	assert_int_equal(safetensors_writer_write(writer, 3, 8, data + 8, 24, &error), 0);
	assert_int_equal(safetensors_writer_write(writer, 3, 0, data, 8, &error), 0);
	assert_int_equal(safetensors_writer_write(writer, 1, 0, data, 48, &error), 0);
	assert_int_equal(safetensors_writer_write(writer, 0, 0, data, 5, &error), 0);
	assert_int_equal(safetensors_writer_finish(writer, &error), 0);
	assert_int_equal(files_in_folder(), 1);

	assert_int_equal(saved_file_open(&file, in_folder("a.safetensors"), &error), 0);
	assert_int_equal(safetensors_open(&container, file, &error), 0);
	assert_int_equal(container->tensor_count, 5);
	assert_int_equal(container->data_offset % 64, 0);
	assert_string_equal(safetensors_metadata(container, "key \"\\\n"), "value \xc3\xa9");
	for (size_t i = 0; i < container->tensor_count; i++) {
		const struct safetensors_tensor *tensor = &container->tensors[i];
		unsigned char got[64];
		size_t width = safetensors_dtype_bits(tensor->dtype) / 8;
		assert_int_equal(tensor->offset % width, 0);
		assert_int_equal(
		        saved_file_read(file, tensor->offset, tensor->bytes, got, "x", &error), 0);
		assert_memory_equal(got, data, tensor->bytes);
	}
	assert_int_equal(safetensors_find(container, "u64")->shape[1], 3);
	assert_int_equal(safetensors_find(container, "one")->rank, 0);
	assert_null(safetensors_find(container, "none"));
	safetensors_close(container);
	saved_file_close(file);
	unlink(in_folder("a.safetensors"));
}

/* Nothing is left of a file that was not finished, and an older one stays. */
static void what_is_not_finished_is_not_there(void **state)
{
	static const uint64_t five[] = { 5 }, huge[] = { UINT64_MAX, 3 };
	struct safetensors_writer *writer;
	size_t bytes;
	int unnamed;

	(void)state;
	put_file("old", "old");
	/* Where the file system can do it, nothing lies beside it even while it is written. */
	unnamed = open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
	writer = new_writer("old");
	assert_int_equal(files_in_folder(), unnamed < 0 ? 2 : 1);
	if (unnamed >= 0)
		close(unnamed);
	safetensors_writer_abandon(writer);
	safetensors_writer_abandon(NULL);

	writer = new_writer("old");
	safetensors_writer_tensor(writer, "a", SAFETENSORS_U8, 1, five);
	assert_int_equal(safetensors_writer_begin(writer, &error), 0);
	assert_int_equal(safetensors_writer_write(writer, 0, 4, "ab", 2, &error), -1);
	assert_int_equal(safetensors_writer_write(writer, 0, 0, "abcd", 4, &error), 0);
	assert_int_equal(safetensors_writer_finish(writer, &error), -1);
	assert_string_equal(error.slug, "snapshot-not-written");

	writer = new_writer("old");
	safetensors_writer_tensor(writer, "a", SAFETENSORS_U8, 2, huge);
	assert_int_equal(safetensors_writer_begin(writer, &error), -1);
	safetensors_writer_abandon(writer);
	writer = new_writer("old");
	safetensors_writer_tensor(writer, "a", SAFETENSORS_U8, 1, five);
	safetensors_writer_tensor(writer, "a", SAFETENSORS_U8, 1, five);
	assert_int_equal(safetensors_writer_begin(writer, &error), -1);
	safetensors_writer_abandon(writer);
	writer = new_writer("old");
	safetensors_writer_metadata(writer, "a", "\xff");
	assert_int_equal(safetensors_writer_begin(writer, &error), -1);
	safetensors_writer_abandon(writer);

	assert_int_equal(files_in_folder(), 1);
	unsigned char *old = read_whole(in_folder("old"), &bytes);
	assert_int_equal(bytes, 3);
	free(old);
	unlink(in_folder("old"));
	assert_int_equal(safetensors_writer_new(&writer, "/nonexistent/x", &error), -1);
	assert_string_equal(error.slug, "snapshot-not-written");
	assert_int_equal(safetensors_writer_new(&writer, folder, &error), -1);
	assert_int_equal(safetensors_writer_new(&writer, "/dev/null", &error), -1);
	assert_int_equal(files_in_folder(), 0);
}

/* A link stays a link, and what it leads to is replaced. */
static void a_link_is_followed(void **state)
{
	struct safetensors_writer *writer;
	struct stat status;
	char target[256];

	(void)state;
	put_file("target", "old");
	snprintf(target, sizeof(target), "%s", in_folder("target"));
	assert_int_equal(symlink(target, in_folder("link")), 0);
	writer = new_writer("link");
	assert_int_equal(safetensors_writer_begin(writer, &error), 0);
	assert_int_equal(safetensors_writer_finish(writer, &error), 0);
	assert_int_equal(lstat(in_folder("link"), &status), 0);
	assert_true(S_ISLNK(status.st_mode));
	assert_int_equal(stat(target, &status), 0);
	assert_int_equal(status.st_size, 64);
	unlink(in_folder("link"));
	unlink(target);
}

static int make_folder(void **state)
{
	(void)state;
	return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
	(void)state;
	unlink(in_folder("page"));
	return rmdir(folder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(zstd_of_any_kind_is_its_contents),
		cmocka_unit_test(zstd_that_is_cut_or_damaged_is_refused),
		cmocka_unit_test(a_zstd_cache_is_a_cache),
		cmocka_unit_test(zstd_without_room_is_refused),
		cmocka_unit_test(one_of_many_is_the_one_that_was_opened),
		cmocka_unit_test(what_is_written_is_read_again),
		cmocka_unit_test(what_is_not_finished_is_not_there),
		cmocka_unit_test(a_link_is_followed),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
