#!/usr/bin/env python3
"""How often the sm90 forward kernel does a key block again, without a GPU.

    bench/repeated_blocks.py [--limit 32768]

A warp repeats a block when one lane's sum of exponentials exceeds the limit (kLargestSum of
src/backend/cuda/tile/softmax.cuh): 16 query rows a warp, a row in four lanes, key blocks from the last to
the first. Prints repeated blocks over all but the tiles' first, for the tensors of data/ and drawn ones.
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


def repeated(scores, block_keys, limit):
    """(blocks after the first of a warp's rows, those done again); scores (rows, keys) in log2 units."""
    blocks = again = 0
    for row in range(0, scores.shape[0], ROWS_OF_A_WARP):
        warp = scores[row:row + ROWS_OF_A_WARP]
        reference = None
        for begin in range((scores.shape[1] - 1) // block_keys * block_keys, -1, -block_keys):
            block = warp[:, begin:begin + block_keys]
            if reference is None:
                reference = block.max(1)
                continue
            blocks += 1
            with np.errstate(over="ignore"):
                exponentials = np.exp2((block - reference[:, None]).astype(np.float64))
            padded = np.pad(exponentials, ((0, 0), (0, -block.shape[1] % 8)))
            lanes = padded.reshape(len(padded), -1, 4, 2).sum((1, 3))
            low = (lanes > limit).any(1)
            if low.any():
                again += 1
                reference = np.where(low, np.maximum(reference, block.max(1)), reference)
    return blocks, again


def report(name, all_scores, block_keys, limit):
    counts = np.sum([repeated(scores, block_keys, limit) for scores in all_scores], axis=0)
    print(f"{name:34} blocks of {block_keys:3} keys  {counts[1]:5} of {counts[0]:5}  {counts[1] / counts[0]:.1%}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--limit", type=float, default=32768.0)
    limit = parser.parse_args().limit
    path = os.path.join(ROOT, "data", "minilm_layer3_dense.safetensors")
    q, k = tensor(path, "q")[0], tensor(path, "k")[0]  # (512, 12, 32)
    scale = math.log2(math.e) / math.sqrt(q.shape[-1])
    heads = [q[:, h] @ k[:, h].T * scale for h in range(q.shape[1])]
    for block_keys in (64, 128):
        report("MiniLM layer 3, S 512, 12 heads", heads, block_keys, limit)
    draw = np.random.default_rng(1)

    def drawn(rows, outliers=False):
        values = draw.standard_normal((rows, 128))
        if outliers:
            values += 100 * draw.standard_normal(values.shape) * (draw.random(values.shape) < 1e-3)
        return values.astype(np.float32)

    scale = math.log2(math.e) / math.sqrt(128)
    report("N(0,1), S 4096, D 128", [drawn(256) @ drawn(4096).T * scale], 128, limit)
    report("scores of standard deviation 4", [4 * drawn(256) @ drawn(4096).T * scale], 128, limit)
    report("N(0,1) + N(0,100) * B(0.001)", [drawn(256, True) @ drawn(4096, True).T * scale], 128, limit)


if __name__ == "__main__":
    main()
