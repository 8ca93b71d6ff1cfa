#!/bin/sh
# The C tests of a cross build under QEMU, which computes exactly and says nothing about speed: all of them on the most capable
# CPU, then the kernels on CPUs without the extensions, where an instruction too many ends the program.
# usage: tools/cross/test_aarch64.sh BUILD_FOLDER
set -eu
build=$1
failed=0
# Time limits are made for the machine itself.
run() { meson test -C "$build" --no-rebuild --quiet --timeout-multiplier 10 "$@" >&2 || failed=1; }
unset QEMU_CPU
echo "C tests …" >&2
run
kernels=$(meson test -C "$build" --no-rebuild --list 2>/dev/null | sed -n 's|.* / \(kernels_.*\)|\1|p; s|.* / \(device_.*_all\)|\1|p')
[ -n "$kernels" ] || { echo "no kernel tests in $build" >&2; exit 1; }
for cpu in cortex-a76 cortex-a53; do
    echo "kernels on $cpu …" >&2
    # shellcheck disable=SC2086 # names are words
    QEMU_CPU=$cpu run $kernels
done
[ $failed = 0 ] && echo "all tests for aarch64 passed" >&2
exit $failed
