#!/usr/bin/env python3
"""Object files of the CPU backend: symbols, instructions and spills.

  tools/check_isa_objects.py [BUILD_DIR]     default build/release

- Units of an instruction set define no global or weak symbol outside their own namespace: the
  linker could pick an AVX2 copy of a shared function for a machine without AVX2.
- Nothing but the AVX2 units contains a VEX-encoded instruction.
- Innermost loops with at least 12 FMA in the AVX2 kernels store no vector register to the stack.
"""
import pathlib
import re
import subprocess
import sys

LEAST_FMA = 12
# Exceptions: a pattern of the function's name -> vector stores allowed in its worst loop. Only for
# loops of the exponential (15 to 20 FMA a pass; 4 % of forward's time at D = 128), whose four
# interleaved rows and constants need a few registers more than there are. No tile of the products.
EXCEPTIONS = {
    r"\bexponentiate_keys<": 4,
    r"\bexp2_column<": 3,
    r"::panel_block<": 2,
}
MOST_EXCEPTED_FMA = 20


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def check_symbols(isa, path):
    own = f"rowmax::cpu::{isa}::"
    for line in run("nm", "-C", "--defined-only", str(path)).splitlines():
        kind, _, name = line.partition(" ")[2].strip().partition(" ")
        # Upper case: global; W, V: weak; u: unique. Compiler helpers are hidden and merged by value.
        if (kind.isupper() or kind == "u") and kind not in "NRDB" and own not in name:
            yield f"{path.name} [{isa}]: {kind} {name}"


def instructions(path):
    """(function, [(address, mnemonic, operands)]) of an object file."""
    name, body = None, []
    for line in run("objdump", "-d", "--no-show-raw-insn", "-C", str(path)).splitlines():
        head = re.match(r"^[0-9a-f]+ <(.*)>:$", line)
        if head:
            if name is not None:
                yield name, body
            name, body = head.group(1), []
            continue
        found = re.match(r"^\s*([0-9a-f]+):\t(\S+)\s*(.*)$", line)
        if found:
            body.append((int(found.group(1), 16), found.group(2), found.group(3)))
    if name is not None:
        yield name, body


def check_no_vex(path):
    for name, body in instructions(path):
        for _, mnemonic, operands in body:
            if re.match(r"v[a-z]", mnemonic) and re.search(r"%[xyz]mm", operands):
                yield f"{path.name}: {mnemonic} in {name}"
                break


def innermost_loops(body):
    """(first, last) indices of ranges closed by a backward jump that hold no other such range."""
    index = {address: i for i, (address, _, _) in enumerate(body)}
    ranges = set()
    for i, (address, mnemonic, operands) in enumerate(body):
        target = re.match(r"([0-9a-f]+) ", operands + " ")
        if mnemonic.startswith("j") and target:
            to = int(target.group(1), 16)
            if to <= address and to in index:
                ranges.add((index[to], i))
    return [r for r in ranges
            if not any(o != r and r[0] <= o[0] and o[1] <= r[1] for o in ranges)]


def check_spills(path):
    """One line a function: its worst loop."""
    for name, body in instructions(path):
        worst = (0, 0)
        for first, last in innermost_loops(body):
            loop = body[first:last + 1]
            fma = sum(m.startswith(("vfm", "vfnm")) for _, m, _ in loop)
            stores = sum(m.startswith("vmov") and re.search(r"%[xy]mm\d+,[^,]*\(%r[sb]p", o)
                         is not None for _, m, o in loop)
            allowed = max((n for pattern, n in EXCEPTIONS.items()
                           if fma <= MOST_EXCEPTED_FMA and re.search(pattern, name)), default=0)
            if fma >= LEAST_FMA and stores > allowed:
                worst = max(worst, (stores, fma))
        if worst[0] > 0:
            yield (f"{path.name}: {worst[0]} vector stores to the stack in a loop of {worst[1]} "
                   f"FMA of {name[:110]}")


def main(arguments):
    build = pathlib.Path(arguments[0] if arguments else "build/release")
    objects = sorted(build.glob("src/**/*.o"))
    units = {isa: [o for o in objects if f"rowmax_cpu_{isa}" in str(o)]
             for isa in ("portable", "avx2")}
    if not units["portable"]:
        print(f"{build}: no kernel units; build it first", file=sys.stderr)
        return 2
    problems = []
    for isa, paths in units.items():
        for path in paths:
            problems += check_symbols(isa, path)
    if units["avx2"]:  # x86-64
        for path in objects:
            if path not in units["avx2"]:
                problems += check_no_vex(path)
        for path in units["avx2"]:
            if re.match(r"(forward|backward)\.", path.name):
                problems += check_spills(path)
    for problem in problems:
        print(problem)
    print(f"check_isa_objects: {sum(map(len, units.values()))} units, {len(objects)} objects, "
          f"{len(problems)} violations")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
