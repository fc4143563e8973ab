#!/usr/bin/env python3
"""Timeline of the roles of a CTA, as SVG, of a trace (build with -DROWMAX_CUDA_TRACE=ON, run with
ROWMAX_TRACE=FILE.json; the file also opens in chrome://tracing or Perfetto):
    python3 bench/plot_trace.py bench/results/h200_trace_DATE.json docs/plots/h200_trace.svg
"""
import argparse
import html
import json

COLOURS = {"issue": "#d1495b", "maximum": "#5b84b1", "exponentials": "#2f4b7c", "store": "#7a9e7e",
           "load": "#e0a458"}  # other states are waits
WAIT = "#e6e6e6"
WIDTH, LEFT, ROW, TOP = 1100, 110, 30, 46


def roles(trace):
    """(name, spans) of each role of CTA 0 that was seen, in order."""
    names = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"]
             if e["ph"] == "M" and e["name"] == "thread_name" and e["pid"] == 0}
    spans = {tid: [] for tid in names}
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["pid"] == 0:
            spans[event["tid"]].append(event)
    return [(names[tid], sorted(spans[tid], key=lambda e: e["ts"])) for tid in sorted(names)
            if spans[tid]]


def render(trace):
    rows = roles(trace)
    begin = min(e["ts"] for _, spans in rows for e in spans)
    end = max(e["ts"] + e["dur"] for _, spans in rows for e in spans)
    scale = (WIDTH - LEFT - 10) / (end - begin)
    height = TOP + ROW * len(rows) + 40
    about = trace["otherData"]
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
           'font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
           f'<text x="{LEFT}" y="18">{html.escape(about["kernel"])}, '
           f'{html.escape(about.get("case", ""))}: {end - begin} clocks of one CTA</text>']
    x = LEFT
    for name, colour in [*COLOURS.items(), ("waits", WAIT)]:
        out.append(f'<rect x="{x}" y="26" width="12" height="12" fill="{colour}"/>'
                   f'<text x="{x + 16}" y="36">{name}</text>')
        x += 110
    for index, (name, spans) in enumerate(rows):
        y = TOP + index * ROW
        out.append(f'<text x="{LEFT - 8}" y="{y + 19}" text-anchor="end">{html.escape(name)}</text>')
        for span in spans:
            left = LEFT + (span["ts"] - begin) * scale
            width = max(0.3, min(span["dur"], end - span["ts"]) * scale)
            colour = COLOURS.get(span["name"], WAIT)
            out.append(f'<rect x="{left:.1f}" y="{y + 4}" width="{width:.1f}" height="{ROW - 8}" '
                       f'fill="{colour}"/>')
    for tick in range(0, int(end - begin) + 1, 2000):
        x = LEFT + tick * scale
        out.append(f'<text x="{x:.1f}" y="{height - 12}" text-anchor="middle">{tick}</text>')
    out.append("</svg>")
    return "\n".join(out) + "\n"


def cut(trace, begin, end, about):
    """The spans of CTA 0 that begin in [begin, end), in clocks, from 0 on; for files that are kept."""
    kept = []
    for event in trace["traceEvents"]:
        if event["pid"] == 0 and event["ph"] == "M":
            kept.append(event)
        elif event["pid"] == 0 and begin <= event["ts"] < end:
            kept.append(dict(event, ts=event["ts"] - begin))
    return {"otherData": dict(trace["otherData"], **about), "traceEvents": kept}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("svg")
    parser.add_argument("--cut", help="BEGIN,END in clocks: only this part of CTA 0")
    parser.add_argument("--json", help="also write what is drawn")
    parser.add_argument("--about", action="append", default=[], help="KEY=VALUE for its otherData")
    args = parser.parse_args()
    with open(args.trace, encoding="utf-8") as f:
        trace = json.load(f)
    if args.cut:
        begin, end = (int(word) for word in args.cut.split(","))
        trace = cut(trace, begin, end, dict(word.split("=", 1) for word in args.about))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            f.write(json.dumps(trace).replace('}, {"name"', '},\n{"name"') + "\n")
    with open(args.svg, "w", encoding="utf-8") as f:
        f.write(render(trace))


if __name__ == "__main__":
    main()
