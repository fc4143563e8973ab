#!/usr/bin/env python3
"""bench/compare_gpu.py without a GPU: which cases its suites have."""
import os
import sys
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "bench"))
from compare_gpu import describe, suite  # pylint: disable=wrong-import-position


class Suites(unittest.TestCase):
    def test_all_has_every_suite(self):
        specs, outliers = suite("all", 1)
        self.assertTrue(outliers)
        self.assertEqual({spec["case"] for spec in specs},
                         {"dense", "drawn", "plain", "lse", "sinks", "alibi", "softcap", "window",
                          "d80", "d96", "fp16", "ragged"})
        self.assertEqual(len({describe(spec) for spec in specs}), len(specs))

    def test_table_is_the_published_one(self):
        specs, outliers = suite("table", 1)
        self.assertFalse(outliers)
        self.assertEqual(len(specs), 36)
        for spec in specs:
            self.assertEqual(spec["b"] * spec["sq"], 16384)
            self.assertEqual(spec["hq"] * spec["d"], 2048)

    def test_seeds_draw_shapes_and_nothing_else(self):
        drawn = [suite("drawn", seed)[0] for seed in (1, 1, 2)]
        self.assertEqual(drawn[0], drawn[1])
        self.assertNotEqual(drawn[0], drawn[2])
        self.assertEqual(suite("ragged", 1), suite("ragged", 2))


if __name__ == "__main__":
    unittest.main()
