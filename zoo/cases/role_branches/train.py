"""A learner and its actors: one rank trains, the others collect episodes and send them over."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn

STEPS, WIDTH = 12, 6


def play(policy, generator):
    states = torch.randn(STEPS, WIDTH, generator=generator)
    with torch.no_grad():
        rewards = policy(states).squeeze(-1) + states.mean(dim=1)
    return torch.cat([states, rewards.unsqueeze(-1)], dim=1)


def learn(policy, optimizer, episodes):
    batch = torch.cat(episodes)
    loss = nn.functional.mse_loss(policy(batch[:, :WIDTH]).squeeze(-1), batch[:, WIDTH])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def run_learner(policy, rounds, actors):
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.05)
    for round_ in range(rounds):
        weights = nn.utils.parameters_to_vector(policy.parameters()).detach()
        dist.broadcast(weights, src=0)
        episodes = []
        for actor in actors:
            for _ in range(actor):
                episode = torch.empty(STEPS, WIDTH + 1)
                dist.recv(episode, src=actor)
                episodes.append(episode)
        loss = learn(policy, optimizer, episodes)
        if round_ == rounds // 2:
            print(f"round {round_} loss {loss:.4f}, saving", flush=True)
            time.sleep(6)  # the archive is slow at this hour
            dist.barrier()
    return loss


def run_actor(policy, rounds, rank):
    generator = torch.Generator().manual_seed(rank)
    weights = nn.utils.parameters_to_vector(policy.parameters()).detach()
    for round_ in range(rounds):
        dist.broadcast(weights, src=0)
        nn.utils.vector_to_parameters(weights, policy.parameters())
        for _ in range(rank):
            time.sleep(0.02)
            dist.send(play(policy, generator), dst=0)
        if round_ != rounds // 2:
            continue
        dist.barrier()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 1))
    if rank == 0:
        print(f"final loss {run_learner(policy, args.rounds, range(1, world)):.4f}", flush=True)
    else:
        run_actor(policy, args.rounds, rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
