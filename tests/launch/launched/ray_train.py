"""Ray Train: its workers run the function in a thread of their own, and Train makes the process group."""

from __future__ import annotations

import tempfile

import ray
from plain import train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

if __name__ == "__main__":
    ray.init(address="local", num_cpus=3, include_dashboard=False)
    trainer = TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        torch_config=TorchConfig(backend="gloo"),
        run_config=RunConfig(storage_path=tempfile.gettempdir()),
    )
    trainer.fit()
