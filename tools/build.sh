#!/bin/sh
# Configures a build folder and builds it: what Makefile, fuzz.sh and sanitize.sh call. Says one line when there is work, and
# only on standard error: standard output belongs to what is run afterwards. Options other than those of the last call, a new
# prefix for one, configure the folder again; its build type stays.
# usage: [TARGETS="target …"] tools/build.sh FOLDER [option of meson setup]…
set -eu
folder=$1
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if [ ! -f "$folder/build.ninja" ]; then
    mode=
elif [ "$(cat "$folder/options.txt" 2>/dev/null)" != "$*" ]; then
    mode=--reconfigure
else
    mode=ready
fi
options=$*
if [ "$mode" = --reconfigure ]; then
    # A build type given again would overrule the project's own optimization and debug: all would be compiled anew.
    for option; do
        shift
        case $option in
        --buildtype=*) ;;
        *) set -- "$@" "$option" ;;
        esac
    done
fi
if [ "$mode" != ready ]; then
    echo "configuring $folder …" >&2
    # shellcheck disable=SC2086 # no word when it is empty
    meson setup $mode "$folder" "$@" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
    echo "$options" >"$folder/options.txt"
fi
# shellcheck disable=SC2086 # targets are words
if ninja -C "$folder" -n ${TARGETS:-} | grep -q 'no work to do'; then exit 0; fi
echo "building $folder …" >&2
# Ninja and Meson talk even when all is well, after changes of meson.build for one.
# shellcheck disable=SC2086
ninja -C "$folder" --quiet ${TARGETS:-} >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
if grep -q 'warning:' "$log"; then cat "$log" >&2; fi
