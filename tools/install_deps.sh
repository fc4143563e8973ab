#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages that the build needs, when that is possible; else prints
# the exact line to run.
#   tools/install_deps.sh build    what `make demo`, `make test` and `make bench` need (default)
#   tools/install_deps.sh lint     the formatter
#   tools/install_deps.sh cross    the aarch64 compiler; failing to get it is not an error
set -euo pipefail

declare -A packages=(
  [build]="make cmake ninja-build g++ git python3 libfmt-dev nlohmann-json3-dev libcli11-dev libgtest-dev libbenchmark-dev"
  [lint]="clang-format-14 python3 binutils git"
  [cross]="g++-aarch64-linux-gnu"
)
set_name=${1:-build}
if [[ -z ${packages[$set_name]:-} ]]; then
  echo "install_deps: no set '$set_name'; one of: ${!packages[*]}" >&2
  exit 2
fi

if ! command -v dpkg-query > /dev/null; then
  echo "install_deps: no Debian packages here; CMake fetches the libraries. Needed: make, cmake >= 3.25, ninja, a C++20 compiler with OpenMP, python3."
  exit 0
fi
missing=()
for package in ${packages[$set_name]}; do
  if ! dpkg-query -W -f='${Status}' "$package" 2> /dev/null | grep -q '^install ok installed$'; then
    missing+=("$package")
  fi
done
if [[ ${#missing[@]} -eq 0 ]]; then
  exit 0
fi

line="apt-get install -y --no-install-recommends ${missing[*]}"
if [[ $(id -u) -eq 0 ]] && command -v apt-get > /dev/null; then
  echo "install_deps: $line"
  export DEBIAN_FRONTEND=noninteractive
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  # The package lists may be absent or stale: try, refresh, try again.
  if $line > "$log" 2>&1 || { apt-get update > "$log" 2>&1 && $line > "$log" 2>&1; }; then
    exit 0
  fi
  tail -n 20 "$log" >&2
fi
if [[ $set_name == cross ]]; then
  echo "install_deps: ${missing[*]} cannot be installed here; the aarch64 check is skipped"
  exit 0
fi
echo "install_deps: packages are missing. Run:  sudo $line" >&2
exit 1
