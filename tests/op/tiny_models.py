"""Models of Transformers with random weights, small enough for a test, and what to ask of them."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    DogeConfig,
    DynamicCache,
    Gemma2Config,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    NllbMoeConfig,
    PhimoeConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    StaticCache,
)

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 256,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "initializer_range": 0.2,
}
EXPERTS: dict[str, Any] = {"num_local_experts": 2, "num_experts_per_tok": 1}
NEW_TOKENS = 12
WINDOW = 6


def make(kind: str, **changes: int) -> Any:
    torch.manual_seed(0)
    of = AutoModelForSeq2SeqLM if kind == "nllb" else AutoModelForCausalLM
    config = _config(kind)
    config.update(changes)
    return of.from_config(config).eval()


def _config(kind: str) -> PretrainedConfig:
    if kind == "llama":
        return LlamaConfig(**SIZES)
    if kind == "mistral":
        return MistralConfig(**SIZES, sliding_window=WINDOW)
    if kind == "gemma":  # a soft cap, and every other layer within a window
        config = Gemma2Config(**SIZES, head_dim=64, sliding_window=WINDOW, query_pre_attn_scalar=64)
        config.attn_logit_softcapping = 5.0
        return config
    if kind == "gpt-oss":  # sinks, too
        return GptOssConfig(**SIZES | EXPERTS, head_dim=64, sliding_window=WINDOW)
    if kind == "qwen-moe":  # a window in every other layer, which its attention is not told of
        window = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2}
        experts = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 64}
        return Qwen2MoeConfig(**SIZES, **window, **experts, shared_expert_intermediate_size=64)
    if kind == "phimoe":  # the same in every layer
        return PhimoeConfig(**SIZES, **EXPERTS, sliding_window=WINDOW)
    if kind == "doge":  # puts a mask of its own on top
        return DogeConfig(**SIZES)
    if kind == "nllb":  # its decoder's layers do not say that they are causal
        half = {"layers": 2, "attention_heads": 4, "ffn_dim": 128, "sparse_step": 0}
        return NllbMoeConfig(
            vocab_size=SIZES["vocab_size"],
            d_model=SIZES["hidden_size"],
            num_experts=2,
            max_position_embeddings=SIZES["max_position_embeddings"],
            **{f"encoder_{name}": size for name, size in {**half, "layerdrop": 0.0}.items()},
            **{f"decoder_{name}": size for name, size in {**half, "layerdrop": 0.0}.items()},
        )
    return Qwen2Config(**SIZES)


def prompts(device: str, *, padded: bool) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    tokens = torch.randint(2, SIZES["vocab_size"], (3, 10))
    mask = torch.ones_like(tokens)
    if padded:
        for row, n in enumerate((0, 3, 7)):
            tokens[row, :n] = mask[row, :n] = 0
    return {"input_ids": tokens.to(device), "attention_mask": mask.to(device)}


@torch.no_grad()
def generated(model: Any, *, padded: bool, static: bool) -> list[list[int]]:
    """Tokens, greedily."""
    options = {"cache_implementation": "static"} if static else {}
    given = prompts(model.device.type, padded=padded)
    found = model.generate(
        **given, max_new_tokens=NEW_TOKENS, do_sample=False, disable_compile=True, **options
    )
    tokens: list[list[int]] = found.tolist()
    return tokens


@torch.no_grad()
def chunked(model: Any, *, static: bool) -> torch.Tensor:
    """Logits of a prompt that is read in two parts."""
    tokens = prompts(model.device.type, padded=False)["input_ids"]
    cache = (
        StaticCache(config=model.config, max_cache_len=16)
        if static
        else DynamicCache(config=model.config)
    )
    parts = []
    for start, stop in ((0, 6), (6, 10)):
        position = torch.arange(start, stop, device=tokens.device)
        found = model(
            tokens[:, start:stop], past_key_values=cache, cache_position=position, use_cache=True
        )
        parts.append(found.logits)
    return torch.cat(parts, 1)
