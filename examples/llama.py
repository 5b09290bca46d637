"""A Llama of random weights with torch's attention and with ours: a forward pass, generation with a
dynamic and a static cache, one training step.

    python examples/llama.py

Prints, for each, the milliseconds with either, their ratio in rounds that run both in turns, with
an interval of 96 %, and the GPU's busy time; and how far either is from eager attention in fp32.
Needs a GPU, and `pip install transformers`; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

try:
    import torch
    from torch.profiler import ProfilerActivity, profile
    from transformers import LlamaConfig, LlamaForCausalLM

    from fa_tune.op import register_transformers
except ImportError as error:
    sys.exit(f"error: this needs torch and transformers: {error}")

ROUNDS = 12
OUTSIDE = 2  # ratios on each side of an interval that holds the median with 96 %
KINDS = ("sdpa", "fa_tune")


def model_of(layers: int, seq_len: int) -> Any:
    """About 0.2 billion weights for eight layers, in bf16."""
    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=seq_len + 64,
        pad_token_id=0,
        eos_token_id=None,
        initializer_range=0.05,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()


def milliseconds(call: Callable[[], Any]) -> float:
    """How long a call and its work on the GPU take."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def busy_milliseconds(call: Callable[[], Any]) -> float:
    """How long the GPU works in a call, the host's time left out."""
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        call()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in found.key_averages()) / 1e3


def compared(calls: dict[str, Callable[[], Any]]) -> str:
    """Times of two calls, in rounds that begin with either."""
    one, other = calls
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for i in range(ROUNDS):
        for name in (one, other) if i % 2 == 0 else (other, one):
            times[name].append(milliseconds(calls[name]))
    ratios = sorted(a / b for a, b in zip(times[one], times[other], strict=True))
    walls = ", ".join(f"{name} {statistics.median(times[name]):.1f} ms" for name in calls)
    busy = ", ".join(f"{busy_milliseconds(call):.1f}" for call in calls.values())
    low, high = ratios[OUTSIDE], ratios[-1 - OUTSIDE]
    return (
        f"{walls} (GPU busy: {busy}); {other} {statistics.median(ratios):.2f} times as fast, "
        f"{low:.2f} to {high:.2f}"
    )


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--new-tokens", type=int, default=32)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("error: this needs a CUDA GPU")
    warnings.filterwarnings("ignore")
    register_transformers()
    model = model_of(args.layers, args.seq_len + args.new_tokens)
    tokens = torch.randint(1, 8192, (1, args.seq_len), device="cuda")

    exact = copy.deepcopy(model).float()
    exact.set_attn_implementation("eager")

    @torch.no_grad()
    def forward(model: Any) -> torch.Tensor:
        logits: torch.Tensor = model(tokens, use_cache=False).logits
        return logits

    @torch.no_grad()
    def generate(model: Any, cache: str) -> torch.Tensor:
        found: torch.Tensor = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=args.new_tokens,
            do_sample=False,
            cache_implementation=cache,
            disable_compile=True,
        )
        return found[:, args.seq_len :]

    def train(model: Any) -> torch.Tensor:
        model.zero_grad()
        model(tokens, labels=tokens, use_cache=False).loss.backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    work: dict[str, Callable[[Any], torch.Tensor]] = {
        "forward": forward,
        "generate, dynamic cache": lambda model: generate(model, "dynamic"),
        "generate, static cache": lambda model: generate(model, "static"),
        "training step": train,
    }
    for name, call in work.items():

        def run(kind: str, call: Callable[[Any], torch.Tensor] = call) -> torch.Tensor:
            model.set_attn_implementation(kind)
            return call(model).float()

        right, apart = call(exact).float(), []
        for kind in KINDS:
            found = run(kind)
            if name.startswith("generate"):
                apart.append(f"{kind} {int((found == right).sum())} of {right.numel()} tokens")
            else:
                apart.append(f"{kind} off by {float((found - right).norm() / right.norm()):.1e}")
        print(f"{name}: {compared({kind: partial(run, kind) for kind in KINDS})}")
        print(f"  against eager fp32: {', '.join(apart)}")


if __name__ == "__main__":
    main()
