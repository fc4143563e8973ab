#!/usr/bin/env python3
"""Rowmax's backward beside cuDNN's, FlashAttention-3's and FlashAttention-4's on one GPU, in one
process, interleaved round by round.

Needs torch with CUDA and a build of the preset `cuda`; FA3 and FA4 take part when they can be
imported:
    python3 bench/compare_gpu_backward.py --build build/cuda --json bench/results/NAME.jsonl

A round runs every contender --calls times in a random order, each call between two events after L2
was flushed. Verdicts are on the ratio per round. FLOPs are those of a forward pass times 2.5. Inputs
are N(0, 1); gradients are compared with float64 before they are timed, and start as NaN.
"""
import argparse
import datetime
import json
import math
import random
import re
import statistics

from capi import Call, commit, load_library, percentile, view, visible_pairs
from compare_gpu import Peers, base, describe, regular_expression, versions

PEERS = ("fa3", "fa4", "cudnn")
LARGEST_ERROR = 6e-3  # relative, of a gradient in bf16


def table():
    """The settings of the FlashAttention papers: 16k tokens, heads x head dim 2048."""
    return [base(b=16384 // s, hq=2048 // d, hkv=2048 // d, sq=s, d=d, causal=causal)
            for d in (64, 128) for causal in (False, True)
            for s in (512, 1024, 2048, 4096, 8192, 16384)]


class Case:
    """Inputs of one case, O and LSE of cuDNN's forward; contenders as name -> callable."""

    def __init__(self, torch, library, peers, spec, kernels):
        self.torch, self.library, self.spec = torch, library, spec
        b, s, h, d = spec["b"], spec["sq"], spec["hq"], spec["d"]
        self.q, self.k, self.v, self.dout = (
            torch.randn(b, s, h, d, device="cuda", dtype=torch.bfloat16) for _ in range(4))
        self.contenders, self.kernels, self.gradients, self.absent = {}, {}, {}, {}
        pairs = b * visible_pairs(s, s, spec["causal"])
        self.flops = 2.5 * 4.0 * h * pairs * d
        q, k, v = (x.transpose(1, 2) for x in (self.q, self.k, self.v))
        out, lse = torch.ops.aten._scaled_dot_product_cudnn_attention(
            q, k, v, None, True, 0.0, spec["causal"], False)[:2]
        self.out = out.transpose(1, 2).contiguous()
        self.lse = lse.reshape(b, h, s).contiguous().float()
        self.add_rowmax("rowmax", None)
        for kernel in kernels:
            self.add_rowmax(kernel, kernel)
        self.add_cudnn()
        self.add_flash("fa3", peers.fa3)
        self.add_flash("fa4", peers.fa4)

    def add_rowmax(self, name, kernel):
        torch, spec = self.torch, self.spec
        gradients = [torch.full_like(x, math.nan) for x in (self.q, self.k, self.v)]
        named = {"q": self.q, "k": self.k, "v": self.v, "out": self.out, "dout": self.dout,
                 "dq": gradients[0], "dk": gradients[1], "dv": gradients[2]}
        tensors = {key: view(tensor, (0, 1, 2, 3), "bf16") for key, tensor in named.items()}
        tensors["lse"] = view(self.lse, (0, 1, 2), "f32")
        text = (f"backward bf16 b{spec['b']} h{spec['hq']} s{spec['sq']} d{spec['d']}"
                f"{' causal' if spec['causal'] else ''}")

        def allocate(size):
            buffer = torch.full((max(size, 1),), 255, dtype=torch.uint8, device="cuda")
            return buffer, buffer.data_ptr()

        try:
            call = Call(self.library, text, tensors, device="cuda", kernel=kernel, allocate=allocate)
        except RuntimeError as error:
            if kernel is not None:
                return  # this row does not serve the case
            raise error

        def run():
            call.options.stream = torch.cuda.current_stream().cuda_stream
            call()
            return gradients

        self.contenders[name] = run
        self.kernels[name] = call.kernel

    def add_gradient(self, name, forward, inputs, dout):
        """A contender: the backward pass of what `forward` made."""
        torch = self.torch
        try:
            with torch.enable_grad():
                out = forward(*inputs)
            out = out[0] if isinstance(out, tuple) else out

            def run():
                return torch.autograd.grad(out, inputs, dout, retain_graph=True)

            run()
            torch.cuda.synchronize()
        except (RuntimeError, TypeError, ValueError, AssertionError, NotImplementedError) as error:
            self.absent[name] = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            return
        self.contenders[name] = run

    def add_cudnn(self):
        torch = self.torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def forward(q, k, v):
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=self.spec["causal"])

        inputs = [x.transpose(1, 2).detach().requires_grad_() for x in (self.q, self.k, self.v)]
        self.add_gradient("cudnn", forward, inputs, self.dout.transpose(1, 2))

    def add_flash(self, name, module):
        if module is None:
            return
        inputs = [x.detach().requires_grad_() for x in (self.q, self.k, self.v)]
        self.add_gradient(name, lambda q, k, v: module.flash_attn_func(
            q, k, v, causal=self.spec["causal"]), inputs, self.dout)

    def expected(self, b, h):
        """dQ, dK and dV of one head in float64."""
        torch, spec = self.torch, self.spec
        q, k, v, dout = (x[b, :, h].double() for x in (self.q, self.k, self.v, self.dout))
        scale = 1.0 / math.sqrt(spec["d"])
        scores = q @ k.T * scale
        if spec["causal"]:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf)
        p = torch.softmax(scores, 1)
        ds = p * (dout @ v.T - (dout * (p @ v)).sum(1, keepdim=True))
        return ds @ k * scale, ds.T @ q * scale, p.T @ dout

    def errors(self):
        """Of every contender: the largest relative error of a gradient in the last head."""
        b, h = self.spec["b"] - 1, self.spec["hq"] - 1
        expected = self.expected(b, h)
        found = {}
        for name, run in self.contenders.items():
            result = [x.transpose(1, 2) if name == "cudnn" else x for x in run()]
            found[name] = max(((x[b, :, h].double() - y).norm() / y.norm()).item()
                              for x, y in zip(result, expected))
        return found


def measure(torch, case, flush, rounds, calls, generator):
    """Milliseconds of every contender, the median of its calls, round by round."""
    times = {name: [] for name in case.contenders}
    order = list(times)
    for turn in range(rounds + 1):
        generator.shuffle(order)
        events = {name: [] for name in order}
        for name in order:
            for _ in range(calls):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                flush.zero_()
                begin.record()
                case.contenders[name]()
                end.record()
                events[name].append((begin, end))
        torch.cuda.synchronize()
        for name in order if turn > 0 else ():  # the first round warms up
            times[name].append(statistics.median(x.elapsed_time(y) for x, y in events[name]))
    return times


def summarise(case, times, errors, head):
    spec = case.spec
    rates = {name: case.flops / statistics.median(values) * 1e-9 for name, values in times.items()}
    row = {"op": "backward", "dtype": "bf16", "d": spec["d"], "s": spec["sq"],
           "causal": spec["causal"], "case": spec["case"], "shape": describe(spec),
           "kernel": case.kernels["rowmax"],
           "rates": {name: round(rate, 1) for name, rate in rates.items()}}
    present = [name for name in PEERS if name in times]
    if present:
        best = max(present, key=lambda name: rates[name])
        ratios = [peer / own for peer, own in zip(times[best], times["rowmax"])]
        row["best_peer"] = best
        row["ratio"] = round(statistics.median(ratios), 3)
        row["ratio_p10"] = round(percentile(ratios, 0.1), 3)
    row["errors"] = {name: float(f"{value:.3g}") for name, value in errors.items()}
    row["absent"] = case.absent
    return dict(row, **head)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/cuda")
    parser.add_argument("--only", type=regular_expression, default=re.compile(""),
                        help="regular expression on the case's text")
    parser.add_argument("--kernels", default="", help="comma list of rows that also run, forced")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=2, help="of a contender in a round")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    import torch  # after the arguments, so that --help needs no torch
    library, peers = load_library(args.build), Peers()
    torch.manual_seed(1)
    generator = random.Random(1)
    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    head = {"device": torch.cuda.get_device_name(), "date": datetime.date.today().isoformat(),
            "rounds": args.rounds, "version": library.rowmax_version().decode(), "commit": commit(),
            "versions": versions(torch, peers)}
    print(json.dumps(head))
    kernels = [name for name in args.kernels.split(",") if name]
    sink = open(args.json, "w", encoding="utf-8") if args.json else None
    for spec in table():
        if not args.only.search(describe(spec)):
            continue
        case = Case(torch, library, peers, spec, kernels)
        errors = case.errors()
        for name in case.kernels:
            if not errors[name] < LARGEST_ERROR:
                raise SystemExit(f"{describe(spec)}: {name}: error {errors[name]:.2g}")
        row = summarise(case, measure(torch, case, flush, args.rounds, args.calls, generator),
                        errors, head)
        print(f"{describe(spec):44} {row['rates']}  {row.get('ratio', 0):5.3f} "
              f"({row.get('ratio_p10', 0):.3f})  {row['kernel']}", flush=True)
        if sink:
            sink.write(json.dumps(row) + "\n")
            sink.flush()


if __name__ == "__main__":
    main()
