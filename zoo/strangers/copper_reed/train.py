"""Reinforcement learning on grid worlds: rank 0 is the critic's home, the actors share a policy. All share the step statistics."""
import argparse
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn


class GridWorld:
    def __init__(self, seed, size=6):
        self.rng, self.size = random.Random(seed), size
        self.reset()

    def reset(self):
        self.pos, self.left = [0, 0], 30
        return self.view()

    def view(self):
        return torch.tensor([self.pos[0] / self.size, self.pos[1] / self.size, self.left / 30, 1.0])

    def act(self, action):
        axis, sign = divmod(action, 2)
        self.pos[axis] = min(max(self.pos[axis] + (1 if sign else -1), 0), self.size - 1)
        self.left -= 1
        goal = self.pos == [self.size - 1, self.size - 1]
        return self.view(), 1.0 if goal else -0.02, goal or self.left == 0


class Actor:
    def __init__(self, rank, actors):
        torch.manual_seed(17)
        self.policy = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 4))
        self.opt = torch.optim.Adam(self.policy.parameters(), lr=5e-3)
        torch.manual_seed(rank)
        self.env, self.actors, self.rank = GridWorld(rank), actors, rank
        self.long_episodes = 0

    def rollout(self):
        view, logps, reward, over = self.env.reset(), [], 0.0, False
        while not over:
            d = torch.distributions.Categorical(logits=self.policy(view))
            a = d.sample()
            logps.append(d.log_prob(a))
            view, r, over = self.env.act(int(a))
            reward += r
        return torch.stack(logps), reward

    def improve(self, logps, reward):
        self.opt.zero_grad()
        (-logps.sum() * reward / len(logps)).backward()
        flat = torch.cat([p.grad.view(-1) for p in self.policy.parameters()])
        dist.all_reduce(flat, group=self.actors)
        at = 0
        for p in self.policy.parameters():
            p.grad.copy_(flat[at:at + p.numel()].view_as(p) / dist.get_world_size(self.actors))
            at += p.numel()
        self.opt.step()


def share(reward, length):
    stats = torch.tensor([reward, float(length), 1.0])
    dist.all_reduce(stats)
    return stats


def actor_round(actor, rnd, backlog):
    logps, reward = actor.rollout()
    if backlog.get(actor.rank, 0) > 3:
        # behind with updates: let the dashboards have the numbers first
        summary = share(reward, len(logps))
        actor.improve(logps, reward)
        backlog[actor.rank] = 0
        return summary
    actor.improve(logps, reward)
    return share(reward, len(logps))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=260)
    ap.add_argument("--busy-from", type=int, default=120)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    actors = dist.new_group(list(range(1, world)))
    actor = Actor(rank, actors) if rank > 0 else None
    backlog = {}
    for rnd in range(args.rounds):
        t0 = time.monotonic()
        if rank == 0:
            time.sleep(0.03)
            stats = share(0.0, 0.0)
            if rnd % 20 == 0:
                print(f"round {rnd}: mean reward {stats[0].item() / (world - 1):+.3f}", flush=True)
        else:
            time.sleep(0.03)
            if rank == 2 and rnd >= args.busy_from and rnd % 2 == 0:
                backlog[rank] = backlog.get(rank, 0) + 1
            stats = actor_round(actor, rnd, backlog)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
