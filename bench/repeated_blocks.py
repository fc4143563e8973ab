#!/usr/bin/env python3
"""How often the sm90 forward kernel does a key block again, without a GPU.

    bench/repeated_blocks.py [--limit 256]

A warp repeats a block when one lane's sum of exponentials exceeds the limit (kLargestSum of
src/backend/cuda/tile/softmax.cuh): 16 query rows a warp, a row in four lanes, key blocks from the last to
the first. Prints repeated blocks over all but the tiles' first, for the tensors of data/ and drawn ones,
and the relative Frobenius error of O that P in bf16 against such references makes, beside that against
exact maxima.
Needs numpy.
"""
import argparse
import json
import math
import os
import struct

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KINDS = {"F32": np.float32, "F16": np.float16}
ROWS_OF_A_WARP = 16


def tensor(path, name):
    """One tensor of a safetensors file, as float32."""
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        entry = json.loads(file.read(size))[name]
        begin, end = entry["data_offsets"]
        file.seek(8 + size + begin)
        values = np.frombuffer(file.read(end - begin), KINDS[entry["dtype"]])
    return values.reshape(entry["shape"]).astype(np.float32)


def bf16(values):
    """Rounded to bf16, as float32."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000).astype(np.uint32).view(np.float32)


def softmax_by_blocks(scores, values, block_keys, limit):
    """(O, blocks after the first, those done again) of a warp's rows; limit 0: a maximum every block.

    scores (rows, keys) in log2 units, values (keys, columns).
    """
    reference, out, total, blocks, again = None, 0.0, 0.0, 0, 0
    for begin in range((scores.shape[1] - 1) // block_keys * block_keys, -1, -block_keys):
        block = scores[:, begin:begin + block_keys]
        high = block.max(1)
        if reference is None:
            low, reference = np.zeros(len(block), bool), high
        else:
            with np.errstate(over="ignore"):
                exponentials = np.exp2(block - reference[:, None])
            padded = np.pad(exponentials, ((0, 0), (0, -block.shape[1] % 8)))
            low = (padded.reshape(len(padded), -1, 4, 2).sum((1, 3)) > limit).any(1)
            blocks += 1
            again += int(low.any())
        raised = np.where(low, np.maximum(reference, high), reference)
        factor = np.exp2(reference - raised)
        reference = raised
        exponentials = np.exp2(block - reference[:, None])
        total = total * factor + exponentials.sum(1)
        out = out * factor[:, None] + bf16(exponentials) @ values[begin:begin + block_keys]
    return out / total[:, None], blocks, again


def report(name, heads, block_keys, limit):
    """heads: (scores, values) pairs."""
    blocks = again = 0
    difference, exact_difference, norm = 0.0, 0.0, 0.0
    for scores, values in heads:
        for row in range(0, scores.shape[0], ROWS_OF_A_WARP):
            warp = scores[row:row + ROWS_OF_A_WARP].astype(np.float64)
            weights = np.exp2(warp - warp.max(1, keepdims=True))
            expected = weights @ values / weights.sum(1, keepdims=True)
            out, more, repeats = softmax_by_blocks(warp, values, block_keys, limit)
            exact = softmax_by_blocks(warp, values, block_keys, 0.0)[0]
            blocks, again = blocks + more, again + repeats
            difference += np.square(out - expected).sum()
            exact_difference += np.square(exact - expected).sum()
            norm += np.square(expected).sum()
    print(f"{name:34} blocks of {block_keys:3} keys  {again:5} of {blocks:5}  {again / blocks:6.1%}   "
          f"error {math.sqrt(difference / norm):.2e}, with exact maxima "
          f"{math.sqrt(exact_difference / norm):.2e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--limit", type=float, default=256.0)
    limit = parser.parse_args().limit
    path = os.path.join(ROOT, "data", "minilm_layer3_dense.safetensors")
    q, k, v = (tensor(path, name)[0] for name in "qkv")  # (512, 12, 32)
    scale = math.log2(math.e) / math.sqrt(q.shape[-1])
    heads = [(q[:, h] @ k[:, h].T * scale, v[:, h]) for h in range(q.shape[1])]
    for block_keys in (64, 128):
        report("MiniLM layer 3, S 512, 12 heads", heads, block_keys, limit)
    draw = np.random.default_rng(1)

    def drawn(rows, outliers=False):
        values = draw.standard_normal((rows, 128))
        if outliers:
            values += 10 * draw.standard_normal(values.shape) * (draw.random(values.shape) < 1e-3)
        return values.astype(np.float32)

    def head(factor=1.0, outliers=False):
        scores = drawn(256, outliers) @ drawn(4096, outliers).T
        return [(scores * (factor * math.log2(math.e) / math.sqrt(128)), drawn(4096, outliers))]

    report("N(0,1), S 4096, D 128", head(), 128, limit)
    report("scores of standard deviation 4", head(4.0), 128, limit)
    report("N(0,1) + N(0,100) * B(0.001)", head(outliers=True), 128, limit)


if __name__ == "__main__":
    main()
