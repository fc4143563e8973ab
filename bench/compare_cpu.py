#!/usr/bin/env python3
"""Rowmax beside PyTorch's CPU attention, in one process, interleaved round by round.

Needs torch (CPU path) and a release build with ROWMAX_BUILD_BENCH=ON:
    python3 bench/compare_cpu.py --build build/release --json bench/results/cpu_NAME.jsonl

Every round times, in this order: the FMA loop, each contender once or more (until min_ms), the FMA
loop again. Verdicts are on the ratio per round: its median and its 10th percentile. Times are wall
clock of one call. FLOPs are exact visible pairs times 2 (D + Dv), backward 2 (3 D + 2 Dv).
"""
import argparse
import ctypes
import datetime
import json
import os
import platform
import re
import statistics
import time

from capi import Call, commit, load_library, percentile, view, visible_pairs


def load_yardstick(build):
    yardstick = ctypes.CDLL(os.path.join(build, "bench", "rowmax_yardstick.so"))
    yardstick.rowmax_yardstick_fma.restype = ctypes.c_double
    yardstick.rowmax_yardstick_read.restype = ctypes.c_double
    yardstick.rowmax_yardstick_read.argtypes = [ctypes.c_int, ctypes.c_size_t]
    return yardstick


class Case:
    """Inputs of one case and one callable per contender: name -> callable."""

    def __init__(self, torch, library, spec, threads):
        self.spec = spec
        b, hq, hkv = spec["b"], spec["hq"], spec["hkv"]
        sq, sk, d, causal = spec["sq"], spec["sk"], spec["d"], spec["causal"]
        torch.manual_seed(1)
        self.flops = 2.0 * b * hq * visible_pairs(sq, sk, causal) * (
            2 * d if spec["op"] != "backward" else 5 * d)
        self.kv_bytes = 2 * b * hkv * sk * d * (4 if spec["dtype"] == "f32" else 2)
        words = (f"{'backward' if spec['op'] == 'backward' else 'forward'} {{}} b{b} hq{hq} "
                 f"hkv{hkv} sq{sq} sk{sk} d{d}{' causal' if causal else ''}")
        master = [torch.randn(b, h, s, d) for h, s in
                  ((hq, sq), (hkv, sk), (hkv, sk), (hq, sq))]
        self.contenders = {}
        self.calls = {}
        self.results = {}
        self.keep = []  # memory that only raw pointers refer to
        types = [spec["dtype"]] if spec["dtype"] == "f32" else [spec["dtype"], "f32"]
        for dtype in types:
            kind = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[dtype]
            self._add(torch, library, words.format(dtype), dtype, [x.to(kind) for x in master],
                      threads, peer=dtype == spec["dtype"])

    def _add(self, torch, library, text, dtype, inputs, threads, peer):
        q, k, v, do = inputs
        causal, group = self.spec["causal"], self.spec["hq"] // self.spec["hkv"]
        bshd = (0, 2, 1, 3)
        out = torch.empty_like(q)
        lse = torch.empty(q.shape[:3], dtype=torch.float32)
        self.keep.append((inputs, out, lse))
        tensors = {"q": view(q, bshd, dtype), "k": view(k, bshd, dtype),
                   "v": view(v, bshd, dtype), "out": view(out, bshd, dtype),
                   "lse": view(lse, (0, 1, 2), "f32")}
        forward = Call(library, text.replace("backward", "forward"), tensors, threads)
        forward()
        name = "rowmax" if peer else f"rowmax_{dtype}"
        op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        if self.spec["op"] != "backward":
            self.calls[name] = forward
            self.results[name] = out
            self.contenders[name] = forward
            if peer and group == 1:
                self.contenders["torch"] = lambda: self.results.update(
                    torch=op(q, k, v, 0.0, causal)[0])
            elif peer:  # the faster of torch's two ways: the group folded into the rows
                folded = q.view(q.shape[0], k.shape[1], -1, q.shape[3]) if q.shape[2] == 1 else None
                if folded is not None:
                    self.contenders["torch"] = lambda: self.results.update(
                        torch=op(folded, k, v, 0.0, False)[0].view(q.shape))
                else:
                    self.contenders["torch"] = lambda: self.results.update(
                        torch=torch.nn.functional.scaled_dot_product_attention(
                            q, k, v, is_causal=causal, enable_gqa=True))
            return
        grads = [torch.empty_like(x) for x in (q, k, v)]
        tensors.update({"dout": view(do, bshd, dtype), "dq": view(grads[0], bshd, dtype),
                        "dk": view(grads[1], bshd, dtype), "dv": view(grads[2], bshd, dtype)})
        self.calls[name] = self.contenders[name] = Call(library, text, tensors, threads)
        self.results[name] = grads[0]
        self.keep.append(grads)
        if peer:
            o, l = op(q, k, v, 0.0, causal)
            back = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
            self.contenders["torch"] = lambda: self.results.update(
                torch=back(do, q, k, v, o, l, 0.0, causal)[0])


def cases(suite):
    base = {"b": 1, "hq": 8, "hkv": 8, "op": "forward", "dtype": "f32"}
    out = []

    def add(**kw):
        spec = dict(base, **kw)
        spec.setdefault("sk", spec["sq"])
        out.append(spec)

    lengths = (512, 1024, 4096) if suite == "full" else (1024, 4096)
    for causal in (False, True):
        for s in lengths:
            for d in (64, 128):
                add(sq=s, d=d, causal=causal)
        for s in (1024, 4096) if suite == "full" else (1024,):
            for d in (64, 128):
                add(op="backward", sq=s, d=d, causal=causal)
        for d in (64, 128):
            add(sq=1024, d=d, causal=causal, dtype="bf16")
            add(op="backward", sq=1024, d=d, causal=causal, dtype="bf16")
    for dtype in ("f32", "bf16"):
        add(b=8, hq=32, hkv=8, sq=1, sk=4096, d=128, causal=False, dtype=dtype, op="decode")
    return out


def timed(call, min_ms):
    count, start = 0, time.perf_counter()
    while True:
        call()
        count += 1
        elapsed = time.perf_counter() - start
        if elapsed * 1e3 >= min_ms:
            return elapsed / count


def measure(case, yardstick, threads, rounds, min_ms):
    times = {name: [] for name in case.contenders}
    peaks, reads = [], []
    for call in case.contenders.values():
        call()
    for r in range(rounds):
        before = yardstick.rowmax_yardstick_fma(threads)
        names = list(case.contenders)
        for name in names if r % 2 == 0 else reversed(names):
            times[name].append(timed(case.contenders[name], min_ms))
        peaks.append(max(before, yardstick.rowmax_yardstick_fma(threads)))
        if case.spec["op"] == "decode":
            reads.append(yardstick.rowmax_yardstick_read(threads, 1 << 28))
    return times, peaks, reads


def summarise(case, times, peaks, reads):
    row = {"case": case.spec, "kernel": case.calls["rowmax"].kernel,
           "workspace_bytes": case.calls["rowmax"].bytes}
    for name, values in times.items():
        row[name + "_ms"] = round(statistics.median(values) * 1e3, 4)
        row[name + "_gflops"] = round(case.flops / statistics.median(values) * 1e-9, 1)
    ours = times["rowmax"]
    for name, values in times.items():
        if name != "rowmax":
            ratios = [peer / own for peer, own in zip(values, ours)]
            row[f"speedup_over_{name}"] = round(statistics.median(ratios), 3)
            row[f"speedup_over_{name}_p10"] = round(percentile(ratios, 0.1), 3)
    row["share_of_fma_peak"] = round(statistics.median(
        [case.flops / t * 1e-9 / p for t, p in zip(ours, peaks)]), 3)
    row["fma_peak_gflops"] = round(statistics.median(peaks), 1)
    if reads:
        row["kv_gb_per_s"] = round(case.kv_bytes / statistics.median(ours) * 1e-9, 2)
        row["share_of_read_bandwidth"] = round(statistics.median(
            [case.kv_bytes / t * 1e-9 / r for t, r in zip(ours, reads)]), 3)
    difference = (case.results["rowmax"].double() - case.results["torch"].double()).abs().max()
    row["max_difference_to_torch"] = float(difference)
    return row


def machine():
    model, flags = platform.processor(), ""
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        for line in f:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
            if line.startswith("flags"):
                flags = line
                break
    isa = [x for x in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f" {x} " in flags + " "]
    return {"cpu": model, "isa": isa, "cores": os.cpu_count()}


def describe(spec):
    heads = f"h{spec['hq']}" if spec["hq"] == spec["hkv"] else f"hq{spec['hq']} hkv{spec['hkv']}"
    length = f"s{spec['sq']}" if spec["sq"] == spec["sk"] else f"sq{spec['sq']} sk{spec['sk']}"
    mask = "causal" if spec["causal"] else "full"
    return f"{spec['op']} {spec['dtype']} b{spec['b']} {heads} {length} d{spec['d']} {mask}"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--min-ms", type=float, default=60.0, help="time per contender and round")
    parser.add_argument("--suite", choices=("quick", "full"), default="full")
    parser.add_argument("--only", default="", help="regular expression on the case's text")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    import torch  # after the arguments, so that --help needs no torch
    torch.set_num_threads(args.threads)
    library, yardstick = load_library(args.build), load_yardstick(args.build)
    head = {"date": datetime.date.today().isoformat(), "commit": commit(), "threads": args.threads,
            "rounds": args.rounds, "machine": machine(), "torch": torch.__version__,
            "rowmax": library.rowmax_version().decode()}
    print(json.dumps(head))
    print(f"{'case':50} {'rowmax':>9} {'torch':>9}   ratio (p10)   GF/s  of peak  other")
    rows = []
    with torch.no_grad():
        for spec in cases(args.suite):
            if not re.search(args.only, describe(spec)):
                continue
            case = Case(torch, library, spec, args.threads)
            row = dict(head, **summarise(case, *measure(case, yardstick, args.threads, args.rounds,
                                                        args.min_ms)))
            rows.append(row)
            other = ""
            if "speedup_over_rowmax_f32" in row:
                other = f"{row['speedup_over_rowmax_f32']:.2f} of own f32"
            if "kv_gb_per_s" in row:
                other += f" {row['kv_gb_per_s']:.1f} GB/s, {row['share_of_read_bandwidth']:.2f} of read"
            print(f"{describe(spec):50} {row['rowmax_ms']:7.2f}ms {row['torch_ms']:7.2f}ms  "
                  f"{row['speedup_over_torch']:5.2f} ({row['speedup_over_torch_p10']:.2f})  "
                  f"{row['rowmax_gflops']:6.1f}   {row['share_of_fma_peak']:.2f}   {other}", flush=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            for row in rows:
                f.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
