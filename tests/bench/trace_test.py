#!/usr/bin/env python3
"""The committed timeline of a Hopper kernel: consumer warpgroups alternate on the tensor cores, and
their softmax runs under the products of the others."""
import glob
import json
import os
import sys
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "bench"))
from plot_trace import render, roles  # pylint: disable=wrong-import-position


class Trace(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        files = sorted(glob.glob(os.path.join(ROOT, "bench", "results", "h200_trace_*.json")))
        with open(files[-1], encoding="utf-8") as f:
            cls.trace = json.load(f)
        cls.consumers = [spans for name, spans in roles(cls.trace) if name.startswith("warpgroup")]

    def test_roles_are_in_one_state_at_a_time(self):
        for name, spans in roles(self.trace):
            for before, after in zip(spans, spans[1:]):
                self.assertEqual(before["ts"] + before["dur"], after["ts"], name)

    def test_warpgroups_take_turns(self):
        self.assertGreaterEqual(len(self.consumers), 2)
        turns = sorted((span["ts"], group) for group, spans in enumerate(self.consumers)
                       for span in spans if span["name"] == "issue")
        self.assertGreaterEqual(len(turns), 6)
        for (_, before), (_, after) in zip(turns, turns[1:]):
            self.assertEqual(after, (before + 1) % len(self.consumers))

    def test_softmax_runs_under_the_others_products(self):
        for group, spans in enumerate(self.consumers):
            others = [span for other, more in enumerate(self.consumers) if other != group
                      for span in more if span["name"] == "issue"]
            softmax = [span for span in spans if span["name"] in ("maximum", "exponentials")]
            covered = sum(max(0, min(a["ts"] + a["dur"], b["ts"] + b["dur"]) - max(a["ts"], b["ts"]))
                          for a in softmax for b in others)
            self.assertGreater(covered, 0.2 * sum(span["dur"] for span in softmax))

    def test_the_picture_is_up_to_date(self):
        with open(os.path.join(ROOT, "docs", "plots", "h200_trace.svg"), encoding="utf-8") as f:
            self.assertEqual(f.read(), render(self.trace))


if __name__ == "__main__":
    unittest.main()
