import os

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from board import BoardLogger


class Autoencoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(20, 6)
        self.dec = nn.Linear(6, 20)

    def training_step(self, batch, batch_idx):
        (x,) = batch
        loss = nn.functional.mse_loss(self.dec(torch.tanh(self.enc(x))), x)
        self.log("loss", loss)
        if self.trainer.is_global_zero and self.global_step % 10 == 0:
            print(f"step {self.global_step} loss {loss.item():.4f}", flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def main():
    L.seed_everything(9)
    torch.set_num_threads(1)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=3,
        log_every_n_steps=5,
        logger=BoardLogger(),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = TensorDataset(torch.randn(1600, 20))
    trainer.fit(Autoencoder(), DataLoader(data, batch_size=16, shuffle=True))
    if trainer.is_global_zero:
        print("finished", flush=True)


if __name__ == "__main__":
    main()
