#!/bin/sh
# Installs the library into a folder of its own, moves that folder, and builds and runs the examples
# against it the ways a user would: find_package (shared, static, C only), pkg-config, and every
# public header alone without exceptions and RTTI.
# Usage: run.sh BUILD_DIR CC CXX [CONFIG]
set -eu
build=$1
cc=$2
cxx=$3
config=${4:-}
here=$(cd "$(dirname "$0")" && pwd)
examples=$here/../../examples
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "consumer: $*" >&2
  exit 1
}

# Zero scores: row 3 is the mean of the values 0, 0, 0, 4, its LSE the logarithm of 4.
expect_numbers() {
  LD_LIBRARY_PATH=${2:-} "$1" > "$work/output" || fail "$1: $(cat "$work/output")"
  grep -qx 'ok: row 3 = 1, lse = 1.38629' "$work/output" || fail "$1 printed: $(cat "$work/output")"
}

cmake --install "$build" ${config:+--config "$config"} --prefix "$work/installed" > "$work/log" ||
  fail "install: $(cat "$work/log")"
prefix=$work/moved
mv "$work/installed" "$prefix"

configure() {
  cmake -S "$here/$1" -B "$work/$1" -DCMAKE_PREFIX_PATH="$prefix" -DEXAMPLES="$examples" \
    -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" > "$work/log" 2>&1 ||
    fail "configure $1: $(cat "$work/log")"
  cmake --build "$work/$1" > "$work/log" 2>&1 || fail "build $1: $(cat "$work/log")"
}

configure project
for program in rowmax_cpp rowmax_c rowmax_static_cpp rowmax_static_c; do
  expect_numbers "$work/project/$program"
done
configure c_project
expect_numbers "$work/c_project/attention"

pc=$(find "$prefix" -name rowmax.pc)
[ -n "$pc" ] || fail "no rowmax.pc is installed"
if command -v pkg-config > /dev/null; then
  export PKG_CONFIG_PATH="${pc%/*}"
  # shellcheck disable=SC2046  # flags are words
  "$cc" -std=c99 -pedantic -Wall -Wextra -Werror "$examples/attention.c" -o "$work/attention" \
    $(pkg-config --cflags --libs rowmax) || fail "pkg-config build"
  expect_numbers "$work/attention" "$(pkg-config --variable=libdir rowmax)"
fi

for header in "$prefix"/include/rowmax/*.h; do
  name=$(basename "$header")
  echo "#include <rowmax/$name>" > "$work/header.cpp"
  "$cxx" -std=c++20 -fno-exceptions -fno-rtti -Wall -Wextra -Wpedantic -Werror \
    -Wno-missing-field-initializers -I"$prefix/include" -fsyntax-only "$work/header.cpp" ||
    fail "$name does not compile alone without exceptions and RTTI"
done
for name in c_api export version; do
  echo "#include <rowmax/$name.h>" > "$work/header.c"
  echo "typedef int not_empty;" >> "$work/header.c"
  "$cc" -std=c99 -pedantic -Wall -Wextra -Werror -I"$prefix/include" -fsyntax-only "$work/header.c" ||
    fail "$name.h does not compile as C99"
done
echo "consumer: all programs and headers work"
