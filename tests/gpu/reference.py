#!/usr/bin/env python3
"""Compares what mkrt decodes on the GPU with the transformers library in float32 on the same weights.

decode_logits lets the package of every shape and batch choose 64 tokens after 8 given ones, in both queue modes and
with several limits of SMs; one run does all of them, because those on one SM run side by side. transformers then
computes the logits of the same tokens in one pass, in float32, without TF32 and with plain attention. The error of a
position is |logits - reference| / |reference|, Euclidean over the vocabulary. Writes one JSON file; fails where an
error is 1e-2 or more, or is no number.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

import numpy
import torch
import transformers

LIMIT = 1e-2


def load_model(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    )
    assert all(p.dtype == torch.float32 for p in model.parameters())
    return model.to("cuda").eval()


@torch.no_grad()
def reference_logits(model, tokens, first):
    """Logits after each place from `first` on: [batch, positions, vocabulary]."""
    places = torch.tensor(tokens[:, :-1], device="cuda", dtype=torch.long)
    return model(input_ids=places, use_cache=False).logits[:, first:, :].float()


def errors(path, shape, reference):
    """The error of each position and sequence: [positions, batch]."""
    logits = numpy.memmap(path, dtype=numpy.float32, mode="r", shape=shape)
    found = []
    for position in range(shape[0]):
        ours = torch.from_numpy(numpy.array(logits[position])).to("cuda").double()
        theirs = reference[:, position, :].double()
        found.append(((ours - theirs).norm(dim=-1) / theirs.norm(dim=-1)).cpu())
    return torch.stack(found)


def decode(arguments, packages):
    """What decode_logits reports of each package; of those that it did not come to, nothing."""
    positions = arguments.positions
    ways = ",".join(limit if ":" in limit else f"{limit}:{positions}" for limit in arguments.sm_limits)
    # As many work queues as there can be: kernels on streams that share one wait for each other.
    environment = {**os.environ, "CUDA_DEVICE_MAX_CONNECTIONS": "32"}
    reports = {}
    with tempfile.TemporaryFile("w+") as lines:
        command = [arguments.decode_logits, "cuda", str(positions), ways, *packages]
        try:
            subprocess.run(command, stdout=lines, env=environment, timeout=arguments.timeout)
        except subprocess.TimeoutExpired:
            print(f"decode_logits took more than {arguments.timeout:.0f} s", flush=True)
        lines.seek(0)
        for line in lines:
            if line.endswith("\n"):  # it may have been ended in the middle of one
                report = json.loads(line)
                reports[report.pop("package")] = report
    return reports


def check_package(arguments, model, package, report):
    if report is None:
        raise RuntimeError("decode_logits did not come to an end with it")
    if "failure" in report:
        raise RuntimeError(f"decode_logits: {report['failure']}")
    output = f"{package}.out"
    batch, vocabulary, prompt = report["batch"], report["vocabulary"], report["prompt_length"]
    tokens = numpy.fromfile(f"{output}.tokens", dtype=numpy.int32).reshape(batch, prompt + arguments.positions)
    reference = reference_logits(model, tokens, prompt - 1)
    first = errors(f"{output}.logits", (arguments.positions, batch, vocabulary), reference)
    for way in report["ways"]:
        found = first[: way["positions"]]
        if "file" in way:
            found = errors(way["file"], (way["positions"], batch, vocabulary), reference)
            os.remove(way.pop("file"))
        way["largest_error"] = found.max().item()
        way["mean_error"] = found.mean().item()
        way["ok"] = bool((found < LIMIT).all())
    for kind in ("tokens", "logits"):
        os.remove(f"{output}.{kind}")
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decode-logits", required=True, help="the program")
    parser.add_argument("--models", required=True, type=pathlib.Path, help="folder with SHAPE/model and SHAPE/batch-B")
    parser.add_argument("--output", required=True, help="JSON file")
    parser.add_argument("--shapes", nargs="+", required=True)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 3, 16])
    parser.add_argument("--positions", type=int, default=64)
    parser.add_argument("--sm-limits", nargs="+", default=["0", "64", "1"], help="LIMIT or LIMIT:POSITIONS; 0: all")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for decode_logits")
    arguments = parser.parse_args()

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    transformers.utils.logging.disable_progress_bar()
    result = {
        "check": "reference",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": torch.cuda.get_device_name(),
        "limit": LIMIT,
        "cases": [],
    }
    failures = 0
    packages = {(s, b): str(arguments.models / s / f"batch-{b}") for s in arguments.shapes for b in arguments.batches}
    begin = time.monotonic()
    reports = decode(arguments, list(packages.values()))
    result["decode_seconds"] = time.monotonic() - begin
    print(f"decoded {len(reports)} of {len(packages)} packages in {result['decode_seconds']:.1f} s", flush=True)
    for shape in arguments.shapes:
        model = None
        for batch in arguments.batches:
            begin = time.monotonic()
            case = {"shape": shape, "batch": batch}
            try:
                if model is None:
                    model = load_model(arguments.models / shape / "model")
                package = packages[shape, batch]
                case.update(check_package(arguments, model, package, reports.get(package)))
                ok = all(way["ok"] for way in case["ways"])
                largest = max(way["largest_error"] for way in case["ways"])
                same = all(way["same_bits_as_first"] for way in case["ways"])
                line = f"largest error {largest:.2e}, {len(case['ways'])} ways {'alike' if same else 'NOT alike'}"
            except Exception as failure:  # the other cases are still worth knowing
                ok = False
                case["failure"] = line = f"{type(failure).__name__}: {failure}"
            case["ok"] = ok
            case["seconds"] = time.monotonic() - begin
            failures += not ok
            result["cases"].append(case)
            outcome = "ok" if ok else "FAILED"
            print(f"{shape:14} batch {batch:2}  {outcome}  {line}  {case['seconds']:.1f} s", flush=True)
            # Written each time: a step that is cut off leaves what it has.
            result["ok"] = failures == 0
            with open(arguments.output, "w") as file:
                json.dump(result, file, indent=1)
        del model
        torch.cuda.empty_cache()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
