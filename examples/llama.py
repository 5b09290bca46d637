"""A Llama of random weights with torch's attention and with ours: a forward pass, generation with a
dynamic and a static cache, one training step.

    python examples/llama.py

Prints, for each, the milliseconds with either and how far the results are apart.  Needs a GPU, and
`pip install transformers`; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from fa_tune.op import register_transformers

REPEATS = 3


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


def timed(call: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, float]:
    """A call's result, and the milliseconds of the fastest of some."""
    call()
    best = float("inf")
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        found = call()
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - start) * 1e3)
    return found, best


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--new-tokens", type=int, default=32)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("error: this needs a CUDA GPU", file=sys.stderr)
        sys.exit(3)
    warnings.filterwarnings("ignore")
    register_transformers()
    model = model_of(args.layers, args.seq_len + args.new_tokens)
    tokens = torch.randint(1, 8192, (1, args.seq_len), device="cuda")

    @torch.no_grad()
    def forward() -> torch.Tensor:
        logits: torch.Tensor = model(tokens, use_cache=False).logits
        return logits

    @torch.no_grad()
    def generate(cache: str) -> torch.Tensor:
        found: torch.Tensor = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=args.new_tokens,
            do_sample=False,
            cache_implementation=cache,
            disable_compile=True,
        )
        return found[:, args.seq_len :]

    def train() -> torch.Tensor:
        model.zero_grad()
        model(tokens, labels=tokens, use_cache=False).loss.backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    work: dict[str, Callable[[], torch.Tensor]] = {
        "forward": forward,
        "generate, dynamic cache": lambda: generate("dynamic"),
        "generate, static cache": lambda: generate("static"),
        "training step": train,
    }
    for name, call in work.items():
        results, times = [], []
        for attention in ("sdpa", "fa_tune"):
            model.set_attn_implementation(attention)
            found, milliseconds = timed(call)
            results.append(found.float())
            times.append(milliseconds)
        one, other = results
        if name.startswith("generate"):
            apart = f"{int((one == other).sum())} of {one.numel()} tokens equal"
        else:
            apart = f"relative difference {float((one - other).norm() / one.norm()):.1e}"
        print(f"{name}: sdpa {times[0]:.1f} ms, fa_tune {times[1]:.1f} ms; {apart}")


if __name__ == "__main__":
    main()
