#!/bin/sh
# cbk-VERSION-linux-ARCH.tar.gz out of a build: sh scripts/packaging/tarball.sh build/release
# It runs from any folder where glibc is as new as the builder's. Each library's licence is in share/doc/cbk/libraries.
set -eu
build=$(realpath "$1")
version=$("$build/cbk" --version | sed -n '1s/^cbk //p')
name=cbk-$version-linux-$(uname -m)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
top=$work/$name

cmake --install "$build" --prefix "$top" >/dev/null
install -m 755 "$build/cbk-portable" "$top/bin/cbk"
install -m 755 "$build/cbk-hdf5-portable" "$top/libexec/cbk/cbk-hdf5"
argparse=$(cd / && CBK_PATH='' "$build/cbk" -e 'assert(package.searchpath("argparse", package.path))')
install -m 644 "$argparse" "$top/share/cbk/scripts/lib/argparse.lua"

licence_of() { # FILE
  # Some packages of a system with merged /usr have their files in /lib.
  package=$({ dpkg -S "$1" || dpkg -S "${1#/usr}"; } 2>/dev/null | head -n 1 | cut -d: -f1)
  install -D -m 644 "/usr/share/doc/$package/copyright" "$top/share/doc/cbk/libraries/$package"
}

licence_of "$argparse"
for archive in luajit-5.1 yaml-cpp deflate lz4 zstd z protobuf leveldb snappy edit bsd md tinfo sz aec seccomp; do
  licence_of "$(realpath "$(c++ -print-file-name="lib$archive.a")")"
done
for source in /usr/share/cargo/registry/blake3-*/c/blake3.c; do licence_of "$source"; done
licence_of "$(pkg-config --libs-only-L hdf5-serial | sed 's/^-L//; s/ .*//')/libhdf5.a"
# glibc is the one thing that the system must have.
mkdir -p "$top/lib/cbk"
# Those that the program loads when it needs them (SharedLibrary).
loaded=$(for name in libdnnl.so.2 libgomp.so.1 libcrypto.so.3; do c++ -print-file-name="$name"; done)
# shellcheck disable=SC2086  # a list of paths
{ printf '%s\n' $loaded; ldd "$build/cbk-portable" $loaded | awk '$2 == "=>" { print $3 }'; } | sort -u |
    grep -vE '/(libc|libm|libdl|libpthread)\.so' | while read -r library; do
  install -m 644 "$(realpath "$library")" "$top/lib/cbk/$(basename "$library")"
  licence_of "$(realpath "$library")"
done
for library in "$top"/lib/cbk/*; do
  patchelf --set-rpath '$ORIGIN' "$library"
done

mkdir -p "$build/package"
tar -C "$work" --owner=0 --group=0 --numeric-owner --sort=name -czf "$build/package/$name.tar.gz" "$name"
echo "$build/package/$name.tar.gz"
