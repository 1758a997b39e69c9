"""Actor-learner on a balancing task; a collector thread plays, the main thread learns."""
import contextlib
import queue
import threading
import time
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn


@dataclass
class Settings:
    envs: int = 16
    horizon: int = 24
    updates: int = 210
    take: int = 32
    capacity: int = 64
    lr: float = 0.01
    pause: float = 0.035
    sites: tuple = ("valley", "ridge", "harbour")


@dataclass
class Episode:
    states: list = field(default_factory=list)
    rewards: list = field(default_factory=list)

    def __len__(self):
        return len(self.rewards)


def wind_trace(site, n):
    """Side wind per tick as the mast at the site recorded it."""
    ticks = np.arange(n)
    wind = 0.02 * np.sin(ticks / 40.0)
    if site == "ridge":
        front = (ticks >= 3120) & (ticks < 3600)
        wind[front] += 1.4
    return wind


class EpisodeStore:
    """Finished episodes between the collector and the learner."""

    def __init__(self, capacity):
        self._guard = threading.Lock()
        self._ready = queue.Queue(maxsize=capacity)
        self.frames = 0
        self.waits = {}

    @contextlib.contextmanager
    def clock(self, name):
        begin = time.perf_counter()
        yield
        self.waits[name] = time.perf_counter() - begin

    def add(self, episode):
        with self._guard:
            self.frames += len(episode)
            self._ready.put(episode)

    def take(self, limit):
        out = []
        with self._guard, self.clock("take"):
            while len(out) < limit and not self._ready.empty():
                out.append(self._ready.get_nowait())
        return out


class Collector(threading.Thread):
    def __init__(self, cfg, site, store, seed):
        super().__init__(name="collector", daemon=True)
        self.cfg, self.store = cfg, store
        self.policies = queue.Queue()
        self.wind = wind_trace(site, (cfg.updates + 4) * cfg.horizon)
        self.rng = np.random.default_rng(seed)
        self.angle = self.rng.normal(0, 0.05, cfg.envs)
        self.live = [Episode() for _ in range(cfg.envs)]
        self.tick = 0

    def run(self):
        while True:
            gain = self.policies.get()
            for _ in range(self.cfg.horizon):
                self.play(gain)

    def play(self, gain):
        push = np.clip(gain, -0.5, 0.5) * self.angle
        self.angle = self.angle - 0.1 * push + self.wind[self.tick] + self.rng.normal(0, 0.06, len(self.angle))
        self.tick += 1
        for i, episode in enumerate(self.live):
            episode.states.append(float(self.angle[i]))
            episode.rewards.append(1.0)
            if abs(self.angle[i]) > 0.6:
                self.store.add(episode)
                self.live[i] = Episode()
                self.angle[i] = self.rng.normal(0, 0.05)


def learn(model, opt, episodes):
    states = [s for e in episodes for s in e.states[-8:]] or [0.0]
    x = torch.tensor(states).unsqueeze(1)
    loss = (model(x) - 0.3 * x).square().mean()
    opt.zero_grad(set_to_none=False)
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    opt.step()
    return float(loss.detach())


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, cfg = dist.get_rank(), Settings()
    store = EpisodeStore(cfg.capacity)
    collector = Collector(cfg, cfg.sites[rank % len(cfg.sites)], store, seed=20 + rank)
    collector.start()
    model = nn.Linear(1, 1)
    opt = torch.optim.SGD(model.parameters(), lr=cfg.lr)
    for step in range(cfg.updates):
        if rank == 0:
            print(f"step {step} frames {store.frames}", flush=True)
        collector.policies.put(float(model.weight.detach()))
        time.sleep(cfg.pause)
        loss = learn(model, opt, store.take(cfg.take))
    print(f"rank {rank} finished, loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
