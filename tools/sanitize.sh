#!/bin/sh
# The C tests and the API tests under ASan and UBSan, then the threaded ones under TSan. Heavier than `make test`.
# usage: tools/sanitize.sh BUILD_FOLDER
set -eu
build=$1
export ASAN_OPTIONS=abort_on_error=1:detect_leaks=1:allocator_may_return_null=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export DSE_TEST_PATIENCE=4
tools/build.sh "$build/address" --buildtype=debugoptimized -Db_sanitize=address,undefined -Db_lundef=false
python3 tools/run_tests.py "$build/address"
tools/build.sh "$build/thread" --buildtype=debugoptimized -Db_sanitize=thread -Db_lundef=false
TSAN_OPTIONS=halt_on_error=1 meson test -C "$build/thread" --no-rebuild --timeout-multiplier "$DSE_TEST_PATIENCE" \
    --suite threads --print-errorlogs
