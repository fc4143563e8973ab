#!/usr/bin/env python3
"""bench/plot_trace.py, and the committed timeline of a Hopper kernel: consumer warpgroups alternate on
the tensor cores, and their softmax runs under the products of the others."""
import glob
import json
import os
import sys
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "bench"))
from plot_trace import cut, render, roles  # pylint: disable=wrong-import-position


def span(tid, name, begin, length, pid=0):
    return {"name": name, "ph": "X", "ts": begin, "dur": length, "pid": pid, "tid": tid,
            "args": {"block": 0}}


def name_of(tid, name, pid=0):
    return {"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


class Plot(unittest.TestCase):
    trace = {"otherData": {"kernel": "k<1>"},
             "traceEvents": [name_of(1, "warpgroup 1"), name_of(0, "warpgroup 0"),
                             name_of(2, "warpgroup 2"), name_of(0, "warpgroup 0", pid=1),
                             span(1, "issue", 300, 50), span(0, "wait turn", 200, 100),
                             span(0, "issue", 100, 100), span(0, "issue", 0, 9, pid=1)]}

    def test_roles_in_order_without_those_not_seen(self):
        found = roles(self.trace)
        self.assertEqual([name for name, _ in found], ["warpgroup 0", "warpgroup 1"])
        self.assertEqual([e["ts"] for e in found[0][1]], [100, 200])

    def test_a_cut_begins_at_zero(self):
        part = cut(self.trace, 150, 320, {"device": "d"})
        self.assertEqual(part["otherData"], {"kernel": "k<1>", "device": "d"})
        self.assertEqual([(name, [e["ts"] for e in spans]) for name, spans in roles(part)],
                         [("warpgroup 0", [50]), ("warpgroup 1", [150])])

    def test_picture(self):
        svg = render(self.trace)
        self.assertIn("k&lt;1&gt;", svg)
        self.assertIn("250 clocks", svg)
        self.assertEqual(svg.count('height="22"'), 3)  # a box a span


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
