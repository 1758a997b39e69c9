"""CLIP-like contrastive training on toy pairs."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from data import make_loader
from gather import gather_features


class TwoTower(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, dim))
        self.words = nn.EmbeddingBag(40, dim)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, images, captions):
        return F.normalize(self.image(images), dim=-1), F.normalize(self.words(captions), dim=-1), self.scale.exp()


def contrastive(img, txt, scale):
    all_img, all_txt = gather_features(img), gather_features(txt)
    logits = scale * all_img @ all_txt.t()
    target = torch.arange(len(logits))
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(2)
    model = DDP(TwoTower())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loader = make_loader(8)
    for step, (images, captions) in enumerate(loader):
        img, txt, scale = model(images, captions)
        loss = contrastive(img, txt, scale)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 2 == 0:
            print(f"step {step} loss {loss.item():.4f} scale {scale.item():.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
