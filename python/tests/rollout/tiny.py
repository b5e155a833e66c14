"""A tiny Qwen3 or Llama, and where tensor parallelism cuts it: worked by hand, not asked of the code under test.

hidden 16, 4 query and 2 key-value heads of 6, inner 18, vocabulary 33
  tp 2: a kv head each: q 12|12, k v 6|6; inner 9|9; vocabulary 17|16
  tp 3: kv heads 1|1|0: q 12|12|0, k v 6|6|0; inner 6|6|6; vocabulary 11|11|11
  tp 4: kv heads 1|1|0|0: q 12|12|0|0, k v 6|6|0|0; inner 5|5|4|4; vocabulary 9|8|8|8
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

QUERY = {1: [24], 2: [12, 12], 3: [12, 12, 0], 4: [12, 12, 0, 0]}
KEY = {1: [12], 2: [6, 6], 3: [6, 6, 0], 4: [6, 6, 0, 0]}
INNER = {1: [18], 2: [9, 9], 3: [6, 6, 6], 4: [5, 5, 4, 4]}
VOCABULARY = {1: [33], 2: [17, 16], 3: [11, 11, 11], 4: [9, 8, 8, 8]}

_RULES: dict[str, tuple[int, dict[int, list[int]]]] = {
    "q_proj.weight": (0, QUERY), "q_proj.bias": (0, QUERY), "o_proj.weight": (1, QUERY),
    "k_proj.weight": (0, KEY), "k_proj.bias": (0, KEY), "v_proj.weight": (0, KEY), "v_proj.bias": (0, KEY),
    "gate_proj.weight": (0, INNER), "up_proj.weight": (0, INNER), "down_proj.weight": (1, INNER),
    "gate_proj.bias": (0, INNER), "up_proj.bias": (0, INNER),
    "lm_head.weight": (0, VOCABULARY),
}  # fmt: skip


def config(
    kind: str = "qwen3", *, bias: bool = True, tied: bool = False, layers: int = 2, **changes: Any
) -> Any:
    arguments: dict[str, Any] = {
        "hidden_size": 16, "intermediate_size": 18, "num_hidden_layers": layers, "head_dim": 6,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 33, "max_position_embeddings": 64,
        "attention_bias": bias, "tie_word_embeddings": tied, "dtype": "float32",
    }  # fmt: skip
    arguments.update(changes)
    return Qwen3Config(**arguments) if kind == "qwen3" else LlamaConfig(mlp_bias=bias, **arguments)


def model(of: Any, seed: int = 0) -> Any:
    """A whole model with lively values in every parameter: biases and norms too."""
    torch.manual_seed(seed)
    whole = (Qwen3ForCausalLM if of.model_type == "qwen3" else LlamaForCausalLM)(of).eval()
    with torch.no_grad():
        for name, parameter in whole.named_parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape) + ("norm" in name))
    return whole


def cut_of(name: str, tp: int, tied: bool = False) -> tuple[int, list[int]] | None:
    """The axis and widths of a parameter over `tp` ranks, None if it is whole."""
    if tied and name == "model.embed_tokens.weight":
        return 0, VOCABULARY[tp]
    rule = next((rule for end, rule in _RULES.items() if name.endswith(end)), None)
    return (rule[0], rule[1][tp]) if rule else None


def shard_of(name: str, whole: torch.Tensor, tp: int, index: int, tied: bool = False) -> torch.Tensor:
    """The slice of a parameter that tensor-parallel rank `index` holds."""
    cut = cut_of(name, tp, tied)
    if cut is None:
        return whole.detach()
    axis, widths = cut
    return whole.detach().narrow(axis, sum(widths[:index]), widths[index])


def tokens(rows: int = 3, length: int = 7, seed: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Left-padded prompts of lengths `length`, `length` - 1, ..."""
    ids = torch.randint(1, 33, (rows, length), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    for row in range(rows):
        ids[row, :row], mask[row, :row] = 0, 0
    return ids, mask
