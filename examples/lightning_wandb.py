"""A small language model with Lightning and Weights & Biases. Nothing here knows of Rankscope.

    rankscope run --nproc-per-node 2 examples/lightning_wandb.py --fast_dev_run 5 --num_workers 0
    torchrun --nproc_per_node=2 examples/lightning_wandb.py --fast_dev_run 5 --num_workers 0
    python -m torch.distributed.launch --nproc_per_node=2 examples/lightning_wandb.py --fast_dev_run 1

W&B runs offline unless WANDB_MODE says otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.strategies import DDPStrategy
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

TEXT = "the ranks of a job agree call by call until the first place where they do not "
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {"type": "Whitespace"},
    "model": {
        "type": "WordLevel",
        "vocab": {word: number for number, word in enumerate(["[UNK]", *sorted(set(TEXT.split()))])},
        "unk_token": "[UNK]",
    },
}


class LanguageModel(nn.Module):
    def __init__(self, vocabulary: int, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.memory(self.embedding(tokens))
        logits: Tensor = self.head(hidden)
        return logits


class LLMModule(LightningModule):
    def __init__(self, model: nn.Module, learning_rate: float = 1e-3) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["model"])
        self.model = model
        self.learning_rate = learning_rate

    def training_step(self, batch: list[Tensor], _index: int) -> Tensor:
        (tokens,) = batch
        logits = self.model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate)


class DataModule(LightningDataModule):
    def __init__(self, tokenizer: Tokenizer, batch_size: int, num_workers: int) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.num_workers = num_workers

    def train_dataloader(self) -> DataLoader[Any]:
        tokens = torch.tensor(self.tokenizer.encode(TEXT * 400).ids)
        samples = tokens[: len(tokens) // 16 * 16].view(-1, 16)
        return DataLoader(TensorDataset(samples), self.batch_size, shuffle=True, num_workers=self.num_workers)


class MemoryLoggingCallback(Callback):
    """Notes the most memory that the process has had, now and then."""

    def __init__(self, every: int = 50) -> None:
        self.every = every
        self.peaks: list[int] = []

    def on_train_batch_end(self, trainer: Trainer, *_rest: Any) -> None:
        if trainer.global_step % self.every == 0:
            self.peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small language model with Lightning and W&B.")
    parser.add_argument("--batch_size", type=int, default=32, help="samples per rank and step")
    parser.add_argument("--max_steps", type=int, default=10000, help="optimizer steps")
    parser.add_argument("--fast_dev_run", type=int, default=0, help="stop after that many batches (0: train)")
    parser.add_argument("--num_workers", type=int, default=0, help="data-loading processes per rank")
    parser.add_argument("--root", type=Path, default=Path("logs"), help="folder for logs and W&B's files")
    # torch.distributed.launch gives it to every rank unless it is told --use-env; LOCAL_RANK says the same.
    parser.add_argument("--local-rank", "--local_rank", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    arguments.root.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("WANDB_MODE", "offline")
    os.environ.setdefault("WANDB_SILENT", "true")

    tokenizer = Tokenizer.from_str(json.dumps(TOKENIZER))
    torch.manual_seed(0)
    model = LanguageModel(tokenizer.get_vocab_size())
    module = LLMModule(model)
    data = DataModule(tokenizer, arguments.batch_size, arguments.num_workers)
    strategy = DDPStrategy(process_group_backend="nccl" if torch.cuda.is_available() else "gloo")
    # On every rank, as most scripts have it: Lightning itself logs on rank 0 only.
    logger = WandbLogger(project="lightning-wandb", save_dir=arguments.root)
    callback = MemoryLoggingCallback()
    trainer = Trainer(
        accelerator="auto",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        strategy=strategy,
        max_steps=arguments.max_steps,
        fast_dev_run=arguments.fast_dev_run or False,
        logger=logger,
        callbacks=[callback],
        default_root_dir=arguments.root,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=10,
    )
    trainer.fit(module, datamodule=data)
    if torch.distributed.is_initialized():
        # Otherwise its threads end with the interpreter, and now and then a rank aborts at its very end.
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
