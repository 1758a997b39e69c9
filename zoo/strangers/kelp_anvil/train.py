"""Policy gradient for a cart controller: one learner, several actors."""
import argparse
import socket
import threading
import time

import torch
import torch.distributed as dist
from torch import nn

OBS, ACTIONS = 6, 3


def flat(net):
    return torch.cat([p.data.reshape(-1) for p in net.parameters()])


def unflat(net, vec):
    at = 0
    for p in net.parameters():
        p.data.copy_(vec[at:at + p.numel()].view_as(p))
        at += p.numel()


def policy():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(OBS, 32), nn.Tanh(), nn.Linear(32, ACTIONS))


def serve_simulator(box, delay):
    """A little local simulator service that needs a while to come up."""
    time.sleep(delay)
    srv = socket.create_server(("127.0.0.1", 0))
    box["port"] = srv.getsockname()[1]
    conn, _ = srv.accept()
    with conn:
        conn.sendall(b"ready")
    srv.close()


def connect(box, tries=60):
    for attempt in range(tries):
        try:
            with socket.create_connection(("127.0.0.1", box["port"]), timeout=2) as s:
                return attempt, s.recv(5)
        except (KeyError, OSError):
            time.sleep(0.25)
    raise RuntimeError("simulator did not come up")


class Actor:
    def __init__(self, rank):
        self.rank, self.net = rank, policy()
        self.gen = torch.Generator().manual_seed(rank)
        box = {}
        threading.Thread(target=serve_simulator, args=(box, 1.5 * rank), daemon=True).start()
        attempt, _ = connect(box)
        print(f"[actor {rank}] simulator connected after {attempt} retries", flush=True)

    def rollout(self, n):
        obs = torch.randn(n, OBS, generator=self.gen)
        with torch.no_grad():
            act = torch.multinomial(self.net(obs).softmax(-1), 1, generator=self.gen)
        reward = (act.squeeze(1) == (obs[:, 0] > 0).long()).float()
        time.sleep(0.3 if self.rank == 3 else 0.1)
        return torch.cat([obs, act.float(), reward[:, None]], dim=1)

    def run(self, rounds):
        weights = flat(self.net)
        for r in range(rounds):
            n = 16 + (7 * self.rank + r) % 20
            data = self.rollout(n)
            dist.send(torch.tensor([n]), dst=0)
            dist.send(data, dst=0, tag=1)
            dist.recv(weights, src=0, tag=2)
            unflat(self.net, weights)


class Learner:
    def __init__(self, actors):
        self.actors, self.net = actors, policy()
        self.opt = torch.optim.Adam(self.net.parameters(), lr=5e-3)

    def collect(self):
        chunks = []
        for peer in self.actors:
            n = torch.zeros(1, dtype=torch.long)
            dist.recv(n, src=peer)
            chunk = torch.empty(int(n), OBS + 2)
            dist.recv(chunk, src=peer, tag=1)
            chunks.append(chunk)
        return torch.cat(chunks)

    def run(self, rounds):
        for r in range(rounds):
            data = self.collect()
            obs, act, rew = data[:, :OBS], data[:, OBS].long(), data[:, OBS + 1]
            logp = self.net(obs).log_softmax(-1).gather(1, act[:, None]).squeeze(1)
            loss = -(logp * (rew - rew.mean())).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            sends = [dist.isend(flat(self.net), dst=peer, tag=2) for peer in self.actors]
            for s in sends:
                s.wait()
            if r % 10 == 0:
                print(f"round {r} reward {rew.mean():.3f} n={len(data)}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=40)
    a = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    worker = Learner(range(1, world)) if rank == 0 else Actor(rank)
    worker.run(a.rounds)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
