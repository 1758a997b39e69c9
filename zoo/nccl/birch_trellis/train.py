"""Patch autoencoder for hyperspectral tiles. Tiles are handed out on demand, models are averaged once per round."""
import os; os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])  # several ranks share one device
import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn


class TileStore:
    """Deterministic synthetic tiles: id -> (bands,) tensor."""

    def __init__(self, bands=48):
        self.bands = bands

    def fetch(self, tile_id, batch=16):
        g = torch.Generator().manual_seed(10_000 + tile_id)
        base = torch.rand(1, self.bands, generator=g)
        return base + 0.05 * torch.randn(batch, self.bands, generator=g)


class AutoEncoder(nn.Module):
    def __init__(self, bands, latent=8):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(bands, 24), nn.GELU(), nn.Linear(24, latent))
        self.dec = nn.Sequential(nn.Linear(latent, 24), nn.GELU(), nn.Linear(24, bands))

    def forward(self, x):
        return self.dec(self.enc(x))


def tickets(store, key, total):
    """Yields tile numbers until the common counter runs past the end."""
    while True:
        n = store.add(key, 1) - 1
        if n >= total:
            return
        yield n


def average_model(model, world):
    flat = torch.cat([p.data.reshape(-1) for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= world
    offset = 0
    for p in model.parameters():
        p.data.copy_(flat[offset:offset + p.numel()].view_as(p))
        offset += p.numel()


@torch.no_grad()
def full_scene_error(model, tiles, device, count, pause):
    model.eval()
    err = 0.0
    for i in range(count):
        x = tiles.fetch(90_000 + i).to(device)
        err += (model(x) - x).abs().mean().item()
        time.sleep(pause)           # the scene reader is rate limited
    model.train()
    return err / count


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=4)
    ap.add_argument("--tiles-per-round", type=int, default=90)
    ap.add_argument("--scene-tiles", type=int, default=90)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()

    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(0)
    device = torch.device("cuda:0")
    torch.manual_seed(5)

    store = dist.PrefixStore("tiles", dist.distributed_c10d._get_default_store())
    tiles = TileStore()
    model = AutoEncoder(tiles.bands).to(device)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    if rank == 0:
        print("autoencoder ready, first round", flush=True)

    read_time = [0.02, 0.09, 0.02, 0.02][rank]
    best = float("inf")
    for rnd in range(args.rounds):
        mine, loss = 0, torch.zeros((), device=device)
        for tile in tickets(store, f"round{rnd}", args.tiles_per_round):
            time.sleep(read_time)
            x = tiles.fetch(tile).to(device)
            loss = nn.functional.mse_loss(model(x), x)
            if loss.item() > 3.0:
                continue
            opt.zero_grad()
            loss.backward()
            opt.step()
            mine += 1
        average_model(model, world)

        score = torch.zeros(1, device=device)
        if rnd % 2 == 1 and rank == 0:
            score.fill_(full_scene_error(model, tiles, device, args.scene_tiles, pause=0.1))
        if rnd % 2 == 1:
            dist.broadcast(score, src=0)
            best = min(best, score.item())
        counts = [torch.zeros(1, dtype=torch.long, device=device) for _ in range(world)]
        dist.all_gather(counts, torch.tensor([mine], device=device))
        if rank == 0:
            share = [int(c) for c in counts]
            print(f"round {rnd}: tiles per rank {share} last loss {loss.item():.4f} best {best:.4f}", flush=True)

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
