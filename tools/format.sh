#!/usr/bin/env bash
# Formats every C++ file of the tree; with --check only says which files differ.
set -euo pipefail
cd "$(dirname "$0")/.." || exit

formatter=
for candidate in clang-format-14 clang-format; do
  if command -v "$candidate" > /dev/null && "$candidate" --version | grep -q 'version 14\.'; then
    formatter=$candidate
    break
  fi
done
if [[ -z $formatter ]]; then
  echo "format: clang-format 14 is needed (other versions format differently): tools/install_deps.sh lint" >&2
  exit 1
fi
mapfile -d '' files < <(git ls-files -z --cached --others --exclude-standard -- '*.h' '*.cuh' '*.cpp' '*.c')
if [[ ${1:-} == --check ]]; then
  "$formatter" --dry-run -Werror --ferror-limit=1 "${files[@]}"
  echo "format: ${#files[@]} files"
else
  "$formatter" -i "${files[@]}"
fi
