"""Trains a tiny Qwen3 under AutoTP TP2 x DP2 and ZeRO-3, and after each step syncs it into one TP4 rollout copy.

    torchrun --nproc-per-node 4 python/examples/sync_rollout.py

Nothing is downloaded: the model is made here. Runs on the CPU over gloo, or on GPUs that DeepSpeed finds.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
from deepspeed.runtime.rollout import RolloutRequest, SamplingConfig
from transformers import Qwen3Config, Qwen3ForCausalLM

from reshard.rollout import Placement, RolloutOptions, TensorParallelRollout

# On the CPU DeepSpeed would compile a shared-memory collective at its first start; gloo does without.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

CONFIG = Qwen3Config(
    hidden_size=64, intermediate_size=144, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4,
    head_dim=8, vocab_size=257, attention_bias=True, max_position_embeddings=64, dtype="float32",
)  # fmt: skip
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 2,
    "zero_optimization": {"stage": 3},
    "zero_allow_untested_optimizer": True,
    "tensor_parallel": {"autotp_size": 2},
}


def train_step(engine: Any, tokens: torch.Tensor) -> float:
    loss = engine(input_ids=tokens, labels=tokens).loss
    engine.backward(loss)
    engine.step()
    return float(loss.detach())


def main() -> None:
    deepspeed.init_distributed(verbose=False)
    rank, world = dist.get_rank(), dist.get_world_size()
    device = (
        torch.device("cuda", torch.cuda.current_device())
        if torch.cuda.is_available()
        else torch.device("cpu")
    )
    torch.manual_seed(0)  # tensor-parallel ranks must begin alike: a sync would name what differs
    model = Qwen3ForCausalLM(CONFIG)
    engine, *_ = deepspeed.initialize(
        model=model, config=DEEPSPEED, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2)
    )

    rollout = TensorParallelRollout(
        engine, CONFIG, Placement(tp=world), RolloutOptions(device=device, padding=0)
    )
    prompts = torch.randint(1, 257, (2, 8), device=device)
    request = RolloutRequest(prompts, torch.ones_like(prompts))
    for step in range(3):
        loss = train_step(engine, prompts)
        rollout.sync_weights(step)
        batch = rollout.generate(request, SamplingConfig(max_new_tokens=8, temperature=0.0))
        report = rollout.weights.report
        if rank == 0:
            print(f"step {step}: loss {loss:.4f}, {batch.input_ids[0, 8:].tolist()}, {report}")

    check(engine, rollout, request)
    rollout.shutdown()
    dist.destroy_process_group()


def check(engine: Any, rollout: TensorParallelRollout, request: RolloutRequest) -> None:
    """The copy answers as the whole model does that DeepSpeed's own gather gives."""
    full = [engine._consolidated_16bit_state_dict()]
    batch = rollout.generate(request, SamplingConfig(max_new_tokens=8, temperature=0.0))
    if dist.get_rank() == 0:
        whole = Qwen3ForCausalLM(CONFIG).eval()
        whole.load_state_dict({name: tensor.cpu() for name, tensor in full[0].items()})
        expected = whole.generate(
            request.prompt_ids.cpu(), max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        assert torch.equal(batch.input_ids.cpu(), expected), (batch.input_ids, expected)
        print("the copy answers as the whole model does")


if __name__ == "__main__":
    main()
