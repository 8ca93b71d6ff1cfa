#!/bin/sh
# Builds the libFuzzer targets with clang and runs each for a number of seconds, starting from its corpus.
# usage: tools/fuzz.sh BUILD_FOLDER SECONDS
set -eu
build=$1 seconds=$2
[ -f "$build/build.ninja" ] || CC=clang meson setup "$build" --buildtype=debugoptimized -Dfuzz=true \
    -Db_sanitize=address,undefined -Db_lundef=false "-Dc_args=-fsanitize=fuzzer-no-link" >/dev/null
targets=$(sed -n "s/.*fuzz_targets = \[\(.*\)\].*/\1/p" tests/meson.build | tr -d "',")
for name in $targets; do ninja -C "$build" --quiet "tests/fuzz/fuzz_$name"; done
for name in $targets; do
    echo "fuzz_$name for $seconds s"
    mkdir -p "$build/corpus/$name"
    "$build/tests/fuzz/fuzz_$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=0 \
        -verbosity=0 -artifact_prefix="$build/" "$build/corpus/$name" "tests/fuzz/corpus/$name"
done
echo "all fuzz targets clean"
