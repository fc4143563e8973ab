#!/usr/bin/env python3
"""Plants each fault of tools/faults.py in a copy of the tree and requires that the unit, plan or
numeric tests fail.

On demand and before a release; it rebuilds the kernels once per fault.
  tools/plant_faults.py [NAME...]           all faults, or those named
  tools/plant_faults.py --check             only: every old text occurs exactly once
  tools/plant_faults.py --list
  options: --jobs N
Works in build/faults. Exits 1 when a fault survives or cannot be built.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import time

from faults import FAULTS
from tree_files import ROOT, read, tracked

WORK = ROOT / "build" / "faults"
TREE = WORK / "tree"


def check():
    bad = 0
    names = [fault.name for fault in FAULTS]
    for fault in FAULTS:
        text = read(fault.file) if (ROOT / fault.file).is_file() else ""
        if text.count(fault.old) != 1 or fault.old == fault.new or names.count(fault.name) != 1:
            print(f"{fault.file}: fault {fault.name}: old text occurs {text.count(fault.old)} times")
            bad += 1
    print(f"plant_faults: {len(FAULTS)} faults, {bad} cannot be planted")
    return 1 if bad else 0


def copy_tree():
    """Brings the copy up to date; only files that differ are written, so builds stay incremental."""
    wanted = set()
    for path in tracked():
        if str(path).startswith(("bench/results", "docs")):
            continue
        wanted.add(TREE / path)
        target = TREE / path
        content = (ROOT / path).read_bytes()
        if not target.exists() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            shutil.copymode(ROOT / path, target)
    for path in TREE.rglob("*"):
        if path.is_file() and path not in wanted:
            path.unlink()


TARGETS = ("rowmax_unit_tests", "rowmax_plan_tests", "rowmax_numeric_tests")


def build(jobs):
    log = WORK / "build.log"
    with log.open("w", encoding="utf-8") as out:
        configured = (WORK / "cmake" / "build.ninja").exists() or subprocess.run(
            ["cmake", "-S", TREE, "-B", WORK / "cmake", "-G", "Ninja", "-DROWMAX_BUILD_APPS=OFF",
             "-DROWMAX_INSTALL=OFF", "-DCMAKE_BUILD_TYPE=Release"], stdout=out, stderr=out,
            check=False).returncode == 0
        return configured and subprocess.run(
            ["cmake", "--build", WORK / "cmake", "-j", str(jobs), "--target", *TARGETS], stdout=out,
            stderr=out, check=False).returncode == 0


def run_binary(name, test_filter, jobs):
    """The first failing test of a test binary, run in `jobs` shards, or None."""
    binary = next((WORK / "cmake" / "tests").rglob(name))
    shards = [subprocess.Popen(
        [binary, "--gtest_fail_fast", "--gtest_brief=1", f"--gtest_filter={test_filter}"],
        env=dict(os.environ, GTEST_TOTAL_SHARDS=str(jobs), GTEST_SHARD_INDEX=str(shard)),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for shard in range(jobs)]
    failing = None
    for shard in shards:
        try:
            output, _ = shard.communicate(timeout=900)
        except subprocess.TimeoutExpired:
            shard.kill()
            failing = failing or "a test that hangs"
            continue
        match = re.search(r"^\[  FAILED  \] ([^ ,\n]+)", output, re.M)
        if shard.returncode != 0:
            failing = failing or (match.group(1) if match else f"exit {shard.returncode}")
    return failing


def run_tests(file, jobs):
    """The first failing test, or None. Tests named after the changed file's kernel come first."""
    kernel = next((k for k in ("forward", "decode", "backward", "combine", "bias_gradient", "reduce")
                   if k in file), "")
    kernel = {"combine": "forward", "bias_gradient": "backward", "reduce": "backward"}.get(kernel,
                                                                                           kernel)
    first = [("rowmax_numeric_tests", f"*{kernel}_f32_avx2*")] if kernel else []
    for name, test_filter in first + [(name, "*") for name in TARGETS]:
        failing = run_binary(name, test_filter, jobs)
        if failing is not None:
            return failing
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{fault.name:32} {fault.file}" for fault in FAULTS))
        return 0
    if check():
        return 1
    if options.check:
        return 0
    unknown = set(options.names) - {fault.name for fault in FAULTS}
    if unknown:
        print(f"unknown fault {sorted(unknown)[0]}", file=sys.stderr)
        return 2
    chosen = [f for f in FAULTS if not options.names or f.name in options.names]

    WORK.mkdir(parents=True, exist_ok=True)
    copy_tree()
    if not build(options.jobs):
        print(f"the unchanged tree does not build: {WORK / 'build.log'}", file=sys.stderr)
        return 1
    failing = run_tests("", options.jobs)
    if failing is not None:
        print(f"the unchanged tree fails {failing}", file=sys.stderr)
        return 1
    print(f"{'fault':32} {'seconds':>7}  caught by")
    survivors = 0
    for fault in chosen:
        begin = time.monotonic()
        target = TREE / fault.file
        original = target.read_text(encoding="utf-8")
        target.write_text(original.replace(fault.old, fault.new), encoding="utf-8")
        try:
            caught = run_tests(fault.file, options.jobs) if build(options.jobs) else ""
        finally:
            target.write_text(original, encoding="utf-8")
        if caught is None:
            verdict = "NOT CAUGHT"
        elif caught == "":
            verdict = "DOES NOT BUILD"
        else:
            verdict = caught
        survivors += not caught
        print(f"{fault.name:32} {time.monotonic() - begin:7.0f}  {verdict}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
