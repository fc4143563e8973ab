#!/usr/bin/env python3
"""Compiles every kernel unit of a build once more and checks its time, memory and registers.

  tools/check_compile_budget.py [BUILD_DIR]     default build/release

A unit may take 8 s of processor time and 0.6 GB, one unit at a time. Twice the time is allowed while
other work runs: cores of virtual machines are often the two halves of one. A CUDA unit may not spill
registers, unless its row's instances.def says how much with the measurement behind it:
  // spills NAME: 24 bytes; reason
More time is admitted there likewise:
  // seconds NAME: 12; reason
and ptxas may not report that it serialised wgmma or ignored a register request.
"""
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

from tree_files import ROOT

MAX_SECONDS, MAX_GB = 8.0, 0.6
BUSY_FACTOR = 2.0
UNIT = re.compile(r".*/CMakeFiles/(\w+)\.dir/(?:units/|.*/)?(\w+)\.(?:cpp|cu)\.o")
# setmaxnreg ignored; wgmma serialised (two messages).
PTXAS_ERRORS = re.compile(r"C7508|C7514|C7515|setmaxnreg ignored|serializ", re.I)


def admitted(what, unit):
    """Row name -> what its instances.def admits: bytes of spill stores, or seconds."""
    numbers = {}
    for path in ROOT.glob("src/backend/cuda/**/instances.def"):
        for name, count in re.findall(rf"^// {what} (\w+): (\d+){unit}; \S", path.read_text(), re.M):
            numbers[name] = int(count)
    return numbers


def compile_once(entry):
    """(name, seconds of processor time, GB, messages) of one unit; raises if it does not compile."""
    command = shlex.split(entry["command"])
    if pathlib.Path(command[0]).name == "ccache":
        command = command[1:]
    output = command.index("-o") + 1
    target, unit = UNIT.match(command[output]).groups()
    # No dependency files: the build owns them.
    for option, width in (("-MF", 2), ("-MT", 2), ("-MD", 1)):
        if option in command:
            at = command.index(option)
            del command[at:at + width]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as messages:
        command[command.index("-o") + 1] = os.path.join(folder, "unit.o")
        child = subprocess.Popen(command, cwd=entry["directory"], stdout=messages, stderr=messages)
        _, status, usage = os.wait4(child.pid, 0)
        messages.seek(0)
        text = messages.read()
    if status != 0:
        raise RuntimeError(f"{unit} [{target}] does not compile\n{text}")
    return f"{unit} [{target}]", usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e6, text


def complaints(name, seconds, gigabytes, text, limit, spills):
    if seconds > limit or gigabytes > MAX_GB:
        yield f"{seconds:.1f} s, {gigabytes:.2f} GB; at most {limit:g} s and {MAX_GB} GB"
    spilled = max((int(n) for n in re.findall(r"(\d+) bytes spill stores", text)), default=0)
    if spilled > spills:
        yield f"spills {spilled} bytes; at most {spills}"
    for line in text.split("\n"):
        if PTXAS_ERRORS.search(line) or re.search(r"\bwarning\b", line):
            yield line.strip()


def main(arguments):
    build = pathlib.Path(arguments[0] if arguments else "build/release")
    entries = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    units = [e for e in entries
             if re.search(r"/rowmax_cpu_\w+\.dir/units/|/rowmax_cuda_\w+\.dir/", e["command"])]
    if any("rowmax_cuda_" in e["command"] for e in units):  # the CPU's units are those of any build
        units = [e for e in units if "rowmax_cuda_" in e["command"]]
    if not units:
        print(f"{build}: no kernel units; configure it first", file=sys.stderr)
        return 2
    busy = os.getloadavg()[0] > os.cpu_count() / 2
    spills, times = admitted("spills", " bytes"), admitted("seconds", "")
    measured = sorted((compile_once(unit) for unit in units), key=lambda unit: -unit[1])
    bad = 0
    for name, seconds, gigabytes, text in measured:
        row = name.split(" ")[0]
        limit = times.get(row, MAX_SECONDS) * (BUSY_FACTOR if busy else 1.0)
        for complaint in complaints(name, seconds, gigabytes, text, limit, spills.get(row, 0)):
            bad += 1
            print(f"{name}: {complaint}")
    worst = measured[0]
    print(f"check_compile_budget: {len(measured)} units, {sum(m[1] for m in measured):.0f} s in all, "
          f"slowest {worst[0]} {worst[1]:.1f} s, largest {max(m[2] for m in measured):.2f} GB, "
          f"{bad} violations")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
