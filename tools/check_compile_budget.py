#!/usr/bin/env python3
"""Compiles every kernel unit of a build once more, without a cache, and measures it.

  tools/check_compile_budget.py [BUILD_DIR]     default build/release

A unit may take 8 s of processor time and 0.6 GB, one unit at a time. Twice the time is allowed while
other work runs: cores of virtual machines are often the two halves of one.
"""
import json
import os
import pathlib
import re
import shlex
import sys

MAX_SECONDS, MAX_GB = 8.0, 0.6
BUSY_FACTOR = 2.0


def compile_once(entry):
    """(name, seconds of processor time, GB) of one unit; raises if it does not compile."""
    command = shlex.split(entry["command"])
    if pathlib.Path(command[0]).name == "ccache":
        command = command[1:]
    output = command.index("-o") + 1
    name = re.sub(r".*/CMakeFiles/(\w+)\.dir/units/(\w+)\.cpp\.o", r"\2 [\1]", command[output])
    command[output] = os.devnull
    # No dependency files: the build owns them.
    for option, width in (("-MF", 2), ("-MT", 2), ("-MD", 1)):
        if option in command:
            at = command.index(option)
            del command[at:at + width]
    child = os.posix_spawnp("env", ["env", "-C", entry["directory"], *command], os.environ)
    _, status, usage = os.wait4(child, 0)
    if status != 0:
        raise RuntimeError(f"{name} does not compile")
    return name, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e6


def main(arguments):
    build = pathlib.Path(arguments[0] if arguments else "build/release")
    entries = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    units = [e for e in entries if re.search(r"/rowmax_cpu_\w+\.dir/units/", e["command"])]
    if not units:
        print(f"{build}: no kernel units; configure it first", file=sys.stderr)
        return 2
    busy = os.getloadavg()[0] > os.cpu_count() / 2
    limit = MAX_SECONDS * (BUSY_FACTOR if busy else 1.0)
    measured = sorted((compile_once(unit) for unit in units), key=lambda unit: -unit[1])
    bad = 0
    for name, seconds, gigabytes in measured:
        over = seconds > limit or gigabytes > MAX_GB
        bad += over
        if over:
            print(f"{name}: {seconds:.1f} s, {gigabytes:.2f} GB; at most {limit:g} s and {MAX_GB} GB")
    worst = measured[0]
    print(f"check_compile_budget: {len(measured)} units, slowest {worst[0]} {worst[1]:.1f} s, largest "
          f"{max(m[2] for m in measured):.2f} GB, {bad} violations")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
