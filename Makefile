# Verbs of the project. Each installs what it needs on Debian 12; the build itself is Meson. All talk goes to standard error:
# the answer of `make run` is all that its standard output gets.

BUILD ?= build
RELEASE = $(BUILD)/release
TEST = $(BUILD)/test
SANITIZE = $(BUILD)/sanitize
FUZZ = $(BUILD)/fuzz
AARCH64 = $(BUILD)/aarch64
MODEL ?= smollm2-135m-instruct
PROMPT ?= What is the capital of France? Answer in one sentence.
prefix ?= /usr/local
# Read by the recipes from the environment, so that any quotes in them stay text.
export MODEL PROMPT DESTDIR

# Meson options of the build for 64-bit ARM; its sysroot defines where packages lie.
AARCH64_OPTIONS = --cross-file=$(AARCH64)/sysroot.ini --cross-file=tools/cross/aarch64.ini

.PHONY: all run test test-web cross-aarch64 test-aarch64 check sanitize fuzz bench install clean help
.DEFAULT_GOAL := all

all: ## build the program (build/release/deepseek-edge)
	@tools/install_packages.sh build
	@tools/build.sh $(RELEASE) --buildtype=release -Dtests=false "--prefix=$(prefix)"
	@ln -sf src/cli/deepseek-edge $(RELEASE)/deepseek-edge

# A pipe or file gets the answer exactly, without a newline at its end: here one is added for people.
run: all ## fetch the demo model, ask it a question (MODEL=qwen2.5-coder-1.5b for a bigger one)
	@tools/install_packages.sh run
	@model="$$(python3 tools/fetch_model.py "$$MODEL")" && \
	 echo "> $$PROMPT" >&2 && \
	 $(RELEASE)/deepseek-edge run "$$model" --temp 0 -n 128 -p "$$PROMPT" && { [ -t 1 ] || echo; } && \
	 printf '\nchat:   %s run %s\nserve:  %s serve %s\n' $(RELEASE)/deepseek-edge "$$model" $(RELEASE)/deepseek-edge "$$model" >&2

test: ## build and run every test
	@tools/install_packages.sh build test
	@tools/build.sh $(TEST) --buildtype=debugoptimized -Dwerror=true
	@python3 tools/run_tests.py $(TEST)

test-web: ## only the tests of the web page, in headless Chromium, which it installs; then `make test` runs them too
	@tools/install_packages.sh build test web
	@tools/build.sh $(TEST) --buildtype=debugoptimized -Dwerror=true
	@python3 tools/run_tests.py $(TEST) web

cross-aarch64: ## build the program for 64-bit ARM (build/aarch64/release/deepseek-edge)
	@tools/install_packages.sh build cross
	@tools/cross/sysroot.sh arm64 $(AARCH64)/sysroot
	@tools/build.sh $(AARCH64)/release --buildtype=release -Dtests=false $(AARCH64_OPTIONS)
	@ln -sf src/cli/deepseek-edge $(AARCH64)/release/deepseek-edge

test-aarch64: ## build for 64-bit ARM and run the C tests under QEMU, kernels also as on older CPUs; takes long
	@tools/install_packages.sh build test cross
	@tools/cross/sysroot.sh arm64 $(AARCH64)/sysroot
	@tools/build.sh $(AARCH64)/test --buildtype=debugoptimized -Dwerror=true $(AARCH64_OPTIONS)
	@tools/cross/test_aarch64.sh $(AARCH64)/test

check: ## format, layers, headers compiled alone, banned functions, symbols, clang-tidy
	@tools/install_packages.sh build test check
	@tools/build.sh $(TEST) --buildtype=debugoptimized -Dwerror=true
	@tools/check.sh $(TEST)

sanitize: ## the tests under AddressSanitizer and UndefinedBehaviorSanitizer, the threaded ones under ThreadSanitizer
	@tools/install_packages.sh build test fuzz
	@tools/sanitize.sh $(SANITIZE)

fuzz: ## libFuzzer targets, then raw sockets and the API of a running server, SECONDS=60 each
	@tools/install_packages.sh build test fuzz
	@tools/fuzz.sh $(FUZZ) $${SECONDS:-60}

bench: all ## compare with llama.cpp on the same files
	@tools/install_packages.sh run bench
	@bench/compare $(RELEASE)/deepseek-edge

install: all ## install program, headers, library and man page below prefix=/usr/local
	@tools/install.sh $(RELEASE) "$(prefix)"

clean: ## remove all builds
	rm -rf $(BUILD)

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /  make \1\t/p' Makefile | expand -t 24
