#!/bin/sh
# Installs the Debian packages of the named purposes (tools/packages.txt) that are missing. Uses sudo when not root.
# usage: tools/install_packages.sh build test …
set -eu
list="$(dirname "$0")/packages.txt"
missing=""
for purpose in "$@"; do
    for package in $(sed -n "s/^$purpose: //p" "$list"); do
        state=$(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null || true)
        case "$state" in
        ii*) ;;
        *) missing="$missing $package" ;;
        esac
    done
done
[ -n "$missing" ] || exit 0
echo "installing Debian packages:$missing" >&2
sudo=""
[ "$(id -u)" = 0 ] || sudo="sudo"
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086 # the list is meant to be split
$sudo apt-get install -y -q --no-install-recommends $missing >&2 ||
    { $sudo apt-get update -q >&2 && $sudo apt-get install -y -q --no-install-recommends $missing >&2; }
