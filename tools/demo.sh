#!/usr/bin/env bash
# The demonstration behind `make demo`: attention on real tensors, checked, then a length sweep
# against a naive implementation. Usage: tools/demo.sh PATH_TO_ROWMAX
set -euo pipefail

rowmax=${1:?usage: tools/demo.sh PATH_TO_ROWMAX}
cd "$(dirname "$0")/.."
out=demo_output
mkdir -p "$out"

echo "== 1. One dense sequence of a real encoder layer (512 tokens, 12 heads of 32), f32"
"$rowmax" attend data/minilm_layer3_dense.safetensors --check --repeat 5 --out "$out/dense.safetensors"
echo
echo "== 2. A ragged batch of the same layer (30 sequences), f16"
"$rowmax" attend data/minilm_layer3_varlen.safetensors --check --repeat 5 --out "$out/varlen.safetensors"
echo
echo "== 3. The same batch in bf16"
"$rowmax" attend data/minilm_layer3_varlen.safetensors --dtype bf16 --check
echo
echo "== 4. Length sweep against a naive implementation that stores the score matrix"
"$rowmax" bench --suite sweep --baseline naive --baseline-seconds 6 --check --rounds 5 \
  --round-seconds 0.05 --case-seconds 8 --json "$out/sweep.json" --plot "$out/sweep.svg"
echo
echo "every check passed"
echo "wrote $out/dense.safetensors, $out/varlen.safetensors, $out/sweep.svg, $out/sweep.json"
