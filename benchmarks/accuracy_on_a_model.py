"""What an accuracy of attention changes in a model: perplexity, logits, gradients, layer by layer.

A byte-level transformer learns Python's standard library for a while.  Then it runs in half
precision with the attention of FlashAttention 2, `fast` and `exact`, each against the same model in
fp32:

    PYTHONPATH=. python benchmarks/accuracy_on_a_model.py --d-head 128 --seconds 10
"""

from __future__ import annotations

import argparse
import math
import sysconfig
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from fa_tune.op import attention

LENGTH, LAYERS, WIDTH = 1024, 8, 512
HELD_OUT = 64  # sequences
WITH_GRADIENTS = 16  # of them
AT_ONCE = 16
LOSS_SCALE = 4096.0  # fp16 has no smaller gradients
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # [batch, seq_len, heads, d_head]


def flash2(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """FlashAttention 2 as torch has it."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def by_products(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """In the type of its inputs."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return (scores.masked_fill(hidden, -math.inf).softmax(-1) @ v).transpose(1, 2)


WAYS: dict[str, Attend] = {
    "FlashAttention 2": flash2,
    "fast": partial(attention, causal=True, accuracy="fast"),
    "exact": partial(attention, causal=True, accuracy="exact"),
}


class Block(nn.Module):
    """Attention and a perceptron, each behind a norm."""

    def __init__(self, d_head: int) -> None:
        super().__init__()
        self.d_head = d_head
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )
        self.seen: tuple[Tensor, ...] = ()  # of the last call

    def forward(self, x: Tensor, attend: Attend) -> Tensor:
        qkv = self.qkv(self.norms[0](x)).unflatten(-1, (3, -1, self.d_head))
        self.seen = tuple(t.detach() for t in qkv.unbind(2))
        x = x + self.out(attend(*qkv.unbind(2)).flatten(2))
        found: Tensor = x + self.mlp(self.norms[1](x))
        return found


class Model(nn.Module):
    """A decoder of bytes."""

    def __init__(self, d_head: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(d_head) for _ in range(LAYERS))
        self.last = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False))

    def forward(self, tokens: Tensor, attend: Attend) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.bytes(tokens) + self.places(places)
        for block in self.blocks:
            x = block(x, attend)
        logits: Tensor = self.last(x)
        return logits


def text() -> Tensor:
    """The sources of the standard library, of which the last files are held out."""
    library = Path(sysconfig.get_paths()["stdlib"])
    own = (p for p in sorted(library.rglob("*.py")) if "site-packages" not in p.parts)
    return torch.frombuffer(bytearray(b"".join(p.read_bytes() for p in own)), dtype=torch.uint8)


def batches(data: Tensor, size: int) -> Iterator[Tensor]:
    """Random pieces, one byte longer than what the model sees."""
    draw = torch.Generator().manual_seed(0)
    while True:
        at = torch.randint(len(data) - LENGTH - 1, (size,), generator=draw)
        rows = torch.stack([data[i : i + LENGTH + 1] for i in at.tolist()])
        yield rows.cuda(non_blocking=True).long()


def losses(logits: Tensor, tokens: Tensor) -> Tensor:
    """Of each sequence, in nats a byte."""
    flat = F.cross_entropy(logits.float().transpose(1, 2), tokens[:, 1:], reduction="none")
    return flat.mean(1)


def trained(d_head: int, data: Tensor, seconds: float) -> tuple[Model, int]:
    """A model after so many seconds, and its steps."""
    torch.manual_seed(0)
    model = Model(d_head).cuda()
    steps, began = 0, time.monotonic()
    rate = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), fused=True)
    for tokens in batches(data, 32):
        spent = (time.monotonic() - began) / seconds
        if spent >= 1:
            break
        for group in rate.param_groups:
            group["lr"] = 6e-4 * min(1.0, (steps + 1) / 50) * max(0.05, 1 - spent)
        with torch.autocast("cuda", torch.bfloat16):
            loss = losses(model(tokens[:, :-1], flash2), tokens).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rate.step()
        rate.zero_grad(set_to_none=True)
        steps += 1
    return model, steps


def half_of(model: Model, dtype: torch.dtype) -> Model:
    """The same with weights of another type."""
    same = Model(model.blocks[0].d_head).cuda()
    same.load_state_dict(model.state_dict())
    return same.to(dtype)


def run(model: Model, held_out: Tensor, attend: Attend) -> tuple[Tensor, Tensor, Tensor]:
    """Losses of all sequences, and of some the logits and the gradient, fp32."""
    model.zero_grad(set_to_none=True)
    parts = [losses(model(t[:, :-1], attend), t).detach() for t in held_out.split(AT_ONCE)]
    some = held_out[:WITH_GRADIENTS]
    logits = model(some[:, :-1], attend)
    (losses(logits, some).mean() * LOSS_SCALE).backward()
    grads = [p.grad.float().flatten() for p in model.parameters() if p.grad is not None]
    return torch.cat(parts), logits.detach().float(), torch.cat(grads) / LOSS_SCALE


def rms(x: Tensor) -> float:
    """The root mean square."""
    return float(x.double().square().mean().sqrt())


def of_layers(model: Model) -> list[str]:
    """Errors of each layer's attention on what it saw last, over FlashAttention 2's."""
    lines = []
    for number, block in enumerate(model.blocks):
        q, k, v = (t[:4].requires_grad_() for t in block.seen)  # as in the model
        found = {name: way(q, k, v).detach() for name, way in WAYS.items()}
        wide = [t.detach().double() for t in (q, k, v)]
        exact = by_products(*wide)
        scores = wide[0].transpose(1, 2) @ wide[1].permute(0, 2, 3, 1) / math.sqrt(q.shape[-1])
        sigma = scores.std(-1).mean((0, 2))  # of each head
        errors = {name: (out.double() - exact).square() for name, out in found.items()}
        base = errors.pop("FlashAttention 2")
        told = []
        for name, one in errors.items():
            heads = (one.mean((0, 1, 3)) / base.mean((0, 1, 3))).sqrt()
            told.append(f"{name} {float((one.mean() / base.mean()).sqrt()):.3f}")
            told.append(f"(worst head {float(heads.max()):.3f})")
        spread = f"sigma {float(sigma.min()):.1f} to {float(sigma.max()):.1f} nats"
        lines.append(f"  layer {number}: {spread}; {' '.join(told)}")
    return lines


def compare(model: Model, held_out: Tensor, reference: tuple[Tensor, ...], dtype: Any) -> None:
    """Print what each way changes."""
    loss, logits, grads = reference
    half = half_of(model, dtype)
    base: tuple[float, float] | None = None
    for name, way in WAYS.items():
        own_loss, own_logits, own_grads = run(half, held_out, way)
        off = own_loss - loss
        mean, error = float(off.mean()), float(off.std()) / math.sqrt(len(off))
        errors = rms(own_logits - logits), rms(own_grads - grads)
        base = base or errors
        over = [a / b for a, b in zip(errors, base, strict=True)]
        print(
            f"{str(dtype)[6:]} {name:16}: perplexity {math.exp(float(own_loss.mean())):.6f}, loss "
            f"{mean:+.2e} ± {error:.0e}; logits off by {errors[0]:.3e} ({over[0]:.3f} of "
            f"FlashAttention 2's), gradient by {errors[1] / rms(grads):.3e} ({over[1]:.3f})",
            flush=True,
        )
    print("\n".join(of_layers(half)), flush=True)


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--d-head", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=10.0, help="of training")
    given = parser.parse_args()
    data = text()
    cut = len(data) - HELD_OUT * (LENGTH + 1)
    held_out = data[cut:].view(HELD_OUT, LENGTH + 1).cuda().long()
    model, steps = trained(given.d_head, data[:cut], given.seconds)
    print(f"d_head {given.d_head}: {steps} steps of 32 times {LENGTH} bytes")
    reference = run(model, held_out, by_products)
    print(f"fp32: perplexity {math.exp(float(reference[0].mean())):.6f} a byte", flush=True)
    for dtype in (torch.bfloat16, torch.float16):
        compare(model, held_out, reference, dtype)


if __name__ == "__main__":
    main()
