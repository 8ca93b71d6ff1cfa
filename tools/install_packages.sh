#!/bin/sh
# Installs the Debian packages of the named purposes (tools/packages.txt) that are missing. Uses sudo when not root. What apt
# says is shown only when it fails. Without dpkg it does nothing: Meson then names what is missing.
# usage: tools/install_packages.sh build test …
set -eu
command -v dpkg-query >/dev/null || exit 0
list="$(dirname "$0")/packages.txt"
missing=""
for purpose in "$@"; do
    for package in $(sed -n "s/^$purpose: //p" "$list"); do
        state=$(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null || true)
        case "$state $missing " in
        ii* | *" $package "*) ;;
        *) missing="$missing $package" ;;
        esac
    done
done
[ -n "$missing" ] || exit 0
sudo=""
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "Debian packages are missing; as root: apt-get install$missing" >&2
        exit 1
    fi
    sudo="sudo"
fi
echo "installing Debian packages:$missing" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# env: sudo keeps no variables. Lists are fetched when there are none, and again when they name files that are gone.
update() { $sudo env DEBIAN_FRONTEND=noninteractive apt-get update -qq >>"$log" 2>&1; }
# shellcheck disable=SC2086 # the list is meant to be split
install() {
    $sudo env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq -o Dpkg::Use-Pty=0 --no-install-recommends $missing >>"$log" 2>&1
}
if ! ls /var/lib/apt/lists/*_Packages* >/dev/null 2>&1; then update || true; fi
install || { update && install; } || {
    cat "$log" >&2
    echo "cannot install Debian packages; as root: apt-get update && apt-get install$missing" >&2
    exit 1
}
