#!/bin/sh
# Compares what the shared library exports with exported_symbols.txt, and what it needs with the
# libraries every system has.
# Usage: symbols.sh LIBRARY [--update]
set -eu
library=$1
list=$(dirname "$0")/exported_symbols.txt
found=$(mktemp)
trap 'rm -f "$found"' EXIT

nm -D --defined-only "$library" | awk '{print $3}' | c++filt | LC_ALL=C sort > "$found"
if [ "${2:-}" = --update ]; then
  cp "$found" "$list"
fi
diff -u "$list" "$found" || {
  echo "symbols: exports differ from $list; see docs/abi.md before --update" >&2
  exit 1
}

needed=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
for name in $needed; do
  case $name in
    libc.so.* | libm.so.* | libstdc++.so.* | libgcc_s.so.* | libgomp.so.* | ld-linux*.so.*) ;;
    *)
      echo "symbols: needs $name; accepted: libc, libm, libstdc++, libgcc_s, libgomp" >&2
      exit 1
      ;;
  esac
done
soname=$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
case $soname in
  librowmax.so.[0-9]*) ;;
  *)
    echo "symbols: SONAME is '$soname'; accepted: librowmax.so.<major>" >&2
    exit 1
    ;;
esac
echo "symbols: exports, needed libraries and SONAME $soname are as committed"
