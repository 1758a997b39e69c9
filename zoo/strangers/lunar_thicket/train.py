import os
import warnings

import lightning as L
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

from sampling import DrawSamples

warnings.filterwarnings("ignore")


class Denoiser(L.LightningModule):
    """Predicts the noise in 2-D points; small enough for a CPU."""

    def __init__(self, steps=50):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 2))
        self.register_buffer("alpha", torch.linspace(0.999, 0.02, steps))
        self.steps = steps

    def forward(self, x, t):
        return self.net(torch.cat([x, t.unsqueeze(-1) / self.steps], dim=-1))

    def training_step(self, batch, batch_idx):
        x = batch[0]
        t = torch.randint(0, self.steps, (len(x),))
        a = self.alpha[t].unsqueeze(-1)
        noise = torch.randn_like(x)
        loss = (self(a.sqrt() * x + (1 - a).sqrt() * noise, t.float()) - noise).pow(2).mean()
        self.log("loss", loss)
        return loss

    def on_train_epoch_end(self):
        loss = self.trainer.callback_metrics["loss"]
        if self.trainer.is_global_zero:
            print(f"epoch {self.current_epoch} loss {loss:.4f}", flush=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def points(n=1920):
    angle = torch.rand(n, generator=torch.Generator().manual_seed(0)) * 6.2832
    return TensorDataset(torch.stack([angle.cos(), angle.sin()], dim=1))


def main():
    torch.set_num_threads(1)
    L.seed_everything(8, verbose=False)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=3,
        logger=False,
        callbacks=[DrawSamples(every_epochs=2, seconds=17)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Denoiser(), DataLoader(points(), batch_size=16, shuffle=True))
    if trainer.is_global_zero:
        print("done", flush=True)


if __name__ == "__main__":
    main()
