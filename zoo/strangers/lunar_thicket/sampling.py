import time

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_only


class DrawSamples(L.Callback):
    """Draws as many samples as fit into a time budget and prints how far they lie from the circle."""

    def __init__(self, every_epochs, seconds):
        self.every, self.seconds = every_epochs, seconds

    @rank_zero_only
    @torch.no_grad()
    def on_train_epoch_end(self, trainer, module):
        if (trainer.current_epoch + 1) % self.every:
            return
        print(f"drawing samples after epoch {trainer.current_epoch}", flush=True)
        end, radii = time.monotonic() + self.seconds, []
        while time.monotonic() < end:
            x = torch.randn(512, 2)
            for t in reversed(range(module.steps)):
                a = module.alpha[t]
                eps = module(x, torch.full((len(x),), float(t)))
                x0 = (x - (1 - a).sqrt() * eps) / a.sqrt()
                nxt = module.alpha[t - 1] if t else torch.tensor(1.0)
                x = nxt.sqrt() * x0.clamp(-2, 2) + (1 - nxt).sqrt() * eps
            radii.append(x.norm(dim=1))
        r = torch.cat(radii)
        print(f"{len(r)} samples, radius {r.mean():.3f} +- {r.std():.3f}", flush=True)
