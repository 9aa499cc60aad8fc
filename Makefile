# Actions for people and for CI; CMake does the building. 'make help' lists them.
.DEFAULT_GOAL := build
MAKEFLAGS += --no-print-directory
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
TRACE ?= data/mooncake_conversation_trace.jsonl
FUZZ_SECONDS ?= 60
# Machine code for three kinds of GPU takes minutes; CI builds the kernels for one, in check-cuda.
CUDA ?= $(if $(CI),OFF,AUTO)
CUDA_ARCHITECTURE ?= 90
# CI treats a warning as an error; for a person's own compiler, newer than ours, it is only one.
WERROR := $(if $(CI),ON,OFF)

# The package from this tree over the library in build/, and SGLang as tools/sglang.sh leaves it.
WITH_SGLANG := KVCANARY_LIBRARY=build/src/libkvcanary.so KVC_SGLANG=build/sglang-package \
	PYTHONPATH=python

CTEST := ctest --output-on-failure -j $(JOBS)
# C and shell files of this project.
C_FILES = $(shell find include src cli bench tests examples -name '*.[ch]' -o -name '*.cpp' | sort)
SH_FILES = $(shell find tools bench tests -name '*.sh' -not -path 'tests/cli/*' | sort) .ci/run
# ThreadSanitizer wants a fixed address layout; where the machine does not allow that, it does not
# need it either.
FIXED_LAYOUT := $(shell setarch -R true 2>/dev/null && echo setarch -R)

.PHONY: build run test test-python test-sglang wheel check check-clang check-asan check-tsan check-neon \
	check-cpu check-cuda check-all fuzz bench bench-peers bench-cuda bench-sglang docs install \
	format format-check lint clean help

build: ## The library and the command build/kvcanary (the default)
	tools/setup.sh build
	[ -f build/CMakeCache.txt ] || cmake -S . -B build -DKVC_BUILD_TESTS=OFF -DKVC_CUDA=$(CUDA) >/dev/null
	cmake --build build -j $(JOBS)

run: ## Replay a serving trace with every fault; writes report.html
	@tools/setup.sh build
	@[ -f build/CMakeCache.txt ] || cmake -S . -B build -DKVC_BUILD_TESTS=OFF -DKVC_CUDA=$(CUDA) >/dev/null
	@cmake --build build -j $(JOBS) --target kvcanary -- --no-print-directory -s
	build/kvcanary replay $(TRACE) --fault all --html report.html

test: ## Build and run all tests of the quick tier
	tools/setup.sh test $(if $(KVC_REQUIRE_ALL),browser)
	cmake -S . -B build -DKVC_BUILD_TESTS=ON -DKVC_CUDA=$(CUDA) -DKVC_WERROR=$(WERROR) >/dev/null
	cmake --build build -j $(JOBS)
	$(CTEST) --test-dir build --timeout 300
	$(MAKE) test-python

test-python: ## Tests of the Python package, in an environment of its own (build/python-venv)
	tools/setup.sh python
	tests/python/run.sh build

wheel: ## A wheel that other machines take, into build/wheelhouse
	tools/setup.sh python
	KVC_CUDA=$(CUDA) tests/python/run.sh build --only-wheel

check: check-clang check-asan check-tsan ## clang without a warning; tests under ASan+UBSan and TSan

check-clang: ## Build with clang, every warning an error
	tools/setup.sh sanitize
	cmake -S . -B build-clang -DCMAKE_C_COMPILER=clang -DKVC_CUDA=OFF -DKVC_WERROR=ON >/dev/null
	cmake --build build-clang -j $(JOBS)

# Sanitizers look at what a program does, not at how fast: half the optimiser, a third less time to build.
SANITIZED := -DCMAKE_C_FLAGS_RELWITHDEBINFO="-O1 -g1" -DKVC_CUDA=OFF

check-asan: ## Tests under AddressSanitizer and UndefinedBehaviorSanitizer (gcc)
	tools/setup.sh test
	cmake -S . -B build-asan -DCMAKE_C_COMPILER=gcc $(SANITIZED) \
		-DKVC_SANITIZE=address,undefined >/dev/null
	cmake --build build-asan -j $(JOBS)
	UBSAN_OPTIONS=print_stacktrace=1 $(CTEST) --test-dir build-asan --timeout 600 -LE 'tree|html'

# ThreadSanitizer makes a program ten times as slow, and finds nothing in parsers and texts, which have one thread,
# and nothing that replay_faults and replay_threads do not show it.
NOT_FOR_TSAN := ^(test_(safetensors|saved_llamacpp|trace|catalog|float_formats|variants)|replay_(clean|mutations)|catalog_.*|fuzz_corpus_.*)$$

check-tsan: ## Tests under ThreadSanitizer (clang); in CI, a warning of clang is an error here
	tools/setup.sh sanitize
	cmake -S . -B build-tsan -DCMAKE_C_COMPILER=clang $(SANITIZED) \
		-DKVC_SANITIZE=thread -DKVC_WERROR=$(WERROR) >/dev/null
	cmake --build build-tsan -j $(JOBS)
	TSAN_OPTIONS=die_after_fork=0 $(FIXED_LAYOUT) $(CTEST) --test-dir build-tsan --timeout 600 -LE 'tree|html' \
		-E '$(NOT_FOR_TSAN)'

# Programs under qemu are slow, so only what has variants, and the arithmetic below it: a minute of
# processor time.
NEON_TESTS := test_variants test_variants_bytes test_float_formats test_rope_random test_stamped_step
NEON_RUN := ^test_(variants|variants_bytes|float_formats)$$|^test_(rope_random|stamped_step)_neon$$

check-neon: ## Tests of CPU variants and arithmetic for 64-bit ARM, under qemu
	tools/setup.sh neon
	cmake -S . -B build-neon -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake \
		-DKVC_BUILD_CLI=OFF -DKVC_CUDA=OFF -DKVC_WERROR=$(WERROR) >/dev/null
	cmake --build build-neon -j $(JOBS) --target $(NEON_TESTS)
	$(CTEST) --test-dir build-neon --timeout 1200 -R '$(NEON_RUN)'

CUDA_TESTS = $(basename $(notdir $(wildcard tests/test_cuda_*.c)))

check-cuda: ## Build the CUDA back end for CUDA_ARCHITECTURE (90) and run its tests, if there is a GPU
	tools/setup.sh test
	cmake -S . -B build-cuda -DKVC_BUILD_TESTS=ON -DKVC_BUILD_CLI=OFF -DKVC_CUDA=ON \
		-DKVC_CUDA_ARCHITECTURES=$(CUDA_ARCHITECTURE) -DKVC_WERROR=ON >/dev/null
	cmake --build build-cuda -j $(JOBS) --target kvcanary_shared $(CUDA_TESTS)
	$(CTEST) --test-dir build-cuda --timeout 600 -R '^test_cuda_'

# Those that start the CPU variants themselves, and those that no variant can change, are left out.
CPU_TESTS := $(CTEST) --test-dir build --timeout 900 -LE 'tree|html|variants'

check-cpu: ## All tests again under each CPU variant that this machine can run (KVC_CPU)
	tools/setup.sh test
	cmake -S . -B build -DKVC_BUILD_TESTS=ON >/dev/null
	cmake --build build -j $(JOBS)
	for variant in $$(build/tests/test_variants --list); do \
		echo "KVC_CPU=$$variant"; KVC_CPU=$$variant $(CPU_TESTS) || exit; \
	done

check-all: check check-cpu ## check, the long tests, and a clean replay of the whole trace
	tools/setup.sh test browser
	cmake -S . -B build -DKVC_BUILD_TESTS=ON -DKVC_CUDA=$(CUDA) >/dev/null
	cmake --build build -j $(JOBS)
	KVC_TEST_LONG=1 KVC_REQUIRE_ALL=1 $(CTEST) --test-dir build --timeout 5400
	build/kvcanary replay $(TRACE) --requests all

fuzz: ## Fuzz each parser for FUZZ_SECONDS (60) with libFuzzer and ASan
	tools/setup.sh fuzz
	cmake -S . -B build-fuzz -DCMAKE_C_COMPILER=clang -DKVC_BUILD_TESTS=OFF -DKVC_CUDA=OFF -DKVC_FUZZ=ON \
		-DKVC_SANITIZE=address,undefined >/dev/null
	cmake --build build-fuzz -j $(JOBS)
	for target in build-fuzz/fuzz/fuzz_*; do \
		mkdir -p build-fuzz/corpus/$${target##*/}; \
		$$target -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1 \
			build-fuzz/corpus/$${target##*/} tests/fuzz/corpus/$${target##*/fuzz_}; \
	done

bench: ## Time every operation; BENCH_ARGS="--quick" takes 40 seconds, "--help" says more
	@tools/setup.sh build
	@[ -f build/CMakeCache.txt ] || cmake -S . -B build -DKVC_BUILD_TESTS=OFF -DKVC_CUDA=$(CUDA) >/dev/null
	@cmake --build build -j $(JOBS) --target kvcanary-bench -- --no-print-directory -s
	build/kvcanary-bench $(BENCH_ARGS)

bench-peers: ## The same beside torch and ggml (from PyPI, into build/); writes bench/results/
	tools/setup.sh peers
	bench/peers.sh build
	[ -f build/CMakeCache.txt ] || cmake -S . -B build -DKVC_BUILD_TESTS=OFF -DKVC_CUDA=$(CUDA) >/dev/null
	cmake --build build -j $(JOBS) --target kvcanary-bench
	build/kvcanary-bench --json $(BENCH_ARGS) >build/bench.json
	build/peers-venv/bin/python bench/peers_cpu.py >build/peers.json
	python3 bench/report.py build/bench.json build/peers.json --json build/bench-merged.json

bench-cuda: ## Time every operation on this machine's GPU; BENCH_ARGS="--quick" takes a minute, "--help" says more
	@python3 bench/peers/peers.py --help >/dev/null
	tools/setup.sh build
	cmake -S . -B build-cuda -DKVC_CUDA=ON -DKVC_CUDA_ARCHITECTURES=$(CUDA_ARCHITECTURE) >/dev/null
	cmake --build build-cuda -j $(JOBS) --target kvcanary_shared kvcanary_moves
	python3 bench/peers/build.py -j $(JOBS) --arch $(CUDA_ARCHITECTURE)a
	KVCANARY_LIB=build-cuda/src/libkvcanary.so KVCANARY_MOVES_LIB=build-cuda/bench/libkvcanary_moves.so \
		python3 bench/peers/peers.py $(BENCH_ARGS)

test-sglang: ## Compare kvcanary.sglang with SGLang's own reference (from PyPI, into build/)
	tools/setup.sh peers
	tools/sglang.sh build
	[ -f build/CMakeCache.txt ] || cmake -S . -B build -DKVC_BUILD_TESTS=OFF -DKVC_CUDA=$(CUDA) >/dev/null
	cmake --build build -j $(JOBS) --target kvcanary_shared
	$(WITH_SGLANG) build/sglang-venv/bin/python -m pytest -q tests/python/test_sglang_reference.py

bench-sglang: ## Time kvcanary.sglang beside SGLang's torch reference on the CPU
	tools/setup.sh peers
	tools/sglang.sh build
	[ -f build/CMakeCache.txt ] || cmake -S . -B build -DKVC_BUILD_TESTS=OFF -DKVC_CUDA=$(CUDA) >/dev/null
	cmake --build build -j $(JOBS) --target kvcanary_shared
	$(WITH_SGLANG) build/sglang-venv/bin/python bench/python_sglang.py $(BENCH_ARGS)

docs: build ## Rewrite docs/errors, the man page and the completions
	python3 src/catalog/generate.py --source . --pages docs/errors
	python3 tools/make_manual.py

install: build ## Install to PREFIX (/usr/local); DESTDIR is honoured
	cmake -S . -B build -DCMAKE_INSTALL_PREFIX=$(PREFIX) >/dev/null
	cmake --build build -j $(JOBS)
	DESTDIR=$(DESTDIR) cmake --install build

format: ## Format all C files in place
	tools/setup.sh format
	@clang-format -i $(C_FILES)

format-check: ## Fail if a C file is not formatted
	tools/setup.sh format
	@clang-format --dry-run --Werror $(C_FILES)

lint: ## The project's own rules, shellcheck, cppcheck and clang-tidy
	tools/setup.sh lint
	python3 tests/lint.py
	shellcheck $(SH_FILES)
	shellcheck --shell=bash --exclude=SC2102 tests/cli/*.sh
	cmake -S . -B build -DKVC_BUILD_TESTS=ON -DKVC_CUDA=$(CUDA) >/dev/null
	cmake --build build -j $(JOBS) --target kvc_catalog
	tools/lint.sh

clean: ## Remove every build folder and the report
	rm -rf build build-* report.html

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile
