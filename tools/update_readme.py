#!/usr/bin/env python3
"""Writes the generated tables of README.md.

    tools/update_readme.py [--check] [BUILD]      default build/release

The support table asks the built command for a plan of every case below, with each instruction set and
for a Hopper GPU; the performance tables read the newest bench/results/cpu_*.jsonl and
bench/results/h200_forward*.jsonl. --check only compares.
"""
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Feature, words of the forward case, words of the backward case (None: as forward).
FEATURES = [
    ("f32", "f32 s600 d64", None),
    ("bf16", "bf16 s600 d64", None),
    ("fp16", "f16 s600 d64", None),
    ("fp64", "f64 s600 d64", None),
    ("any D, Dv from 1 to 576", "f32 s600 d576 dv1", None),
    ("any D, Dv up to 128 in multiples of 8", "f32 s600 d120 dv8", None),
    ("any D, Dv up to 256 in multiples of 8", "f32 s600 d248 dv8", None),
    ("GQA, MQA", "f32 hq8 hkv2 s600 d64", None),
    ("causal", "f32 s600 d64 causal", None),
    ("window, top-left alignment", "f32 s600 d64 window=64,8 topleft", None),
    ("key and query lengths", "f32 b2 s600 d64 used_q used_k", None),
    ("ragged batches", "f32 b3 sq600 sk600 d64 ragged_q=900 ragged_k=900", None),
    ("paged KV", "f32 b2 s600 d64 paged=16,200,40 used_k", None),
    ("document ids", "f32 s600 d64 documents", None),
    ("boolean mask, any broadcast", "f32 s600 d64 mask=bc", None),
    ("additive bias, any broadcast", "f32 s600 d64 bias=f32:hrc",
     "f32 s600 d64 bias=f32:hrc grads=dq,dk,dv,dbias"),
    ("ALiBi", "f32 s600 d64 alibi", "f32 s600 d64 alibi grads=dq,dk,dv,dslopes"),
    ("softcap", "f32 s600 d64 softcap=30", None),
    ("sinks", "f32 s600 d64 sinks", "f32 s600 d64 sinks grads=dq,dk,dv,dsinks"),
    ("dropout", "f32 s600 d64 dropout=0.1", None),
    ("gradient of LSE", "", "f32 s600 d64 dlse"),
    ("batch-invariant plans", "f32 b2 s600 d64 invariant", None),
    ("few queries, long KV (decode)", "f32 b2 hq8 hkv2 sq1 sk4096 d128", ""),
    ("block mask", "f32 s600 d64 blockmask", None),
]


def kernel_of(command, op, words, isa):
    """Name of the kernel that serves a case with this instruction set, or the refusal."""
    if not words:
        return None
    env = dict(os.environ, ROWMAX_MAX_ISA=isa)
    run = subprocess.run([command, "explain", f"{op} {words}"], env=env, capture_output=True,
                         text=True, check=False)
    match = re.search(r"^kernel\s+(\S+)", run.stdout, re.M)
    return match.group(1) if match else ""


def gpu_cell(command, op, words):
    """What a Hopper GPU offers for a case; f32 words stand for bf16 there."""
    if not words:
        return ""
    dtype, rest = words.split(" ", 1)
    if rest != "s600 d64" and dtype == "f32":
        dtype = "bf16"
    run = subprocess.run([command, "explain", "--device", "h200", f"{op} {dtype} {rest}"],
                         capture_output=True, text=True, check=False)
    if not re.search(r"^kernel\s+sm90_", run.stdout, re.M):
        return "refused by name"
    return "sm90 (full bands: few tiles are cut along keys)" if " sq1 " in words else "sm90"


def support_table(command):
    lines = ["| feature | forward, CPU | backward, CPU | forward, Hopper GPU | backward, Hopper GPU |",
             "|---|---|---|---|---|"]
    for name, forward, backward in FEATURES:
        cells = []
        for op, words in (("forward", forward), ("backward", forward if backward is None else backward)):
            kernels = [kernel_of(command, op, words, isa) for isa in ("avx2", "portable")]
            if kernels[0] is None:
                cells.append("")
            elif not all(kernels):
                cells.append("refused by name")
            else:
                isas = []
                for kernel in kernels:
                    if kernel.rsplit("_", 1)[1] not in isas:
                        isas.append(kernel.rsplit("_", 1)[1])
                kind = " (decode kernel)" if kernels[0].startswith("decode") else ""
                cells.append(", ".join(isas) + kind)
        cells.append(gpu_cell(command, "forward", forward))
        cells.append(gpu_cell(command, "backward", forward if backward is None else backward))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def case_text(spec):
    heads = f"{spec['hq']} heads" if spec["hq"] == spec["hkv"] else f"{spec['hq']}/{spec['hkv']} heads"
    length = f"S {spec['sq']}" if spec["sq"] == spec["sk"] else f"Sq {spec['sq']}, Sk {spec['sk']}"
    mask = "causal" if spec["causal"] else "full"
    return f"{spec['op']} {spec['dtype']} {mask}, B {spec['b']}, {heads}, {length}, D {spec['d']}"


def performance_table():
    files = sorted((ROOT / "bench" / "results").glob("cpu_*.jsonl"))
    if not files:
        return "No result file yet."
    rows = [json.loads(line) for line in files[-1].read_text(encoding="utf-8").splitlines()]
    head = rows[0]
    lines = [f"{head['machine']['cpu']}, {head['machine']['isa'][-1]}, {head['threads']} threads, "
             f"torch {head['torch']}, {head['date']} (`{files[-1].relative_to(ROOT)}`; median of "
             f"{head['rounds']} interleaved rounds).", "",
             "torch / Rowmax: median and 10th percentile of the rounds' ratios. Own f32 / own: how much "
             "faster a 16-bit case is than the same case in f32. Shares are of an FMA loop and, for "
             "decode, of a streaming read in the same rounds.", "",
             "| case | Rowmax ms | torch ms | torch / Rowmax | p10 | own f32 / own | Rowmax GFLOP/s | "
             "of FMA peak | of read bandwidth |",
             "|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        def cell(key):
            return f"{row[key]:.2f}" if key in row else ""
        lines.append(f"| {case_text(row['case'])} | {row['rowmax_ms']:.2f} | {row['torch_ms']:.2f} | "
                     f"{cell('speedup_over_torch')} | {cell('speedup_over_torch_p10')} | "
                     f"{cell('speedup_over_rowmax_f32')} | {row['rowmax_gflops']:.0f} | "
                     f"{cell('share_of_fma_peak')} | {cell('share_of_read_bandwidth')} |")
    return "\n".join(lines)


def gpu_performance_table():
    files = sorted((ROOT / "bench" / "results").glob("h200_forward*.jsonl"))
    if not files:
        return "No result file yet."
    rows = [json.loads(line) for line in files[-1].read_text(encoding="utf-8").splitlines()]
    head = rows[0]
    lines = [f"{head['device']}, torch {head['versions']['torch']}, cuDNN {head['versions']['cudnn']}, "
             f"{head['date']} (`{files[-1].relative_to(ROOT)}`, commit {head['commit']}; median of "
             f"{head['rounds']} interleaved rounds). TFLOP/s; batch x length 16k tokens, heads x head dim "
             "2048; ratio: time of the fastest of FA3, FA4 and cuDNN that ran over Rowmax's, above 1 Rowmax "
             "is faster; median of the rounds (10th percentile), which may differ from the quotient of the "
             "columns, medians of their own.", "",
             "| bf16 forward | Rowmax | FA3 | FA4 | cuDNN | FA2 | bf16 GEMM | ratio |",
             "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        if row.get("case") != "dense":
            continue
        rates = " | ".join(f"{row[name]:.0f}" if row[name] else "" for name in
                           ("rowmax", "fa3", "fa4", "cudnn", "fa2", "gemm"))
        lines.append(f"| D {row['d']} {'causal' if row['causal'] else 'full'}, S {row['s']} | {rates} | "
                     f"{row['ratio']:.2f} ({row['ratio_p10']:.2f}) |")
    return "\n".join(lines)


def replace(text, name, body):
    begin, end = f"<!-- {name}: generated -->", f"<!-- {name}: end -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.S)
    if not pattern.search(text):
        sys.exit(f"README.md has no section '{name}'")
    return pattern.sub(lambda _: f"{begin}\n{body}\n{end}", text)


def example(path, language):
    code = (ROOT / path).read_text(encoding="utf-8").strip()
    return f"```{language}\n{code}\n```"


def main():
    arguments = [a for a in sys.argv[1:] if a != "--check"]
    build = ROOT / (arguments[0] if arguments else "build/release")
    readme = ROOT / "README.md"
    old = readme.read_text(encoding="utf-8")
    command = build / "apps" / "rowmax" / "rowmax"
    if kernel_of(command, "forward", "f32 s600 d64", "avx2") != "forward_f32_avx2":
        print("update_readme: the table needs a machine with AVX2; nothing done")
        return
    new = replace(old, "support", support_table(command))
    new = replace(new, "performance", performance_table())
    new = replace(new, "gpu performance", gpu_performance_table())
    new = replace(new, "example c++", example("examples/attention.cpp", "cpp"))
    new = replace(new, "example c", example("examples/attention.c", "c"))
    if "--check" in sys.argv:
        if new != old:
            sys.exit("README.md is stale: run tools/update_readme.py")
    else:
        readme.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
