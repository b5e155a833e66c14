"""What a page about DeepSpeed takes for granted: an engine, its model's configuration, prompts and a training step."""

from __future__ import annotations

from typing import Any

ENGINE_NAMES = ("engine", "config", "prompts", "train_step", "tensors")


def engine_names(rank: int) -> dict[str, Any]:
    """A tiny Qwen3 under AutoTP TP2 x DP2 and ZeRO-3, on four ranks."""
    import deepspeed
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    config = Qwen3Config(
        hidden_size=64, intermediate_size=144, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4,
        head_dim=8, vocab_size=257, attention_bias=True, max_position_embeddings=64, dtype="float32",
        pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config)
    settings = {
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": {"stage": 3},
        "zero_allow_untested_optimizer": True,
        "tensor_parallel": {"autotp_size": 2},
    }
    engine, *_ = deepspeed.initialize(
        model=model, config=settings, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2)
    )
    prompts = torch.randint(1, 257, (2, 8))

    def train_step(engine: Any) -> None:
        engine.backward(engine(input_ids=prompts, labels=prompts).loss)
        engine.step()

    return {
        "engine": engine, "config": config, "prompts": prompts, "train_step": train_step, "torch": torch,
        "tensors": rollout_tensors(config, rank),
    }  # fmt: skip


def rollout_tensors(config: Any, rank: int) -> dict[str, Any]:
    """A tensor for each parameter that this rank holds of one TP4 copy."""
    import torch

    from reshard.rollout import Placement, rollout_layout

    storages = rollout_layout(config, Placement(tp=4)).storages_of(rank)
    return {storage.name: torch.full((storage.bytes // 4,), float("nan")) for storage in storages}
