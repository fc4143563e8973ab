#!/usr/bin/env bash
# `make test`: release build with every test, its objects and tables, random problems. `make test-all`
# adds what the units take to compile, the sanitizers and the aarch64 compile check. Prints a table of
# seconds per stage; the last line sums up the tests. Exits 1 if anything failed; a failed release
# stage is the last one.
#   tools/test.sh [STAGE...]    release rows objects readme fuzz (default); budget cuda asan tsan
#                               aarch64
set -uo pipefail
cd "$(dirname "$0")/.." || exit

jobs=${JOBS:-$(nproc)}
stages=("$@")
if [[ ${#stages[@]} -eq 0 ]]; then
  stages=(release rows objects readme fuzz)
fi
mkdir -p build
passed=0
failed=0
broken=0
table=()

# Adds one ctest log's counts to the totals.
count() {
  local line total bad
  line=$(grep -E '^[0-9]+% tests passed, ' "$1" | tail -n 1)
  bad=$(sed -nE 's/^[0-9]+% tests passed, ([0-9]+) tests? failed out of ([0-9]+).*/\1/p' <<< "$line")
  total=$(sed -nE 's/^[0-9]+% tests passed, ([0-9]+) tests? failed out of ([0-9]+).*/\2/p' <<< "$line")
  if [[ -z $total || $total -eq 0 ]]; then
    echo "no tests ran" >&2
    return 1
  fi
  passed=$((passed + total - bad))
  failed=$((failed + bad))
}

# Configures, builds $targets (default: all) and runs ctest with the given selection.
build_and_test() {
  local preset=$1
  shift
  local log=build/test-$preset.log
  echo "logs: $log.build, then $log"
  cmake --preset "$preset" > "$log.configure" 2>&1 || { cat "$log.configure"; return 1; }
  # shellcheck disable=SC2086 # several targets
  cmake --build --preset "$preset" -j "$jobs" --target ${targets:-all} > "$log.build" 2>&1 || { grep -vE '^\[[0-9]+/' "$log.build" | tail -n 60; return 1; }
  ctest --test-dir "build/$preset" -j "$jobs" --output-on-failure --no-tests=error "$@" > "$log" 2>&1
  local rc=$?
  if [[ $rc -ne 0 ]]; then
    tail -n 120 "$log"
  fi
  count "$log" && return $rc
}

stage_release() { build_and_test release; }
# Every main kernel of instances.def has its numeric tests in this build.
stage_rows() { python3 tools/check_registry_tests.py build/release; }
stage_objects() { python3 tools/check_isa_objects.py build/release; }
# The generated tables of README.md are those of this tree.
stage_readme() { python3 tools/update_readme.py --check build/release; }
# Random problems against the oracle, a fixed seed, within four minutes; a counter that stays zero
# fails. Other seeds are for a release.
stage_fuzz() {
  local log=build/test-fuzz.log
  build/release/apps/rowmax/rowmax verify --suite fuzz --count 2000 --seconds 240 --seed 20261130 > "$log" 2>&1
  local rc=$?
  grep -A 9 '^FAIL ' "$log"
  grep 'NEVER$' "$log"
  grep -E '^[0-9]+ cases, [0-9]+ failed' "$log"
  return $rc
}
stage_budget() { python3 tools/check_compile_budget.py build/release; }
# Every row of the CUDA backend compiles within the budget and without spills, the library and the
# tests of a GPU link;
# no GPU is needed. Left out where there is no nvcc.
stage_cuda() {
  if ! command -v nvcc > /dev/null; then
    echo "no nvcc: CUDA rows are not compiled"
    return 0
  fi
  local log=build/test-cuda.log
  cmake --preset cuda -DROWMAX_BUILD_BENCH=OFF > "$log" 2>&1 \
    && cmake --build --preset cuda -j "$jobs" --target rowmax_command rowmax rowmax_device_tests >> "$log" 2>&1
  local rc=$?
  if [[ $rc -ne 0 ]]; then
    grep -vE '^\[[0-9]+/|^ptxas info' "$log" | tail -n 60
    return $rc
  fi
  python3 tools/check_compile_budget.py build/cuda
}
# The reference's runs over the registry are left out: minutes for loops that the unit tests cover.
stage_asan() {
  export ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1
  build_and_test asan -L 'unit|plan|numeric|cli' -LE consumer -E 'Registry/.*reference'
}
# Tests of threads, by name. The library runs plain threads under this sanitizer, because GCC's
# OpenMP runtime is not built for it.
stage_tsan() {
  export TSAN_OPTIONS=halt_on_error=1
  targets="rowmax_unit_tests rowmax_numeric_tests"
  build_and_test tsan -R '[Tt]hread'
}
# The portable units and everything of the host side; no tests, nothing is run.
stage_aarch64() {
  tools/install_deps.sh cross
  if ! command -v aarch64-linux-gnu-g++ > /dev/null; then
    return 0
  fi
  local log=build/test-aarch64.log
  # The header-only package of this machine serves the other one too, but CMake does not look there.
  local fmt_dir
  fmt_dir=$(dpkg -L libfmt-dev 2> /dev/null | grep '/fmt-config.cmake$' | xargs -r dirname)
  cmake -S . -B build/aarch64 -G Ninja -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
    -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc \
    -DCMAKE_BUILD_TYPE=Release -DROWMAX_WERROR=ON -DROWMAX_BUILD_TESTS=OFF -DROWMAX_BUILD_APPS=OFF \
    ${fmt_dir:+"-Dfmt_DIR=$fmt_dir"} > "$log" 2>&1 && cmake --build build/aarch64 -j "$jobs" --target rowmax >> "$log" 2>&1
  local rc=$?
  if [[ $rc -ne 0 ]]; then
    tail -n 40 "$log"
  fi
  return $rc
}

for stage in "${stages[@]}"; do
  if ! declare -F "stage_$stage" > /dev/null; then
    echo "test: no stage '$stage'" >&2
    exit 2
  fi
  echo "== $stage"
  begin=$SECONDS
  targets=
  "stage_$stage"
  rc=$?
  [[ $rc -ne 0 ]] && broken=$((broken + 1))
  table+=("$(printf '%-10s %6d s  %s' "$stage" $((SECONDS - begin)) "$([[ $rc -eq 0 ]] && echo ok || echo FAILED)")")
  if [[ $stage == release && $rc -ne 0 ]]; then
    table+=("the other stages were not run: they need what release builds")
    break
  fi
done

echo
printf '%s\n' "${table[@]}"
if [[ $broken -gt 0 && $failed -eq 0 ]]; then
  failed=$broken # a stage that could not build counts as one
fi
echo "$passed passed, $failed failed"
[[ $broken -eq 0 ]]
