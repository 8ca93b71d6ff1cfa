#!/bin/sh
# The checks that read the sources: format, layers, headers alone, banned functions, exported symbols, clang-tidy.
# usage: tools/check.sh BUILD_FOLDER   (a configured and built Meson folder)
set -eu
build=$1
sources=$(git ls-files 'src/*.c' 'src/*.h' 'include/*.h' 'tests/*.c' 'tests/*.h')
failed=0
step() { echo "check: $1" >&2; }

step "format"
# shellcheck disable=SC2086
clang-format --dry-run --Werror $sources || failed=1

step "layers"
python3 tools/check_layers.py || failed=1

step "headers compile alone"
# Not headers of their own: kernel bodies included once per instruction set, and the table of options. Kernels of another
# architecture are left out: only a cross compiler reads them.
isa=
foreign='/[a-z0-9_]*_(avx2|avx512)\.[ch]$'
[ "$(uname -m)" = aarch64 ] || foreign='/[a-z0-9_]*_(neon|dotprod|i8mm)\.[ch]$'
[ "$(uname -m)" = x86_64 ] && isa="-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni"
for header in $(git ls-files 'src/*.h' 'include/*.h' | grep -vE "_body\.h\$|/option_table\.h\$|$foreign"); do
    flags=
    case $header in
    */tile_avx*) flags=$isa ;;
    esac
    # shellcheck disable=SC2046,SC2086
    echo "#include \"$header\"" | gcc -std=gnu17 -D_GNU_SOURCE -Wall -Wextra -Wno-unused-parameter -Wno-unused-function \
        -Werror -fsyntax-only -Iinclude -Isrc -I. $flags $(pkg-config --cflags jansson) -x c - || failed=1
done

step "banned functions"
if grep -nE '\b(strcpy|strcat|sprintf|vsprintf|gets|strtok|atoi|atol|atof|alloca)\(' $sources; then failed=1; fi
# Only base/alloc.c talks to malloc.
if grep -nE '(^|[^_a-z])(malloc|calloc|realloc|free|strdup)\(' $(git ls-files 'src/*.c' | grep -v base/alloc.c); then failed=1; fi
# Nothing below cli/ prints or ends the process: log lines go to the sink that cli/ sets. The exception is the debug guard of
# base/alloc.c against allocation in the token loop.
below=$(git ls-files 'src/*.[ch]' | grep -vE '^src/cli/|^src/base/alloc\.c$')
if grep -nE '(^|[^_a-z])(printf|fprintf|vfprintf|vprintf|puts|fputs|fputc|putc|putchar|perror|exit|_exit|quick_exit|abort|raise|__builtin_trap)\(' $below; then failed=1; fi
if grep -nE '\b(stdout|stderr|STDOUT_FILENO|STDERR_FILENO)\b|(^|[^_a-z])write\([012],' $below; then failed=1; fi

step "symbols"
python3 tools/check_symbols.py "$build" || failed=1

step "clang-tidy"
findings=$(mktemp)
trap 'rm -f "$findings"' EXIT
# Its own failure counts too: a missing clang-tidy or compile_commands.json must not look like clean sources.
# One file a run: clang-tidy 14 takes every va_list for uninitialised in all files of a run but the first.
git ls-files 'src/*.c' | grep -vE "$foreign" | xargs -P "$(nproc)" -n 1 clang-tidy --quiet -p "$build" --extra-arg=-Wno-unknown-warning-option \
    --extra-arg=-Wno-ignored-optimization-argument >"$findings" 2>&1 || { failed=1; tail -n 20 "$findings"; }
if grep -E 'warning:|error:' "$findings"; then failed=1; fi

[ $failed = 0 ] && echo "all checks passed"
exit $failed
