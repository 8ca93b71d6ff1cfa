# Verbs of the project. Each installs what it needs on Debian 12 and says what it does; the build itself is Meson.

BUILD ?= build
RELEASE = $(BUILD)/release
TEST = $(BUILD)/test
SANITIZE = $(BUILD)/sanitize
FUZZ = $(BUILD)/fuzz
MODEL ?= smollm2-135m-instruct
PROMPT ?= What is the capital of France? Answer in one sentence.
prefix ?= /usr/local

.PHONY: all run test check sanitize fuzz bench install clean help
.DEFAULT_GOAL := all

all: ## build the program (build/release/deepseek-edge)
	@tools/install_packages.sh build
	@test -f $(RELEASE)/build.ninja || meson setup $(RELEASE) --buildtype=release -Dtests=false --prefix=$(prefix) >/dev/null
	@ninja -C $(RELEASE) --quiet
	@ln -sf src/cli/deepseek-edge $(RELEASE)/deepseek-edge

run: all ## fetch the demo model, ask it a question (MODEL=qwen2.5-coder-1.5b for a bigger one)
	@tools/install_packages.sh run
	@model="$$(python3 tools/fetch_model.py $(MODEL))" && \
	 echo "> $(PROMPT)" >&2 && \
	 $(RELEASE)/deepseek-edge run "$$model" --temp 0 -n 128 -p "$(PROMPT)" && \
	 printf '\nchat:   %s run %s\nserve:  %s serve %s\n' $(RELEASE)/deepseek-edge "$$model" $(RELEASE)/deepseek-edge "$$model" >&2

test: ## build and run every test
	@tools/install_packages.sh build test
	@test -f $(TEST)/build.ninja || meson setup $(TEST) --buildtype=debugoptimized -Dwerror=true >/dev/null
	@ninja -C $(TEST) --quiet
	@python3 tools/run_tests.py $(TEST)

check: ## format, layers, headers compiled alone, banned functions, symbols, clang-tidy
	@tools/install_packages.sh build test check
	@test -f $(TEST)/build.ninja || meson setup $(TEST) --buildtype=debugoptimized -Dwerror=true >/dev/null
	@ninja -C $(TEST) --quiet
	@tools/check.sh $(TEST)

sanitize: ## the C tests under AddressSanitizer, UndefinedBehaviorSanitizer, and ThreadSanitizer for the engine
	@tools/install_packages.sh build test fuzz
	@tools/sanitize.sh $(SANITIZE)

fuzz: ## libFuzzer targets, SECONDS=60 each
	@tools/install_packages.sh build test fuzz
	@tools/fuzz.sh $(FUZZ) $${SECONDS:-60}

bench: all ## compare with llama.cpp on the same files
	@tools/install_packages.sh run bench
	@bench/compare $(RELEASE)/deepseek-edge

install: all ## install program, headers, library and man pages below prefix
	@DESTDIR="$(DESTDIR)" meson install -C $(RELEASE) --no-rebuild

clean: ## remove all builds
	rm -rf $(BUILD)

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 20
