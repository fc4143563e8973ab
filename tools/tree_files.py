"""Files of the tree and C++ text with comments and strings blanked; shared by the gates."""
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE_SUFFIXES = {".h", ".cpp", ".c", ".cu", ".cuh", ".def"}


def tracked(suffixes=None):
    """Tracked files, and new ones that git does not ignore, relative to the root."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True).stdout.decode()
    paths = [pathlib.Path(p) for p in listed.split("\0") if p]
    return sorted(p for p in paths
                  if (ROOT / p).is_file() and (suffixes is None or p.suffix in suffixes))


def read(path):
    return (ROOT / path).read_text(encoding="utf-8", errors="replace")


_TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)


def code_only(text):
    """The text with comments, strings and character literals blanked; line numbers stay."""
    def blank(match):
        token = match.group(0)
        if token[0] == "'" and match.start() > 0 and text[match.start() - 1].isdigit():
            return token  # a digit separator
        return re.sub(r"[^\n]", " ", token)
    return _TOKEN.sub(blank, text)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1
