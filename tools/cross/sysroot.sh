#!/bin/sh
# Fetches what a Debian 12 machine of another architecture has, as far as the build and the C tests need it, and unpacks it
# into a folder: packages of the purpose "sysroot" in tools/packages.txt with what they depend on. The system's own packages,
# lists and architectures stay as they are, so that this needs no root. Writes FOLDER.ini for Meson, which names the folder.
# usage: tools/cross/sysroot.sh ARCHITECTURE FOLDER
set -eu
architecture=$1
folder=$2
packages=$(sed -n 's/^sysroot: //p' "$(dirname "$0")/../packages.txt")
if [ "$(cat "$folder/packages.txt" 2>/dev/null)" = "$packages" ]; then exit 0; fi
echo "fetching Debian packages for $architecture into $folder …" >&2
rm -rf "$folder"
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
# An apt of its own: nothing is installed in it, so that all dependencies count as missing. Sources and keys are the system's.
cat >"$work/apt.conf" <<END
APT::Architecture "$architecture";
APT::Architectures "$architecture";
APT::Install-Recommends "false";
Dir::State "$work";
Dir::State::status "/dev/null";
Dir::Cache "$work/cache";
Debug::NoLocking "true";
END
if [ "$(id -u)" = 0 ]; then echo 'APT::Sandbox::User "root";' >>"$work/apt.conf"; fi
export APT_CONFIG="$work/apt.conf"
# shellcheck disable=SC2086 # the list is meant to be split
{ apt-get update -qq && apt-get install -y -qq --download-only $packages; } >"$work/log" 2>&1 || {
    cat "$work/log" >&2
    exit 1
}
for package in "$work"/cache/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x -C "$folder" --exclude ./usr/share/doc --exclude ./usr/share/man
done
# Absolute links mean the folder, not this system.
find "$folder" -type l -lname '/*' | while read -r link; do
    ln -sfn "$folder$(readlink "$link")" "$link"
done
printf "[constants]\nsysroot = '%s'\n" "$folder" >"$folder.ini"
echo "$packages" >"$folder/packages.txt"
