#!/bin/sh
# Builds the libFuzzer targets with clang and runs each for a number of seconds, starting from its corpus. What a target says
# goes to BUILD_FOLDER/<name>.log, and here only when it fails.
# usage: tools/fuzz.sh BUILD_FOLDER SECONDS
set -eu
build=$1 seconds=$2
names=$(sed -n "s/.*fuzz_targets = \[\(.*\)\].*/\1/p" tests/meson.build | tr -d "',")
targets=
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
echo "all fuzz targets clean"
