"""Asynchronous evolution strategy: actors send as many rollouts as they manage, the learner takes them as they come."""
import argparse
import random
import time

import torch
import torch.distributed as dist

DIM = 24
DONE = -1.0


def fitness(theta):
    return -(theta - torch.linspace(-1, 1, DIM)).pow(2).sum()


def actor(rank, seconds):
    rng = random.Random(rank)
    theta = torch.zeros(DIM)
    until = time.monotonic() + seconds
    sent = 0
    while time.monotonic() < until:
        noise = 0.1 * torch.randn(DIM)
        if rng.random() < 0.03:
            time.sleep(1.5)  # an episode that does not end quickly
        time.sleep(0.02 * rank)
        packet = torch.cat([torch.tensor([float(sent)]), fitness(theta + noise).view(1), noise])
        dist.send(packet, dst=0)
        dist.recv(theta, src=0)
        sent += 1
    dist.send(torch.cat([torch.tensor([DONE, 0.0]), torch.zeros(DIM)]), dst=0)
    print(f"actor {rank}: {sent} rollouts, leaving", flush=True)


def learner(world):
    theta = torch.zeros(DIM)
    active = world - 1
    counts = [0] * world
    best = -float("inf")
    packet = torch.empty(DIM + 2)
    while active:
        source = dist.recv(packet)
        if packet[0].item() == DONE:
            active -= 1
            continue
        counts[source] += 1
        score, noise = packet[1].item(), packet[2:]
        if score > best:
            best = score
            theta += noise
        dist.send(theta, dst=source)
    return theta, counts, best


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=6)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        print("learner is waiting for rollouts", flush=True)
        theta, counts, best = learner(world)
        print(f"best {best:.4f} from {counts[1:]} rollouts", flush=True)
        for trial in range(6):
            time.sleep(2)
            print(f"replay {trial}: {fitness(theta).item():.4f}", flush=True)
    else:
        actor(rank, args.seconds * rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
