#!/usr/bin/env python3
"""bench/compare_gpu.py without a GPU: which cases its suites have, and what a row says of peers."""
import argparse
import contextlib
import io
import os
import re
import sys
import types
import unittest
from unittest import mock

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "bench"))
from capi import percentile  # pylint: disable=wrong-import-position
from compare_gpu import (  # pylint: disable=wrong-import-position
    Case, Peers, cases_of, describe, main, regular_expression, suite_names)


def suite(text, seed=1):
    return cases_of(suite_names(text), seed)


class Suites(unittest.TestCase):
    def test_all_has_every_suite(self):
        specs = suite("all")
        self.assertEqual({spec["case"] for spec in specs},
                         {"dense", "drawn", "plain", "lse", "sinks", "alibi", "softcap", "window",
                          "d80", "d96", "fp16", "ragged", "outliers"})
        self.assertEqual(len({describe(spec) for spec in specs}), len(specs))

    def test_table_is_the_published_one(self):
        specs = suite("table")
        self.assertEqual(len(specs), 36)
        for spec in specs:
            self.assertEqual(spec["case"], "dense")
            self.assertEqual(spec["b"] * spec["sq"], 16384)
            self.assertEqual(spec["hq"] * spec["d"], 2048)

    def test_seeds_draw_shapes_and_nothing_else(self):
        drawn = [suite("drawn", seed) for seed in (1, 1, 2)]
        self.assertEqual(drawn[0], drawn[1])
        self.assertNotEqual(drawn[0], drawn[2])
        self.assertEqual(suite("ragged", 1), suite("ragged", 2))

    def test_only_holds_for_every_suite(self):
        def found(only):
            return {spec["case"] for spec in cases_of(suite_names("all"), 1, re.compile(only))}
        self.assertEqual(found("^outliers"), {"outliers"})
        self.assertEqual(found("softcap"), {"softcap"})
        self.assertEqual(found("^ragged bf16"), {"ragged"})

    def test_unknown_names_are_refused(self):
        for text in ("typo", "table,typo", "all,table", "table,", ""):
            with self.assertRaisesRegex(argparse.ArgumentTypeError, "accepted: a comma list of table, "):
                suite_names(text)
        with self.assertRaises(argparse.ArgumentTypeError):
            regular_expression("(")

    def test_the_command_line_says_so(self):
        for words, text in ((["--suite", "typo"], "'typo' is unknown"),
                            (["--only", "("], "'(' is no regular expression")):
            errors = io.StringIO()
            with mock.patch.object(sys, "argv", ["compare_gpu.py", *words]), \
                    contextlib.redirect_stderr(errors), self.assertRaises(SystemExit) as end:
                main()
            self.assertEqual(end.exception.code, 2)
            self.assertIn(text, errors.getvalue())


class AbsentPeers(unittest.TestCase):
    def test_the_error_is_kept_and_said_once(self):
        def fail():
            raise RuntimeError("no kernel\nfor this shape")
        peers, errors, found = Peers(), io.StringIO(), []
        with contextlib.redirect_stderr(errors):
            for _ in range(2):
                case = Case.__new__(Case)
                case.peers, case.absent, case.contenders, case.outputs = peers, {}, {}, {}
                case.torch = types.SimpleNamespace(cuda=types.SimpleNamespace(synchronize=lambda: None))
                case.add_peer("fa3", fail)
                case.add_peer("fa4", lambda: ("out", "lse"))
                found.append((case.absent, list(case.contenders), case.outputs))
        absent = {"fa3": "RuntimeError: no kernel for this shape"}
        self.assertEqual(found, [(absent, ["fa4"], {"fa4": "out"})] * 2)
        self.assertEqual(errors.getvalue(),
                         "compare_gpu: without fa3: RuntimeError: no kernel for this shape\n")


class Percentile(unittest.TestCase):
    def test_is_the_nearest_rank(self):
        for count, rank in ((1, 1), (7, 1), (10, 1), (11, 2), (20, 2), (21, 3)):
            self.assertEqual(percentile(range(count, 0, -1), 0.1), rank)
        self.assertEqual(percentile([3, 1, 2], 1.0), 3)
        self.assertEqual(percentile([3, 1, 2], 0.0), 1)


if __name__ == "__main__":
    unittest.main()
