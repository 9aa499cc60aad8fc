/*
 * Runs every file of a folder through one fuzz target, and each of them cut short at every length,
 * without libFuzzer: a regression test that any compiler can build. The bytes end at the end of
 * their allocation, so that a sanitizer sees a read past them.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t data_bytes);

static void run_prefix(const uint8_t *data, size_t data_bytes)
{
	uint8_t *exact = malloc(data_bytes ? data_bytes : 1);

	if (!exact)
		abort();
	memcpy(exact, data, data_bytes);
	LLVMFuzzerTestOneInput(exact, data_bytes);
	free(exact);
}

static int run_file(const char *folder, const char *name)
{
	static uint8_t data[65536];
	char path[4096];
	FILE *file;
	size_t data_bytes;

	snprintf(path, sizeof path, "%s/%s", folder, name);
	file = fopen(path, "rb");
	if (!file)
		return 0;
	data_bytes = fread(data, 1, sizeof data, file);
	fclose(file);
	for (size_t cut = 0; cut <= data_bytes; cut++)
		run_prefix(data, cut);
	return 1;
}

int main(int argc, char **argv)
{
	DIR *folder = argc == 2 ? opendir(argv[1]) : NULL;
	int file_count = 0;

	if (!folder) {
		fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
		return 2;
	}
	for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder))
		if (entry->d_name[0] != '.')
			file_count += run_file(argv[1], entry->d_name);
	closedir(folder);
	printf("%d files\n", file_count);
	return file_count == 0;
}
