"""Actor-critic on logged episodes; both networks are averaged over the ranks after every turn."""

import argparse
import os
import random
import time

import torch
import torch.distributed as dist
from torch import nn

PHASES = ("critic", "actor")


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=320, help="gradient averages in the whole run")
    parser.add_argument("--window", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1095)
    parser.add_argument("--lr", type=float, default=1e-3)
    return parser.parse_args()


def setup():
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return dist.get_rank(), dist.get_world_size(), device


class EpisodeLog:
    """An endless log of transitions, cut into windows of equal length."""

    def __init__(self, rank, window, seed, device):
        self.window, self.device = window, device
        self.rng = random.Random(1000 * seed + rank)
        self.noise = torch.Generator(device=device).manual_seed(rank)
        self.remaining = self.episode_length()

    def episode_length(self):
        return 2 + int(self.rng.expovariate(0.4))

    def next_window(self):
        ends = []
        for position in range(self.window):
            self.remaining -= 1
            if self.remaining == 0:
                ends.append(position)
                self.remaining = self.episode_length()
        states = torch.randn(self.window, 20, device=self.device, generator=self.noise)
        return states, ends


class Averager:
    def __init__(self, world):
        self.world, self.rounds = world, 0

    def average(self, net):
        flat = torch.cat([p.grad.flatten() for p in net.parameters()])
        dist.all_reduce(flat)
        flat /= self.world
        offset = 0
        for p in net.parameters():
            p.grad.copy_(flat[offset : offset + p.numel()].view_as(p))
            offset += p.numel()
        self.rounds += 1


class Agent:
    def __init__(self, args, averager, device):
        torch.manual_seed(4)
        self.averager = averager
        self.actor, self.critic = (
            nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 4)).to(device) for _ in PHASES
        )
        self.actor_optimizer = torch.optim.SGD(self.actor.parameters(), lr=args.lr)
        self.critic_optimizer = torch.optim.SGD(self.critic.parameters(), lr=args.lr)

    def update_critic(self, states, ends):
        self.critic_optimizer.zero_grad()
        values = self.critic(states).mean(1)
        loss = (values[ends] - states[ends, 0]).pow(2).mean()
        loss.backward()
        self.averager.average(self.critic)
        self.critic_optimizer.step()
        return loss

    def update_actor(self, states):
        self.actor_optimizer.zero_grad()
        scores = torch.log_softmax(self.actor(states), dim=1)
        advantage = self.critic(states).detach()
        loss = -(scores * advantage).mean()
        loss.backward()
        self.averager.average(self.actor)
        self.actor_optimizer.step()
        return loss


def main():
    args = parse_args()
    rank, world, device = setup()
    averager = Averager(world)
    agent = Agent(args, averager, device)
    log = EpisodeLog(rank, args.window, args.seed, device)
    dist.barrier()
    turn = 0
    while averager.rounds < args.rounds:
        phase = PHASES[turn % 2]
        states, ends = log.next_window()
        if turn % 10 == 0:
            print(f"rank {rank} turn {turn:03d} {phase}", flush=True)
        turn += 1
        if phase == "critic" and not ends:
            continue
        loss = agent.update_critic(states, ends) if phase == "critic" else agent.update_actor(states)
        if turn % 20 == 0:
            print(f"rank {rank} {phase} loss {loss.item():.4f}", flush=True)
        time.sleep(0.03)
    norm = sum(p.detach().pow(2).sum() for p in agent.actor.parameters()).sqrt()
    print(f"rank {rank} finished after {averager.rounds} rounds, actor norm {norm.item():.5f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
