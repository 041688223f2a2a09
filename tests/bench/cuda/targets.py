#!/usr/bin/env python3
"""Which targets of decoding were met: a table from the result files of decode and, where they are there, of others.

    targets.py DECODE [--left-out FILE] [--beside FILE] [--torch FILE]

Each file has JSON objects one after the other, as the benchmarks print them, or the one object that tests/gpu/run.sh
makes of them. A target whose case was not measured is in the table as such. Prints text; --json FILE writes the same
as JSON. Exit status 0 whatever was met, 2 where a file cannot be read.
"""
import argparse
import json
import sys

# Package folders end in shape/batch-B or shape/batch-B-context-C; those with kernels that leave something out in
# left-out-WHAT/shape/batch-B.
SHARE_TARGETS = [  # shape, batch, context, least share of the read limit
    ("llama-3.2-1b", 1, 128, 0.90),
    ("llama-3.2-1b", 1, 1024, 0.88),
    ("llama-3.2-1b", 8, 1024, 0.85),
    ("qwen3-0.6b", 1, 128, 0.82),
    ("llama-3.1-8b", 1, 128, 0.94),
    ("llama-3.1-8b", 1, 8192, 0.90),
    ("llama-3.1-8b", 16, 1024, 0.88),
]
MOST_DYNAMIC_TO_STATIC = 1.02
MOST_STEPS_TO_OWN = 1.005
MOST_SINGLE_US = 15.0
TOGETHER, SINGLE = "many steps an execute", "one step an execute, waited for"


def read_results(text):
    """The benchmarks' objects in a file's text; what follows a broken one is left out."""
    values = []
    while text.strip():
        try:
            value, end = json.JSONDecoder().raw_decode(text.lstrip())
        except ValueError:  # of a program that was cut off
            break
        values.append(value)
        text = text.lstrip()[end:]
    found = []
    for value in values:
        found += value["results"] if "benchmark" not in value else [value]
    return found


def shape_of(package):
    return package.rstrip("/").split("/")[-2]


def find(decode, shape, batch, context):
    """The case's figures by (queue, way to ask), of the last package that has it."""
    figures = {}
    for program in decode:
        if program.get("benchmark") != "decode" or shape_of(program["package"]) != shape:
            continue
        for result in program["results"]:
            if (result["batch"], result["context"]) == (batch, context):
                figures[result["queue"], result["asking"]] = result
    return figures


def line(name, value, relation, target, unit):
    """One row: what was measured, what it is held to, and whether it holds; `value` None: not measured."""
    met = None if value is None else (value >= target if relation == ">=" else value <= target)
    return {"target": name, "measured": value, "relation": relation, "wanted": target, "unit": unit, "met": met}


def ratio(a, b):
    return None if a is None or b is None else a / b


def judge(decode, beside):
    rows = []
    for shape, batch, context, least in SHARE_TARGETS:
        case = f"{shape}, batch {batch}, context {context}"
        figures = find(decode, shape, batch, context)

        def median(queue, asking):
            result = figures.get((queue, asking))
            return None if result is None else result["ms_per_token"]["p50"]

        shares = [figures[key]["share_of_read_limit"] for key in figures if key[1] == TOGETHER]
        rows.append(line(f"{case}: share of the read limit, the faster mode", max(shares, default=None), ">=", least, "%"))
        rows.append(
            line(
                f"{case}: dynamic to static",
                ratio(median("dynamic", TOGETHER), median("static", TOGETHER)),
                "<=",
                MOST_DYNAMIC_TO_STATIC,
                "x",
            )
        )
        for queue in ("dynamic", "static"):
            together = figures.get((queue, TOGETHER))
            own = None if together is None else together["own_ms_per_token"]
            single = median(queue, SINGLE)
            rows.append(
                line(f"{case}, {queue}: many steps to the kernel's own time", ratio(median(queue, TOGETHER), own), "<=",
                     MOST_STEPS_TO_OWN, "x")
            )
            above = None if single is None or own is None else (single - own) * 1e3
            rows.append(
                line(f"{case}, {queue}: one token an execute above the kernel's own time", above, "<=", MOST_SINGLE_US,
                     "us")
            )
    measured = [of for program in beside for of in program["results"] if of["others"] != "nobody else"]
    for of in measured:
        workers = of["worker_limit"] or "all"
        for way, text in (("many_steps_an_execute", "many steps"), ("one_step_an_execute", "one step")):
            value = of[way]["dynamic_to_static"] if way in of else None
            rows.append(line(f"beside {of['others']}, {workers} SMs, {text} an execute: dynamic to static", value, "<=",
                             1.0, "x"))
    if not measured:
        rows.append(line("beside others on 16 SMs: dynamic to static", None, "<=", 1.0, "x"))
    return rows


def show(value, unit):
    if value is None:
        return "-"
    if unit == "%":
        return f"{value * 100:.1f} %"
    return f"{value:.1f} us" if unit == "us" else f"{value:.4f}"


def table(rows):
    words = {True: "met", False: "MISSED", None: "not measured"}
    width = max(len(row["target"]) for row in rows)
    return "".join(
        f"{row['target']:<{width}}  {show(row['measured'], row['unit']):>9}  {row['relation']} "
        f"{show(row['wanted'], row['unit']):<8}  {words[row['met']]}\n"
        for row in rows
    )


def counterparts(left_out, torch):
    """What stands beside the targets and has none: kernels that leave something out, and torch."""
    text = ""
    for program in left_out:
        left = program["package"].rstrip("/").split("/")[-3].removeprefix("left-out-")
        for result in program["results"]:
            text += (
                f"without {left}, {shape_of(program['package'])}, batch {result['batch']}, "
                f"context {result['context']}, {result['queue']}: {result['ms_per_token']['p50']:.4f} ms a token, "
                f"{result['share_of_read_limit'] * 100:.1f} % of the read limit\n"
            )
    for program in torch:
        for result in program["results"]:
            text += (
                f"torch, {shape_of(program['model'])}, batch {result['batch']}, context {result['context']}: "
                f"{result['ms_per_token']['p50']:.4f} ms a token ({result['way']})\n"
            )
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("decode")
    parser.add_argument("--left-out")
    parser.add_argument("--beside")
    parser.add_argument("--torch")
    parser.add_argument("--json")
    arguments = parser.parse_args()

    def read(name):
        if name is None:
            return []
        with open(name) as file:
            return read_results(file.read())

    try:
        decode = read(arguments.decode)
        left_out, beside, torch = read(arguments.left_out), read(arguments.beside), read(arguments.torch)
    except OSError as failure:
        print(f"targets.py: {failure}", file=sys.stderr)
        return 2
    rows = judge(decode, beside)
    print(table(rows) + counterparts(left_out, torch), end="")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"benchmark": "targets", "results": rows}, file, indent=1)
            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
