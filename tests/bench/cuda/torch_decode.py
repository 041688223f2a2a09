#!/usr/bin/env python3
"""Measures decoding with torch, compiled and in one CUDA graph a token: what mkrt is compared with on the same shapes.

The model of a config.json (transformers' class for it) gets random bf16 weights and a static cache. A step computes
one token at the next position and chooses the likeliest one after it; 64 of them, with `context` positions before the
one in the middle, are a group, as in decode.cpp. The step is compiled by torch.compile and captured in a CUDA graph,
which is replayed; where it cannot be compiled, the graph has torch's own kernels, and "way" says so. Prints one JSON
object, with what was measured when --seconds ran out.
"""
import argparse
import inspect
import json
import os
import pathlib
import signal
import statistics
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

import torch
import transformers

STEPS = 64  # of a measured group
GROUPS = 5


def make_model(folder):
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return model.to(torch.bfloat16).eval()


def weight_bytes(model):
    """Bytes that a step reads: every weight once, of a token table of its own one row (left out)."""
    table = model.get_input_embeddings().weight
    tied = model.get_output_embeddings().weight is table
    sizes = {id(p): p.numel() * p.element_size() for p in model.parameters()}
    return sum(sizes.values()) - (0 if tied else sizes[id(table)])


def make_cache(config, batch, length):
    # Some versions want sizes and types beforehand, others see them at the first use.
    known = inspect.signature(transformers.StaticCache.__init__).parameters
    wanted = {"max_batch_size": batch, "device": "cuda", "dtype": torch.bfloat16}
    return transformers.StaticCache(
        config=config, max_cache_len=length, **{name: value for name, value in wanted.items() if name in known}
    )


class Step:
    """One step after the other, from any position on."""

    def __init__(self, model, batch, context):
        self.model = model
        self.first = context - STEPS // 2
        self.cache = make_cache(model.config, batch, context + STEPS // 2)
        self.token = torch.zeros((batch, 1), dtype=torch.long, device="cuda")
        self.place = torch.zeros(1, dtype=torch.long, device="cuda")
        # The argument has had two names.
        known = inspect.signature(model.forward).parameters
        self.keywords = {"cache" if "cache" in known else "past_key_values": self.cache, "use_cache": True}
        self.counts_itself = False  # not known before the cache has its memory

    def counters(self):
        """In newer versions the cache counts positions itself; in others it is told them."""
        found = (getattr(layer, "cumulative_length", None) for layer in getattr(self.cache, "layers", []))
        return [counter for counter in found if isinstance(counter, torch.Tensor)]

    def go_back(self):
        for position in (self.place, *self.counters()):
            position.fill_(self.first)

    def compute(self, token, place):
        told = {} if self.counts_itself else {"cache_position": place}
        logits = self.model(input_ids=token, position_ids=place.expand(token.shape), **told, **self.keywords).logits
        return logits[:, -1].argmax(dim=-1, keepdim=True), place + 1

    def advance(self, compute):
        token, place = compute(self.token, self.place)
        self.token.copy_(token)
        self.place.copy_(place)

    def capture(self):
        """A graph of one step, and how its kernels were made."""
        self.advance(self.compute)  # as it is: the cache gets its memory
        self.counts_itself = bool(self.counters())
        self.go_back()
        compiled, way = torch.compile(self.compute, dynamic=False), "compiled"
        try:
            self.advance(compiled)
        except TimeoutError:
            raise
        except Exception as failure:
            compiled, way = self.compute, f"not compiled: {type(failure).__name__}: {str(failure)[:300]}"
        self.go_back()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.advance(compiled)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.advance(compiled)
        return graph, way


def milliseconds_per_token(step, graph):
    groups = []
    for group in range(-1, GROUPS):  # the first warms up
        step.go_back()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(STEPS):
            graph.replay()
        torch.cuda.synchronize()
        if group >= 0:
            groups.append((time.perf_counter() - begin) * 1e3 / STEPS)
    return groups


@torch.no_grad()
def measure(model, batch, context):
    begin = time.monotonic()
    step = Step(model, batch, context)
    graph, way = step.capture()
    groups = milliseconds_per_token(step, graph)
    torch.compiler.reset()
    config = model.config
    heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cache = config.num_hidden_layers * 2 * heads * head_size * 2 * context * batch
    middle = statistics.median(groups)
    return {
        "context": context,
        "batch": batch,
        "way": way,
        "ms_per_token": {"samples": len(groups), "min": min(groups), "p50": middle, "max": max(groups)},
        "weight_bytes": weight_bytes(model),
        "cache_bytes": cache,
        "gigabytes_per_second": (weight_bytes(model) + cache) / middle / 1e6,
        "seconds": time.monotonic() - begin,
    }


def out_of_time(*_):
    raise TimeoutError("the time that --seconds gives was over")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=pathlib.Path, help="folder with config.json")
    parser.add_argument("--contexts", nargs="+", type=int, default=[128, 1024])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=55, help="for everything; what is not done then is left out")
    arguments = parser.parse_args()
    signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(arguments.seconds)
    result = {
        "benchmark": "torch_decode",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "model": str(arguments.model),
        "way": "torch.compile where a result says compiled, static cache, one CUDA graph a token",
        "results": [],
    }
    try:
        result["device"] = torch.cuda.get_device_name()
        model = make_model(arguments.model)
        for context in arguments.contexts:
            result["results"].append(measure(model, arguments.batch, context))
    except Exception as failure:  # what was measured before is still worth knowing
        result["failure"] = f"{type(failure).__name__}: {failure}"
    signal.alarm(0)
    print(json.dumps(result, indent=1))
    return 0 if result["results"] else 1


if __name__ == "__main__":
    sys.exit(main())
