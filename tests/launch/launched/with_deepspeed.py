"""DeepSpeed's engine on its CPU accelerator; its launcher tells the rank in the environment and as --local_rank."""

from __future__ import annotations

import argparse
import time

import deepspeed
import torch
from faults import misbehave

SETTINGS = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
    "zero_allow_untested_optimizer": True,
    "zero_optimization": {"stage": 1},
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.parse_args()
    # Its shared memory for collectives would be compiled first, for a minute.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo")
    rank = torch.distributed.get_rank()
    module = torch.nn.Linear(8, 8)
    engine, _, _, _ = deepspeed.initialize(model=module, model_parameters=module.parameters(), config=SETTINGS)
    for step in range(30):
        misbehave(step, rank)
        loss = engine(torch.randn(4, 8)).square().mean()
        engine.backward(loss)
        engine.step()
        time.sleep(0.05)
    print(f"trained on {rank} of {torch.distributed.get_world_size()}", flush=True)
    torch.distributed.destroy_process_group()
