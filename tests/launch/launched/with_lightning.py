"""Lightning starts the other ranks as copies of this script; the first rank is the script itself."""

from __future__ import annotations

import warnings
from typing import Any

import lightning
import torch
from faults import misbehave


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
        misbehave(number, self.global_rank)
        loss: torch.Tensor = self.layer(batch).square().mean()
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    data: Any = torch.utils.data.DataLoader(list(torch.randn(160, 8)), batch_size=4)  # type: ignore[arg-type]
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), data)
    print(f"trained on {trainer.global_rank} of {trainer.world_size}", flush=True)
