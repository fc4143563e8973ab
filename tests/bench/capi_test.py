#!/usr/bin/env python3
"""bench/capi.py: the commit that a result file records."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))
from capi import commit  # pylint: disable=wrong-import-position


def git(folder, *words):
    identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    subprocess.run(["git", "-C", folder, *identity, *words], check=True, capture_output=True)


@unittest.skipUnless(shutil.which("git"), "needs git")
class Commit(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = holder.name
        # A tree that happens to hold the temporary folder is not looked at.
        ceiling = mock.patch.dict(os.environ, {"GIT_CEILING_DIRECTORIES": os.path.dirname(self.folder)})
        ceiling.start()
        self.addCleanup(ceiling.stop)

    def write(self, name, text):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.write(text)

    def committed(self):
        git(self.folder, "init", "-q")
        self.write("a", "1")
        git(self.folder, "add", "a")
        git(self.folder, "commit", "-q", "-m", "one")

    def test_none_outside_git(self):
        self.assertIsNone(commit(self.folder))

    def test_none_before_the_first_commit(self):
        git(self.folder, "init", "-q")
        self.assertIsNone(commit(self.folder))

    def test_none_without_git(self):
        with mock.patch.dict(os.environ, {"PATH": self.folder}):
            self.assertIsNone(commit(self.folder))

    def test_hash_of_an_unchanged_tree(self):
        self.committed()
        self.assertRegex(commit(self.folder), r"^[0-9a-f]{7,}$")
        git(self.folder, "tag", "v1")  # a tag does not take the hash's place
        self.assertRegex(commit(self.folder), r"^[0-9a-f]{7,}$")

    def test_dirty_when_tracked_files_differ(self):
        self.committed()
        clean = commit(self.folder)
        self.write("results", "not tracked")
        self.assertEqual(commit(self.folder), clean)
        self.write("a", "2")
        self.assertEqual(commit(self.folder), clean + "-dirty")
        git(self.folder, "add", "a")  # staged, not committed
        self.assertEqual(commit(self.folder), clean + "-dirty")

    def test_the_default_is_the_tree_of_the_scripts(self):
        found = commit()
        self.assertTrue(found is None or re.fullmatch(r"[0-9a-f]{7,}(-dirty)?", found), found)


if __name__ == "__main__":
    unittest.main()
