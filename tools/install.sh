#!/bin/sh
# Installs a built folder below the prefix that it was configured with, and tells in a sentence when it may not.
# usage: [DESTDIR=…] tools/install.sh FOLDER PREFIX
set -eu
folder=$1 target=${DESTDIR:-}$2
parent=$target
while [ ! -e "$parent" ]; do parent=$(dirname "$parent"); done
refuse() {
    echo "cannot write to $1: say \`sudo make install\`, or name a folder of your own: make install prefix=\$HOME/.local" >&2
    exit 1
}
[ -d "$parent" ] && [ -w "$parent" ] || refuse "$parent"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! meson install -C "$folder" --no-rebuild --quiet >"$log" 2>&1 </dev/null; then
    denied=$(sed -n "s/^PermissionError: .* denied: '\([^']*\)'.*/\1/p" "$log" | tail -n 1)
    [ -z "$denied" ] || refuse "$denied"
    cat "$log" >&2
    exit 1
fi
echo "installed below $target" >&2
