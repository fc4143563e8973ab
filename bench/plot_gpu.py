#!/usr/bin/env python3
"""Bars by sequence length, in the style of the FlashAttention papers, of a result file of compare_gpu.py:
    python3 bench/plot_gpu.py bench/results/h200_forward.jsonl docs/plots/h200_forward.svg
One chart for each head dim and mask; the dashed line is the matrix product of the same run.
"""
import html
import json
import sys

SERIES = [("fa2", "FlashAttention-2", "#b8b8b8"), ("cudnn", "cuDNN", "#7a9e7e"),
          ("fa3", "FlashAttention-3", "#5b84b1"), ("fa4", "FlashAttention-4", "#9b7bb8"),
          ("rowmax", "Rowmax", "#d1495b")]
WIDTH, HEIGHT, LEFT, TOP, BOTTOM, GAP = 460, 230, 46, 34, 30, 26


def text(x, y, content, size=11, anchor="middle", weight="normal"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
            f'font-weight="{weight}">{html.escape(content)}</text>')


def chart(rows, title, x0, y0, top):
    """One chart of the rows of a head dim and mask, its corner at (x0, y0)."""
    plot_width, plot_height = WIDTH - LEFT - 10, HEIGHT - TOP - BOTTOM
    base = y0 + TOP + plot_height
    out = [text(x0 + WIDTH / 2, y0 + 18, title, 13, weight="bold")]
    for tick in range(0, int(top) + 1, 200):
        y = base - tick / top * plot_height
        out.append(f'<line x1="{x0 + LEFT}" y1="{y:.1f}" x2="{x0 + WIDTH - 10}" y2="{y:.1f}" '
                   'stroke="#dddddd"/>')
        out.append(text(x0 + LEFT - 6, y + 4, str(tick), 10, "end"))
    present = [s for s in SERIES if any(row[s[0]] for row in rows)]
    group = plot_width / len(rows)
    bar = group * 0.84 / len(present)
    for n, row in enumerate(rows):
        left = x0 + LEFT + n * group + group * 0.08
        for place, (key, _, colour) in enumerate(present):
            if not row[key]:
                continue
            height = row[key] / top * plot_height
            x = left + place * bar
            out.append(f'<rect x="{x:.1f}" y="{base - height:.1f}" width="{bar * 0.92:.1f}" '
                       f'height="{height:.1f}" fill="{colour}"/>')
            if key == "rowmax":
                out.append(text(x + bar / 2, base - height - 3, f"{row[key]:.0f}", 9))
        ceiling = base - row["gemm"] / top * plot_height
        out.append(f'<line x1="{left:.1f}" y1="{ceiling:.1f}" x2="{left + group * 0.84:.1f}" '
                   f'y2="{ceiling:.1f}" stroke="#444444" stroke-dasharray="4 3"/>')
        label = f"{row['s'] // 1024}k" if row["s"] >= 1024 else str(row["s"])
        out.append(text(left + group * 0.42, base + 16, label))
    return out


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    cells = [row for row in rows if row.get("case") == "dense"]
    groups = sorted({(row["d"], row["causal"]) for row in cells})
    top = 200 * (int(max(max(row["gemm"], row["rowmax"]) for row in cells)) // 200 + 1)
    columns = 2
    lines = (len(groups) + columns - 1) // columns
    width, height = columns * (WIDTH + GAP), 60 + lines * (HEIGHT + GAP)
    head = cells[0]
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
           'font-family="sans-serif">', f'<rect width="{width}" height="{height}" fill="white"/>',
           text(width / 2, 22, f"Attention forward, bf16, {head['device']}, TFLOP/s by sequence length, "
                f"{head['date']}", 15, weight="bold")]
    x = 60
    for key, name, colour in SERIES:
        if any(row[key] for row in cells):
            out.append(f'<rect x="{x}" y="34" width="12" height="12" fill="{colour}"/>')
            out.append(text(x + 18, 44, name, 12, "start"))
            x += 40 + 8 * len(name)
    out.append(f'<line x1="{x}" y1="40" x2="{x + 22}" y2="40" stroke="#444444" stroke-dasharray="4 3"/>')
    out.append(text(x + 28, 44, "bf16 matrix product", 12, "start"))
    for n, (d, causal) in enumerate(groups):
        chosen = sorted((r for r in cells if (r["d"], r["causal"]) == (d, causal)),
                        key=lambda r: r["s"])
        out += chart(chosen, f"head dim {d}, {'causal' if causal else 'full'}",
                     (n % columns) * (WIDTH + GAP), 56 + n // columns * (HEIGHT + GAP), top)
    out.append("</svg>")
    with open(sys.argv[2], "w", encoding="utf-8") as f:
        f.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
