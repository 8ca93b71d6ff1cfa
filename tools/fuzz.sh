#!/bin/sh
# Builds the libFuzzer targets and the program with clang and sanitizers. Runs each target for a number of seconds, starting from
# its corpus; what it says goes to BUILD_FOLDER/<name>.log, and here only when it fails. Then, as long each, two fuzzers of a
# running server: tests/fuzz/sockets.py and openapi.py.
# usage: tools/fuzz.sh BUILD_FOLDER SECONDS
set -eu
build=$1 seconds=$2
names=$(sed -n "s/.*fuzz_targets = \[\(.*\)\].*/\1/p" tests/meson.build | tr -d "',")
targets=src/cli/deepseek-edge
for name in $names; do targets="$targets tests/fuzz/fuzz_$name"; done
CC=clang TARGETS=$targets tools/build.sh "$build" --buildtype=debugoptimized -Dfuzz=true \
    -Db_sanitize=address,undefined -Db_lundef=false -Dc_args=-fsanitize=fuzzer-no-link
for name in $names; do
    log=$build/$name.log
    echo "fuzz_$name for $seconds s"
    mkdir -p "$build/corpus/$name"
    if ! "$build/tests/fuzz/fuzz_$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$build/$name-" "$build/corpus/$name" "tests/fuzz/corpus/$name" >"$log" 2>&1; then
        tail -n 80 "$log" >&2
        echo "fuzz_$name failed: the input is the last $build/$name-*, the log is $log" >&2
        exit 1
    fi
    sed -n 's/^stat::number_of_executed_units: *\(.*\)/  clean, \1 inputs/p' "$log"
done
python=$(python3 tools/run_tests.py "$build" python)
export ASAN_OPTIONS=abort_on_error=1:detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export DSE_BINARY="$build/src/cli/deepseek-edge"
for name in sockets openapi; do
    echo "$name.py for $seconds s"
    "$python" "tests/fuzz/$name.py" --seconds "$seconds"
done
echo "all fuzz targets clean"
