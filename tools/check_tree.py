#!/usr/bin/env python3
"""Rules of the tree: include layers, sizes, comments, literals, documentation.

Prints one line per violation and exits 1 if there is any.
  tools/check_tree.py [CHECK...]     all checks, or those named; --list prints their names
"""
import ast
import concurrent.futures
import fractions
import hashlib
import os
import pathlib
import re
import subprocess
import sys

from tree_files import ROOT, SOURCE_SUFFIXES, code_only, line_of, read, tracked

# ---- include layers ------------------------------------------------------------------------------
# Folder -> what it may include besides its own files and public headers (rowmax/...).
LAYERS = {
    "include/rowmax": [],
    "src/core": [],
    "src/problem": ["src/core"],
    "src/kernel_api": ["src/core", "src/problem"],
    "src/plan": ["src/core", "src/problem", "src/kernel_api"],
    "src/backend/reference": ["src/core", "src/problem", "src/kernel_api"],
    "src/backend/cpu": ["src/core", "src/problem", "src/kernel_api"],
    "src/backend/cuda": ["src/core", "src/problem", "src/kernel_api"],
    "src/distributed": ["src/core", "src/problem", "src/kernel_api", "src/plan"],
    "src/api": ["src"],
    # The test kit binds tensors as the api does and owns the error bounds, which come from the
    # reference's own score rows.
    "testkit": ["src/core", "src/problem", "src/kernel_api", "src/backend/reference",
                "src/api/bind.h"],
    "apps": ["testkit"],
    "examples": [],
    "python": [],
    "bench": ["src/kernel_api", "src/core", "src/problem", "testkit"],
    "tests/consumer": [],
    "tests/cli": ["apps", "testkit"],
    "tests/device": ["testkit"],
    "tests/numeric": ["src/kernel_api", "testkit"],
    "tests/plan": ["src/kernel_api", "src/plan", "testkit"],
    "tests/unit": ["src/kernel_api", "testkit"],
    "tests": [],
}
# Files that are wider than their folder: tests of an internal unit, those that need the list of all
# kernels or the generator of dropout to compare with, and the tuner of the planner's table.
LAYER_EXCEPTIONS = {
    "apps/rowmax/ranking_fit.cpp": ["src/plan/cost_cuda.h"],
    "apps/rowmax/ranking_fit.h": ["src/plan/ranking.h"],
    "apps/rowmax/tune_times.cpp": ["src/api/backends.h", "src/plan/planner.h"],
    "tests/cli/ranking_fit_test.cpp": ["src/plan/ranking.h"],
    "tests/numeric/runs.cpp": ["src/api/backends.h"],
    "tests/numeric/dropout_test.cpp": ["src/problem/philox.h"],
    "tests/plan/cuda_schedule_test.cpp": ["src/api/backends.h"],
    "tests/plan/cuda_test.cpp": ["src/api/backends.h"],
    "tests/plan/golden_test.cpp": ["src/api/backends.h"],
    "tests/plan/ranking_test.cpp": ["src/api/backends.h"],
    "tests/plan/registry_test.cpp": ["src/api/backends.h"],
    "tests/unit/band_test.cpp": ["src/problem/band.h"],
    "tests/unit/bind_test.cpp": ["src/api/bind.h"],
    "tests/unit/c_api_test.cpp": ["src/api/c_problem.h"],
    "tests/unit/cpu_softmax_test.cpp": ["src/backend/cpu/softmax-inl.h"],
    "tests/unit/cuda_lengths_test.cpp": ["src/backend/cuda/tile/lengths.cuh"],
    "tests/unit/cuda_mask_test.cpp": ["src/backend/cuda/tile/mask.cuh"],
    "tests/unit/cuda_rings_test.cpp": ["src/backend/cuda/sm90/forward/config.h",
                                       "src/backend/cuda/sm90/forward/instances.def",
                                       "src/backend/cuda/sm90/tile_order.h"],
    "tests/unit/cuda_tiles_test.cpp": ["src/backend/cuda/sm90/forward/config.h",
                                       "src/backend/cuda/sm90/forward/instances.def",
                                       "src/backend/cuda/sm90/tile_order.h",
                                        "src/backend/cuda/tile/tanh.h"],
    "tests/unit/cuda_visits_test.cpp": ["src/backend/cuda/sm90/backward",
                                        "src/backend/cuda/sm90/tile_order.h",
                                        "src/backend/cuda/tile/lengths.cuh"],
    "tests/unit/reference_test.cpp": ["src/backend/reference/registry.h", "src/api/bind.h",
                                      "src/core/half.h"],
    "tests/unit/tensor_check_test.cpp": ["src/api/tensor_check.h"],
}

# Kernel units are compiled once per instruction set: anything that could emit a weak symbol outside
# the unit's own namespace stays out.
ISA_UNIT = re.compile(r"^src/backend/cpu/(units/.*|simd/.*|.*-inl\.h)$")
ISA_MAY = re.compile(
    r"^(backend/cpu/(simd/.*|.*-inl\.h|.*_scratch\.h|(kernels|limits|carver)\.h)|"
    r"core/half\.h|rowmax/dtype\.h|"
    r"kernel_api/(args|layout|kernel|schedule)\.h|problem/(band|philox)\.h)$")
ISA_SYSTEM = {"cstdint", "cstddef", "immintrin.h", "arm_neon.h"}


def layer_of(path):
    best = ""
    for folder in LAYERS:
        if (path == folder or path.startswith(folder + "/")) and len(folder) > len(best):
            best = folder
    return best


def resolve_include(includer, name):
    """The tree's file behind an include, or None."""
    for base in (includer.parent, pathlib.Path("src"), pathlib.Path("include"), pathlib.Path("."),
                 pathlib.Path("apps/rowmax")):
        candidate = pathlib.Path(os.path.normpath(base / name))
        if (ROOT / candidate).is_file():
            return candidate
    return None


def includes(path):
    for match in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', read(path), re.M):
        yield line_of(match.string, match.start()), match.group(1), match.group(2)


def check_layers():
    for path in tracked(SOURCE_SUFFIXES):
        own = layer_of(str(path))
        if not own:
            continue
        isa_unit = ISA_UNIT.match(str(path))
        for line, kind, name in includes(path):
            if isa_unit and kind == "<" and name not in ISA_SYSTEM:
                yield f"{path}:{line}: kernel unit includes <{name}>"
            target = resolve_include(path, name)
            if target is None:
                if kind == '"':
                    yield f"{path}:{line}: \"{name}\" is not a file of the tree"
                continue
            if isa_unit and not ISA_MAY.match(name):
                yield f"{path}:{line}: kernel unit includes \"{name}\""
            if str(target).startswith("include/rowmax/") or layer_of(str(target)) == own:
                continue
            allowed = LAYERS[own] + LAYER_EXCEPTIONS.get(str(path), [])
            if not any(str(target) == a or str(target).startswith(a + "/") for a in allowed):
                yield f"{path}:{line}: {own} may not include {target}"


# ---- sizes ---------------------------------------------------------------------------------------
MAX_HEADER, MAX_PUBLIC_HEADER, MAX_SOURCE = 400, 250, 600
MAX_FUNCTION, MAX_MAINLOOP, MAX_TEMPLATE, MAX_TEMPLATE_BOOL = 80, 150, 6, 1


def check_file_sizes():
    for path in tracked({".h", ".cpp", ".c", ".cu", ".cuh"}):
        lines = read(path).count("\n")
        public = str(path).startswith("include/") and path.name != "c_api.h"
        limit = (MAX_PUBLIC_HEADER if public else
                 MAX_HEADER if path.suffix in (".h", ".cuh") else MAX_SOURCE)
        if lines > limit:
            yield f"{path}:1: {lines} lines, at most {limit}"
    for path in tracked():
        megabytes = (ROOT / path).stat().st_size / 1e6
        limit = 5 if path.parts[0] == "data" else 3  # data/: real tensors of the demonstration
        if megabytes > limit:
            yield f"{path}:1: {megabytes:.1f} MB, at most {limit}"


def functions(code):
    """(name, first line, last line) of every function body at namespace or class scope."""
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", " ", m.group(0)),
                  code, flags=re.M)
    stack = []  # (is a scope of declarations, function name or None, start offset)
    start = 0
    for match in re.finditer(r"[{};]", code):
        inside_body = any(not declares for declares, _, _ in stack)
        if match.group(0) == "{":
            head = code[start:match.start()]
            name = None
            declares = False
            if not inside_body:
                plain = re.sub(r"template\s*<[^{;]*?>\s*(?=\w)", "", head)
                if re.search(r"\b(namespace|class|struct|union|enum)\b[^()]*$", plain) or \
                        re.search(r"extern\s*$", plain):
                    declares = True
                else:
                    called = re.search(r"([\w~:]+|operator\s*\S+)\s*\(", plain)
                    name = called.group(1) if called else None
            first = start + len(head) - len(head.lstrip())
            stack.append((declares, name, first))
        elif match.group(0) == "}" and stack:
            _, name, first = stack.pop()
            if name is not None:
                yield name, line_of(code, first), line_of(code, match.start())
        if not any(not declares for declares, _, _ in stack):
            start = match.end()


def template_parameters(code):
    """(offset, parameters) of every template head."""
    for match in re.finditer(r"\btemplate\s*<", code):
        depth, parts, begin = 1, [], match.end()
        i = match.end()
        while i < len(code) and depth > 0:
            c = code[i]
            depth += c in "<(" and 1 or c in ">)" and -1 or 0
            if (c == "," and depth == 1) or depth == 0:
                parts.append(code[begin:i].strip())
                begin = i + 1
            i += 1
        yield match.start(), [p for p in parts if p]


def check_code_sizes():
    for path in tracked({".h", ".cpp", ".c", ".cu", ".cuh"}):
        code = code_only(read(path))
        for name, first, last in functions(code):
            limit = MAX_MAINLOOP if re.search(r"mainloop|_kernel$", name) else MAX_FUNCTION
            if last - first + 1 > limit:
                yield f"{path}:{first}: {name} has {last - first + 1} lines, at most {limit}"
        for offset, parameters in template_parameters(code):
            bools = sum(p.startswith("bool ") for p in parameters)
            if len(parameters) > MAX_TEMPLATE or bools > MAX_TEMPLATE_BOOL:
                yield (f"{path}:{line_of(code, offset)}: {len(parameters)} template parameters, "
                       f"{bools} of them bool; at most {MAX_TEMPLATE} and {MAX_TEMPLATE_BOOL}")
    for path in tracked({".py"}):
        for node in ast.walk(ast.parse(read(path))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = node.end_lineno - node.lineno + 1
                if lines > MAX_FUNCTION:
                    yield (f"{path}:{node.lineno}: {node.name} has {lines} lines, at most "
                           f"{MAX_FUNCTION}")


# ---- text ----------------------------------------------------------------------------------------
STATEMENT = re.compile(
    r"^\s*//\s*("
    r"[\w:.\[\]>*&< -]*\w\s*(=|\+=|-=|\*=)[^=].*;$"   # an assignment or a definition
    r"|[\w:.>-]+(<[^>]*>)?\(.*\)\s*[;{]$"              # a call, a loop or a function
    r"|(if|for|while|switch)\s*\(.*[){;]$"
    r"|(else|do|try)\s*\{?$|\}\s*(else.*)?;?$"
    r"|#\s*(include|define|if|ifdef|ifndef|endif)\b"
    r"|return\b.*;$|(const|auto|int|float|double)\s.*[;{]$)")
PROSE = re.compile(r"\b[a-z]+ [a-z]+ [a-z]+\b")


def check_commented_code():
    for path in tracked({".h", ".cpp", ".c", ".cu", ".cuh"}):
        for number, line in enumerate(read(path).split("\n"), 1):
            if STATEMENT.match(line) and not PROSE.search(line):
                yield f"{path}:{number}: commented-out code: {line.strip()}"
            if re.search(r"\b(TODO|FIXME|XXX)\b", line):
                yield f"{path}:{number}: {line.strip()}"


# Where conditional compilation is allowed, and why.
CONDITIONALS = [
    # The look-up of driver functions changed with CUDA 12.5.
    (r"^src/backend/cuda/sm90/operands\.cpp$", r"CUDART_VERSION"),
    (r"^src/backend/cpu/simd/", None),
    (r"^src/backend/cuda/ptx/", None),
    (r"^src/backend/cuda/tile/trace\.cuh$", r"ROWMAX_CUDA_TRACE"),  # kernels that record
    (r"^include/rowmax/(export|version|c_api)\.h$", None),        # visibility, extern "C"
    (r"^src/problem/band\.h$", r"__CUDACC__"),                    # host and device text
    (r"^src/backend/cpu/registry\.cpp$", r"ROWMAX_CPU_HAS_\w+"),  # rows of the build's units
    (r"^src/backend/cpu/units/", r"ROWMAX_ISA_HAS_\w+"),          # kernels of an instruction set
    (r"^src/(api/backends|plan/device)\.cpp$", None),             # what the build and the host offer
]


def check_conditionals():
    for path in tracked({".h", ".cpp", ".c", ".cu", ".cuh"}):
        for number, line in enumerate(read(path).split("\n"), 1):
            match = re.match(r"\s*#\s*(?:if|ifdef|ifndef|elif)\b(.*)", line)
            if match and not any(
                    re.search(where, str(path)) and (what is None or re.search(what, line))
                    for where, what in CONDITIONALS):
                yield f"{path}:{number}: conditional compilation: {line.strip()}"
        if path.suffix in (".h", ".cuh") and path.name != "c_api.h" and \
                "#pragma once" not in read(path):
            yield f"{path}:1: no #pragma once"


TOLERANCE = re.compile(
    r"\b\d+(?:\.\d*)?e-\d+f?\b"
    r"|\b(?:EXPECT|ASSERT)_NEAR\s*\((?:[^;]*,)\s*[0-9.][0-9.ef+-]*\s*\)")


# A small literal is a tolerance where something is compared with it or is named after one.
COMPARISON = re.compile(r"_(?:NEAR|LT|LE|GT|GE)\b|\s[<>]=?\s|tol|eps|err|limit|bound", re.I)


# An upper limit of a difference, and an equality up to rounding with a number that is itself rounded.
LIMIT = re.compile(r"\b(?:EXPECT|ASSERT)_(?:LT|LE)\s*\([^;]*,\s*-?(?:\d+\.\d*|\.\d+)f?\s*\)")
ROUNDED_EQUALITY = re.compile(r"\b(?:EXPECT|ASSERT)_(?:FLOAT|DOUBLE)_EQ\s*\([^;]*;")
# Outside the tests a small number is a tolerance where a value is compared with it.
COMPARED = re.compile(r"[<>]=?\s*\d+(?:\.\d*)?e-\d+|\b(?:tol|eps|err)\w*\s*[<>=]+\s*[0-9.]+e-\d+", re.I)
PYTHON_TOLERANCE = re.compile(r"\b(?:rtol|atol|allclose|isclose)\b")
# Units of time that are shown, not limits.
DISPLAY = {"apps/rowmax/plot.cpp", "apps/rowmax/table.cpp"}


def is_rounded(literal):
    """Whether a decimal number is not the sum of a few powers of two."""
    value = fractions.Fraction(literal)
    return value.denominator & (value.denominator - 1) != 0


def tolerances_of_a_test(code):
    for match in TOLERANCE.finditer(code):
        begin = max(code.rfind(c, 0, match.start()) for c in ";{}")
        end = code.find(";", match.end())
        if COMPARISON.search(code[begin:end]):
            yield match
    yield from LIMIT.finditer(code)
    for match in ROUNDED_EQUALITY.finditer(code):
        if any(is_rounded(x) for x in re.findall(r"\b\d+\.\d+", match.group(0))):
            yield match


def check_tolerances():
    """testkit/numerics.* holds the limits; the rest of the kit holds input values."""
    for path in tracked({".h", ".cpp", ".c", ".py"}):
        if path.parts[0] not in ("tests", "bench", "apps") or str(path) in DISPLAY:
            continue
        text = read(path)
        code = text if path.suffix == ".py" else code_only(text)
        found = (PYTHON_TOLERANCE.finditer(code) if path.suffix == ".py" else
                 tolerances_of_a_test(code) if path.parts[0] == "tests" else
                 COMPARED.finditer(code))
        for match in found:
            yield f"{path}:{line_of(code, match.start())}: tolerance literal: {match.group(0)[:60]}"


ALLOWED_HOSTS = {
    "github.com", "arxiv.org", "doi.org", "www.apache.org", "huggingface.co", "keepachangelog.com",
    "semver.org", "www.w3.org", "json-schema.org", "docs.nvidia.com", "www.netlib.org",
    "opensource.org", "creativecommons.org", "numpy.org", "en.wikipedia.org", "localhost",
    "raw.githubusercontent.com", "spdx.org",
}
# The text itself must not trip the check.
MACHINE_PATH = re.compile(r"(?<![\w./$}-])/(?:work|home|root|mnt|Users)/\w")
REGISTRY = re.compile(r"--(?:extra-)?index-url|\b(?:artifactory|nexus)\.", re.I)


def check_machine_text():
    for path in tracked():
        if path.suffix in (".png", ".safetensors", ".npy", ".svg", ".patch") or \
                path.name == "check_tree.py":
            continue
        for number, line in enumerate(read(path).split("\n"), 1):
            if MACHINE_PATH.search(line):
                yield f"{path}:{number}: machine path: {line.strip()[:80]}"
            if REGISTRY.search(line):
                yield f"{path}:{number}: package registry: {line.strip()[:80]}"
            for host in re.findall(r"https?://([^/\s\"')>]+)", line):
                if host not in ALLOWED_HOSTS:
                    yield f"{path}:{number}: host {host} is not on the list of tools/check_tree.py"


# ---- documentation ---------------------------------------------------------------------------------
def is_comment(line):
    line = line.strip()
    return line.startswith(("//", "/*", "*")) or line.endswith("*/")


def check_public_documentation():
    """A public declaration follows a comment or carries one; functions in a row share it."""
    for path in tracked({".h"}):
        if not str(path).startswith("include/"):
            continue
        lines = read(path).split("\n")
        documented = False  # the last function was, and no line came in between
        end = -1            # its last line
        for i, line in enumerate(lines):
            function = re.match(r"\s*(friend )?ROWMAX_API\b", line)
            other = re.match(r"(struct|class|enum|union|typedef|constexpr|inline)\b", line)
            if not (function or other) or re.match(r"(struct|class)\s+\w+;", line):
                continue
            last = i
            while function and last + 1 < len(lines) and not re.search(r"[;{]", lines[last]):
                last += 1
            above = i - 1
            while lines[above].strip().startswith("template"):
                above -= 1
            own = is_comment(lines[above]) or any(
                "//" in s or "/*" in s for s in lines[i:last + 1])
            shared = above == end and documented
            if other:  # a type may follow the line that it belongs to, as an enum its typedef
                alone = lines[above].strip() in ("", "namespace rowmax {", "}", 'extern "C" {')
                own = own or not alone or code_only(line).rstrip().endswith("};")
            if not own and not shared:
                yield f"{path}:{i + 1}: undocumented: {line.strip()[:70]}"
            if function:
                documented, end = own or shared, last


# ---- headers compile alone ------------------------------------------------------------------------
def closure(path, seen):
    if path in seen:
        return
    seen.add(path)
    for _, _, name in includes(path):
        target = resolve_include(path, name)
        if target is not None:
            closure(target, seen)


# The public reports of the GPU suite are those that docs/testing.md lists.
def check_bug_ids():
    path = "docs/testing.md"
    listed = re.search(r"Lines of `cuda\.txt`:\n\nBC-([\d,\s]+)\.", read(path))
    suite = re.findall(r"^#.*", read("tests/cases/cuda.txt"), re.M)
    ids = {number for line in suite for number in re.findall(r"BC-(\d+)", line)}
    for number in sorted(ids ^ set(re.findall(r"\d+", listed.group(1) if listed else ""))):
        yield f"{path}:1: BC-{number} is in one of this list and tests/cases/cuda.txt only"


# How a header is compiled: for the portable vectors, or for those of AVX2.
def header_command(path, isa="portable"):
    command = [os.environ.get("CXX", "g++"), "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra",
               "-Wno-missing-field-initializers", "-I.", "-Iinclude", "-Isrc", "-fopenmp", "-x",
               "c++"]
    if path.parts[0] in ("apps", "tests"):
        command += [f"-I{path.parent}", "-Iapps/rowmax", "-Itests"]
    if re.search(r"backend/cpu/.*-inl\.h$", str(path)):
        command += [f"-DROWMAX_ISA={isa}",
                    f'-DROWMAX_ISA_HEADER="backend/cpu/simd/{isa}.h"']
    if path.name.startswith("avx2") or isa == "avx2":
        command += ["-mavx2", "-mfma", "-mf16c"]
    return command


def check_headers_alone():
    cache = ROOT / "build" / "lint" / "headers"
    cache.mkdir(parents=True, exist_ok=True)
    compiler = subprocess.run([os.environ.get("CXX", "g++"), "--version"], capture_output=True,
                              check=True).stdout

    def compile_alone(task):
        path, isa = task
        files = set()
        closure(path, files)
        digest = hashlib.sha256(compiler + " ".join(header_command(path, isa)).encode())
        for name in sorted(files):
            digest.update(str(name).encode() + (ROOT / name).read_bytes())
        stamp = cache / digest.hexdigest()
        if stamp.exists():
            return None
        result = subprocess.run(header_command(path, isa) + ["-"], cwd=ROOT, capture_output=True,
                                text=True, input=f'#include "{path}"\n', check=False)
        if result.returncode == 0:
            stamp.touch()
            return None
        error = next((s for s in result.stderr.split("\n") if "error" in s), result.stderr[:200])
        return f"{path}:1: does not compile alone ({isa}): {error}"

    headers = [p for p in tracked({".h"}) if p.parts[0] in ("include", "src", "testkit", "apps",
                                                            "tests", "bench")]
    tasks = []
    for path in headers:
        isas = (["avx2"] if path.name.startswith("avx2") else
                ["portable", "avx2"] if re.search(r"backend/cpu/.*-inl\.h$", str(path)) else
                ["portable"])
        has_avx2 = os.uname().machine in ("x86_64", "AMD64")
        tasks += [(path, isa) for isa in isas if isa == "portable" or has_avx2]
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        yield from (message for message in pool.map(compile_alone, tasks) if message)


CHECKS = {
    "layers": check_layers,
    "file-sizes": check_file_sizes,
    "code-sizes": check_code_sizes,
    "commented-code": check_commented_code,
    "conditionals": check_conditionals,
    "tolerances": check_tolerances,
    "machine-text": check_machine_text,
    "bug-ids": check_bug_ids,
    "public-documentation": check_public_documentation,
    "headers-alone": check_headers_alone,
}


def main(names):
    if names == ["--list"]:
        print("\n".join(CHECKS))
        return 0
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        print(f"unknown check {unknown[0]}; one of: {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    bad = 0
    for name in names or CHECKS:
        for message in CHECKS[name]():
            print(f"{message} [{name}]")
            bad += 1
    print(f"check_tree: {len(names or CHECKS)} checks, {bad} violations")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
