#!/usr/bin/env python3
"""Every main kernel of the registry has an instance of every test that walks it.

  tools/check_registry_tests.py [BUILD_DIR]     default build/release

The rows come from src/backend/cpu/instances.def, the tests from the built test program. Rows of an
instruction set that this machine cannot run are left out; portable ones never are.
"""
import pathlib
import re
import subprocess
import sys

from tree_files import ROOT, read

DEFINITIONS = pathlib.Path("src/backend/cpu/instances.def")
MAIN_STEPS = {"kForward", "kDecode", "kBackward"}
# Suites of tests/numeric that are instantiated over the registry.
SUITES = ("Kernels", "ThreadBits", "NonFinite", "FarStrides", "Neighbours", "Dropout",
          "HugeBias")


def rows():
    """(row's name, instruction set, step) of instances.def."""
    for isa, function, step in re.findall(r"^ROWMAX_INSTANCE\(\s*(\w+)\s*,\s*(\w+)\s*,\s*(\w+)",
                                          read(DEFINITIONS), re.M):
        yield f"{function}_{isa}", isa, step


def main(arguments):
    build = ROOT / (arguments[0] if arguments else "build/release")
    listed = subprocess.run([build / "tests/numeric/rowmax_numeric_tests", "--gtest_list_tests"],
                            capture_output=True, text=True, check=True).stdout
    instances = {suite: set() for suite in SUITES}
    suite = None
    for line in listed.splitlines():
        head = re.match(r"^(?:\w+/)?(\w+)\.$", line.split("#")[0].strip())
        if not line.startswith(" "):
            suite = head.group(1) if head else None
        elif suite in instances and "/" in line:
            instances[suite].add(line.split("#")[0].strip().split("/")[1])
    # A machine without an instruction set has no instance of any of its rows.
    device = subprocess.run([build / "apps/rowmax/rowmax", "devices"],
                            capture_output=True, text=True, check=True).stdout
    main_rows = [(name, isa) for name, isa, step in rows() if step in MAIN_STEPS]
    bad = 0
    for name, isa in main_rows:
        if isa != "portable" and isa not in device:
            continue
        for suite, names in instances.items():
            if not any(n == name or re.fullmatch(re.escape(name) + r"_\d+", n) for n in names):
                print(f"{name}: no instance of {suite} in tests/numeric")
                bad += 1
    if not main_rows:
        print(f"{DEFINITIONS}: no rows were found")
        bad += 1
    print(f"check_registry_tests: {len(main_rows)} main kernels, {len(SUITES)} suites, "
          f"{bad} violations")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
