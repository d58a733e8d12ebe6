#!/usr/bin/env bash
# Packs what `make install` installs as a Debian package.
#
# usage: packaging/deb.sh STAGED OUTPUT.deb VERSION
#
# STAGED is the DESTDIR of a `make install PREFIX=/usr`, and becomes the package's content.
set -euo pipefail

staged=$1 output=$2 version=$3
here=$(dirname "$0")

binaries=(-type f \( -name 'libupcall.so.*' -o -path "$staged/usr/bin/*" \))

# Line tables are two thirds of the size, and only for debugging Upcall itself.
find "$staged" "${binaries[@]}" -exec strip --strip-debug {} +
find "$staged" -name 'libupcall.a' -exec strip --strip-debug {} +
find "$staged/usr/share/man" -type f -name '*.1' -exec gzip -9n {} +
install -D -m 644 "$here/../LICENSE" "$staged/usr/share/doc/upcall/copyright"

# The newest symbol version of glibc that a program or library asks for.
libc=$(find "$staged" "${binaries[@]}" -exec objdump -T {} + 2>/dev/null |
    grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1 | cut -d_ -f2)

mkdir -p "$staged/DEBIAN"
size=$(du -sk --exclude=DEBIAN "$staged" | cut -f1)
sed -e "s|@VERSION@|$version|" -e "s|@LIBC@|$libc|" -e "s|@SIZE@|$size|" "$here/control.in" \
    > "$staged/DEBIAN/control"
echo "activate-noawait ldconfig" > "$staged/DEBIAN/triggers"
(cd "$staged" && find usr -type f -print0 | sort -z | xargs -0 md5sum) > "$staged/DEBIAN/md5sums"

mkdir -p "$(dirname "$output")"
dpkg-deb --root-owner-group -Zxz --build "$staged" "$output" > /dev/null
echo "deb: $output ($(du -h "$output" | cut -f1))"
