#!/bin/sh
# The C tests and the API tests under ASan and UBSan, then the threaded ones under TSan. Heavier than `make test`.
# usage: tools/sanitize.sh BUILD_FOLDER
set -eu
build=$1
export ASAN_OPTIONS=abort_on_error=1:detect_leaks=1:allocator_may_return_null=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
[ -f "$build/address/build.ninja" ] || meson setup "$build/address" --buildtype=debugoptimized \
    -Db_sanitize=address,undefined -Db_lundef=false >/dev/null
ninja -C "$build/address" --quiet
python3 tools/run_tests.py "$build/address"
[ -f "$build/thread/build.ninja" ] || meson setup "$build/thread" --buildtype=debugoptimized \
    -Db_sanitize=thread -Db_lundef=false >/dev/null
ninja -C "$build/thread" --quiet
TSAN_OPTIONS=halt_on_error=1 meson test -C "$build/thread" --no-rebuild --suite threads --print-errorlogs
