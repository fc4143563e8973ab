#!/usr/bin/env python3
"""Rowmax beside FlashAttention-3, FlashAttention-4, cuDNN and FlashAttention-2 on one GPU, in one
process, interleaved round by round, with a bf16 matrix product as the ceiling.

Needs torch with CUDA and a build of the preset `cuda`; FA3 and FA4 take part when they can be
imported:
    python3 bench/compare_gpu.py --build build/cuda --suite table --json bench/results/NAME.jsonl

Every contender's calls are captured in a CUDA graph. A round replays each graph for --round-ms, in a
random order: what runs after a kernel that draws little power starts with a higher clock. Verdicts
are on the ratio per round: its median and its 10th percentile. FLOPs are exact visible pairs times
2 (D + Dv). Inputs are N(0, 1).
"""
import argparse
import datetime
import importlib
import json
import math
import random
import re
import statistics
import sys

from capi import Call, commit, load_library, percentile, view, visible_pairs

PEERS = ("fa3", "fa4", "cudnn", "fa2")
GEMM_SIZE = 8192


# ---- cases ---------------------------------------------------------------------------------------
def base(**values):
    spec = {"case": "dense", "dtype": "bf16", "b": 1, "hq": 16, "hkv": 16, "d": 128, "causal": False,
            "words": ""}
    spec.update(values)
    spec.setdefault("sk", spec["sq"])
    return spec


def table():
    """The settings of the FlashAttention papers: 16k tokens, heads x head dim 2048."""
    return [base(b=16384 // s, hq=2048 // d, hkv=2048 // d, sq=s, d=d, causal=causal)
            for d in (64, 128, 256) for causal in (False, True)
            for s in (512, 1024, 2048, 4096, 8192, 16384)]


def drawn(seed, count=20):
    """Shapes that nobody tuned for: odd lengths and counts, grouped heads, other head dims."""
    generator = random.Random(seed)
    out = []
    while len(out) < count:
        hkv = generator.choice((1, 2, 3, 5, 8))
        group = generator.choice((1, 1, 4, 8))
        sq = generator.randrange(300, 9000)
        sk = sq if generator.random() < 0.6 else generator.randrange(300, 9000)
        b = max(1, round(generator.uniform(0.7, 1.4) * 16384 * 16 / (max(sq, sk) * hkv * group)))
        out.append(base(case="drawn", b=b, hq=hkv * group, hkv=hkv, sq=sq, sk=sk,
                        d=generator.choice((64, 80, 96, 128, 192)),
                        causal=generator.random() < 0.5))
    return out


def features():
    """One option each, beside the same shape without it."""
    shape = {"b": 4, "sq": 4096, "hq": 16, "hkv": 16, "d": 128}
    return [base(case=name, words=words, causal=causal, **shape)
            for causal in (False, True)
            for name, words in (("plain", "nolse"), ("lse", ""), ("sinks", "sinks"),
                                ("alibi", "alibi"), ("softcap", "softcap=30"))] + [
        base(case="window", words="window=1024,0", b=1, sq=16384, d=128),
        base(case="d80", b=4, sq=4096, hq=25, hkv=25, d=80),
        base(case="d96", b=4, sq=4096, hq=21, hkv=21, d=96)]


def half():
    return [base(case="fp16", dtype=dtype, b=4, sq=4096, hq=2048 // d, hkv=2048 // d, d=d,
                 causal=causal)
            for d in (64, 128, 256) for causal in (False, True) for dtype in ("bf16", "f16")]


def ragged():
    """64 sequences, log-uniform lengths of 64 to 4096."""
    generator = random.Random(0)
    lengths = [int(round(math.exp(generator.uniform(math.log(64), math.log(4096)))))
               for _ in range(64)]
    return [base(case="ragged", b=64, hq=2048 // d, hkv=2048 // d, sq=max(lengths), d=d,
                 causal=causal, lengths=lengths)
            for d in (64, 128) for causal in (False, True)]


OUTLIERS = base(case="outliers", b=1, hq=16, hkv=16, sq=2048, d=128)
SUITES = {"table": lambda seed: table(), "drawn": drawn, "features": lambda seed: features(),
          "half": lambda seed: half(), "ragged": lambda seed: ragged(),
          "outliers": lambda seed: [OUTLIERS]}


def suite_names(text):
    """The suites of --suite."""
    names = list(SUITES) if text == "all" else text.split(",")
    for name in names:
        if name not in SUITES:
            raise argparse.ArgumentTypeError(
                f"'{name}' is unknown; accepted: a comma list of {', '.join(SUITES)}; or all")
    return names


def regular_expression(text):
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"'{text}' is no regular expression: {error}") from error


def cases_of(names, seed, only=re.compile("")):
    """The cases of suites whose text `only` finds."""
    specs = [spec for name in names for spec in SUITES[name](seed)]
    return [spec for spec in specs if only.search(describe(spec))]


def describe(spec):
    heads = f"h{spec['hq']}" if spec["hq"] == spec["hkv"] else f"hq{spec['hq']} hkv{spec['hkv']}"
    length = f"s{spec['sq']}" if spec["sq"] == spec["sk"] else f"sq{spec['sq']} sk{spec['sk']}"
    return (f"{spec['case']} {spec['dtype']} b{spec['b']} {heads} {length} d{spec['d']} "
            f"{'causal' if spec['causal'] else 'full'} {spec['words']}").strip()


# ---- contenders ----------------------------------------------------------------------------------
def optional(*names):
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


class Peers:
    def __init__(self):
        self.reported = set()
        self.fa3 = optional("flash_attn_interface", "fa3_fwd_interface")
        self.fa4 = optional("flash_attn.cute.interface")

    def report(self, name, text):
        """Says once on stderr why a peer does not serve a case."""
        if (name, text) not in self.reported:
            self.reported.add((name, text))
            print(f"compare_gpu: without {name}: {text}", file=sys.stderr, flush=True)


class Case:
    """Inputs of one case; contenders as name -> callable, outputs as name -> tensor."""

    def __init__(self, torch, library, peers, spec, kernels):
        self.torch, self.spec = torch, spec
        self.library, self.peers = library, peers
        kind = {"bf16": torch.bfloat16, "f16": torch.float16}[spec["dtype"]]
        self.lengths = spec.get("lengths")
        b, sq, sk, d = spec["b"], spec["sq"], spec["sk"], spec["d"]

        def draw(s, heads):
            size = (sum(self.lengths), heads, d) if self.lengths else (b, s, heads, d)
            return torch.randn(*size, device="cuda", dtype=kind)

        self.q, self.k, self.v = draw(sq, spec["hq"]), draw(sk, spec["hkv"]), draw(sk, spec["hkv"])
        self.contenders, self.outputs, self.kernels, self.kept = {}, {}, {}, []
        self.absent = {}  # peers that were asked and failed: why
        pairs = sum(visible_pairs(n, n, spec["causal"]) for n in self.lengths) if self.lengths else (
            b * visible_pairs(sq, sk, spec["causal"]))
        window = re.search(r"window=(\d+),0", spec["words"])
        if window:
            left = int(window.group(1))
            pairs = b * sum(min(i, left) + 1 for i in range(sq))
        self.flops = 4.0 * spec["hq"] * pairs * d
        self.add_rowmax("rowmax", None)
        for kernel in kernels:
            self.add_rowmax(kernel, kernel)
        if spec["case"] in ("dense", "drawn", "fp16", "plain", "lse", "d80", "d96"):
            self.add_sdpa()
        self.add_flash(peers)

    def add_rowmax(self, name, kernel):
        torch, spec = self.torch, self.spec
        mask = " causal" if spec["causal"] else ""
        storage = ""
        tensors = {}
        if self.lengths:
            storage = f" ragged_q={sum(self.lengths)} ragged_k={sum(self.lengths)}"
            offsets = torch.tensor([0] + self.lengths, dtype=torch.int32).cumsum(0, dtype=torch.int32)
            self.offsets = offsets.cuda()
            self.kept.append(self.offsets)
            for side in ("cu_seqlens_q", "cu_seqlens_k"):
                tensors[side] = view(self.offsets, (0,), "i32")
        text = (f"forward {spec['dtype']} b{spec['b']} hq{spec['hq']} hkv{spec['hkv']} sq{spec['sq']} "
                f"sk{spec['sk']} d{spec['d']}{mask}{storage} {spec['words']}")
        axes = tuple(range(self.q.dim()))
        out = torch.full_like(self.q, math.nan)
        rows = (spec["hq"], sum(self.lengths)) if self.lengths else (spec["b"], spec["hq"], spec["sq"])
        lse = torch.empty(*rows, device="cuda")
        per_head = torch.rand(spec["hq"], device="cuda")
        self.kept += [lse, per_head]  # calls hold addresses only
        for key, tensor in (("q", self.q), ("k", self.k), ("v", self.v), ("out", out)):
            tensors[key] = view(tensor, axes, spec["dtype"])
        if "nolse" not in spec["words"]:
            tensors["lse"] = view(lse, tuple(range(lse.dim())), "f32")
        if "sinks" in spec["words"]:
            tensors["sinks"] = view(per_head, (0,), "f32")
        if "alibi" in spec["words"]:
            tensors["slopes"] = view(per_head, (0,), "f32")

        def allocate(size):
            buffer = torch.empty(max(size, 1), dtype=torch.uint8, device="cuda")
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

        self.contenders[name], self.outputs[name] = run, out
        self.kernels[name] = call.kernel

    def add_sdpa(self):
        torch = self.torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        q, k, v = (x.transpose(1, 2) for x in (self.q, self.k, self.v))
        spec = self.spec
        if spec["causal"] and spec["sq"] != spec["sk"]:
            return  # their diagonal is tied to the other corner

        def attend(backend):
            def run():
                with sdpa_kernel(backend):
                    return torch.nn.functional.scaled_dot_product_attention(
                        q, k, v, is_causal=spec["causal"], enable_gqa=spec["hq"] != spec["hkv"])
            return run

        for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("fa2", SDPBackend.FLASH_ATTENTION)):
            self.add_peer(name, attend(backend))

    def add_flash(self, peers):
        spec = self.spec
        options = {"causal": spec["causal"]}
        if "softcap" in spec["words"]:
            options["softcap"] = 30.0
        if "window" in spec["words"]:
            options["window_size"] = (1024, 0)
        if "alibi" in spec["words"] or "sinks" in spec["words"]:
            return
        if peers.fa3 is not None and self.lengths:
            longest = max(self.lengths)
            self.add_peer("fa3", lambda: peers.fa3.flash_attn_varlen_func(
                self.q, self.k, self.v, self.offsets, self.offsets, longest, longest, **options))
        elif peers.fa3 is not None:
            self.add_peer("fa3", lambda: peers.fa3.flash_attn_func(self.q, self.k, self.v, **options))
        if peers.fa4 is not None and not self.lengths and spec["case"] in ("dense", "drawn", "fp16"):
            self.add_peer("fa4", lambda: peers.fa4.flash_attn_func(self.q, self.k, self.v, **options))

    def add_peer(self, name, run):
        try:
            result = run()
            self.torch.cuda.synchronize()
        except (RuntimeError, TypeError, ValueError, AssertionError, NotImplementedError) as error:
            self.absent[name] = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            self.peers.report(name, self.absent[name])
            return
        result = result[0] if isinstance(result, tuple) else result
        self.contenders[name] = run
        self.outputs[name] = result.transpose(1, 2) if name in ("cudnn", "fa2") else result

    def errors(self):
        """Relative Frobenius error of every output against float64, on the first and last heads."""
        spec, torch = self.spec, self.torch
        if self.lengths or spec["words"] not in ("", "nolse"):
            return {}
        found = {}
        heads = sorted({(0, 0), (spec["b"] - 1, spec["hq"] - 1)})
        if spec["sq"] * spec["sk"] > 1 << 25:
            heads = heads[-1:]
        norms = {name: [0.0, 0.0] for name in self.outputs}
        for b, h in heads:
            kv = h * spec["hkv"] // spec["hq"]
            rows = slice(max(0, spec["sq"] - 2048), spec["sq"])
            q, k, v = self.q[b, rows, h].double(), self.k[b, :, kv].double(), self.v[b, :, kv].double()
            scores = q @ k.T / math.sqrt(spec["d"])
            if spec["causal"]:
                row = torch.arange(rows.start, spec["sq"], device="cuda")[:, None]
                key = torch.arange(spec["sk"], device="cuda")[None]
                scores.masked_fill_(key > row + spec["sk"] - spec["sq"], -math.inf)
            expected = torch.softmax(scores, 1).nan_to_num(0.0) @ v
            for name, out in self.outputs.items():
                norms[name][0] += (out[b, rows, h].double() - expected).pow(2).sum().item()
                norms[name][1] += expected.pow(2).sum().item()
        for name, (difference, norm) in norms.items():
            found[name] = math.sqrt(difference / norm)
        return found


# ---- timing --------------------------------------------------------------------------------------
class Replay:
    """Calls of one contender in a CUDA graph."""

    def __init__(self, torch, run, target_ms):
        self.torch = torch
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                run()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
        side.synchronize()
        once = max(begin.elapsed_time(end), 1e-3)
        self.calls = max(1, min(64, round(min(target_ms, 4.0) / once)))
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for _ in range(self.calls):
                run()
        self.replays = max(1, round(target_ms / (once * self.calls)))

    def milliseconds(self):
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(self.replays):
            self.graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / (self.replays * self.calls)


def measure(torch, case, gemm, rounds, round_ms, generator):
    replays = {name: Replay(torch, run, round_ms) for name, run in case.contenders.items()}
    replays["gemm"] = gemm
    times = {name: [] for name in replays}
    for name in replays:
        replays[name].milliseconds()
    order = list(replays)
    for _ in range(rounds):
        generator.shuffle(order)
        for name in order:
            times[name].append(replays[name].milliseconds())
    return times


def summarise(case, times, head):
    spec = case.spec
    flops = {name: case.flops for name in times}
    flops["gemm"] = 2.0 * GEMM_SIZE ** 3
    rates = {name: flops[name] / statistics.median(values) * 1e-9 for name, values in times.items()}
    row = {"op": "forward", "dtype": spec["dtype"], "d": spec["d"], "s": spec["sq"],
           "causal": spec["causal"], "case": spec["case"], "shape": describe(spec)}
    for name in ("rowmax", *PEERS, "gemm"):
        row[name] = round(rates[name], 1) if name in rates else None
    row["kernel"] = case.kernels["rowmax"]
    present = [name for name in PEERS if name in times and name != "fa2"]
    if present:
        best = max(present, key=lambda name: rates[name])
        ratios = [peer / own for peer, own in zip(times[best], times["rowmax"])]
        row["best_peer"] = best
        row["ratio"] = round(statistics.median(ratios), 3)
        row["ratio_p10"] = round(percentile(ratios, 0.1), 3)
    row["share_of_gemm"] = round(statistics.median(
        [g / flops["gemm"] * case.flops / own for g, own in zip(times["gemm"], times["rowmax"])]), 3)
    row["kernels"] = {name: round(rates[name], 1) for name in case.kernels if name != "rowmax"}
    row["errors"] = {name: float(f"{value:.3g}") for name, value in case.errors().items()
                     if name in ("rowmax", *PEERS)}
    row["absent"] = case.absent
    return dict(row, **head)


def outlier_errors(torch, library, peers):
    """FA3's distribution N(0, 1) + N(0, 100) * Bernoulli(0.001): errors of ours and FA3."""
    case = Case(torch, library, peers, OUTLIERS, [])
    for tensor in (case.q, case.k, case.v):
        noise = torch.randn_like(tensor) * 10.0 * (torch.rand_like(tensor, dtype=torch.float) < 1e-3)
        tensor.add_(noise.to(tensor.dtype))
    for name, run in case.contenders.items():
        result = run()
        if name not in case.kernels:
            result = result[0] if isinstance(result, tuple) else result
            case.outputs[name] = result.transpose(1, 2) if name in ("cudnn", "fa2") else result
    torch.cuda.synchronize()
    return case.errors()


def versions(torch, peers):
    out = {"torch": torch.__version__, "cuda": torch.version.cuda,
           "cudnn": torch.backends.cudnn.version()}
    for name, module in (("fa3", peers.fa3), ("fa4", peers.fa4)):
        out[name] = getattr(module, "__version__", module.__name__) if module else None
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/cuda")
    parser.add_argument("--suite", type=suite_names, default="table",
                        help=f"{', '.join(SUITES)} (a comma list), or all")
    parser.add_argument("--only", type=regular_expression, default="",
                        help="regular expression on the case's text")
    parser.add_argument("--kernels", default="", help="comma list of rows that also run, forced")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--round-ms", type=float, default=100.0, help="per contender and round")
    parser.add_argument("--seed", type=int, default=1, help="of the drawn shapes")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    import torch  # after the arguments, so that --help needs no torch
    library = load_library(args.build)
    peers = Peers()
    torch.manual_seed(args.seed)
    generator = random.Random(args.seed)
    head = {"device": torch.cuda.get_device_name(), "date": datetime.date.today().isoformat(),
            "rounds": args.rounds, "version": library.rowmax_version().decode(), "commit": commit(),
            "versions": versions(torch, peers)}
    print(json.dumps(head))
    a, b = (torch.randn(GEMM_SIZE, GEMM_SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)
    gemm = Replay(torch, lambda: torch.mm(a, b, out=c), args.round_ms)
    kernels = [name for name in args.kernels.split(",") if name]
    print(f"{'case':52} {'rowmax':>7} {'fa3':>6} {'fa4':>6} {'cudnn':>6} {'fa2':>6} {'gemm':>6}  "
          f"ratio (p10)  of gemm  kernel")
    rows = []
    sink = open(args.json, "w", encoding="utf-8") if args.json else None
    with torch.no_grad():
        specs = cases_of(args.suite, args.seed, args.only)
        for spec in specs:
            if spec is OUTLIERS:
                continue  # after the others, errors alone
            try:
                case = Case(torch, library, peers, spec, kernels)
            except RuntimeError as error:
                print(f"{describe(spec):52} {error}"[:200], flush=True)
                continue
            row = summarise(case, measure(torch, case, gemm, args.rounds, args.round_ms, generator), head)
            rows.append(row)
            rates = " ".join(f"{row[n] or 0:6.0f}" for n in ("fa3", "fa4", "cudnn", "fa2", "gemm"))
            print(f"{describe(spec):52} {row['rowmax']:7.0f} {rates}  {row.get('ratio', 0):5.3f} "
                  f"({row.get('ratio_p10', 0):.3f})  {row['share_of_gemm']:5.3f}  {row['kernel']} "
                  f"{row['kernels'] or ''}", flush=True)
            if sink:
                sink.write(json.dumps(row) + "\n")
                sink.flush()
        if OUTLIERS in specs:
            errors = {name: float(f"{value:.3g}")
                      for name, value in outlier_errors(torch, library, peers).items()}
            print(json.dumps({"case": "outliers", "errors": errors}))
            if sink:
                sink.write(json.dumps(dict({"op": "forward", "case": "outliers", "errors": errors},
                                           **head)) + "\n")
    ratios = [row["ratio"] for row in rows if row["case"] == "dense" and "ratio" in row]
    if ratios:
        mean = math.exp(sum(math.log(r) for r in ratios) / len(ratios))
        print(f"geometric mean of {len(ratios)} dense cells: {mean:.3f}")


if __name__ == "__main__":
    main()
