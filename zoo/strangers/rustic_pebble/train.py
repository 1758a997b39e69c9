"""Actor / learner training of a small controller: rank 0 learns, the other ranks play."""
import logging
import time

import torch
import torch.distributed as dist
from torch import nn

LEARNER = 0
CHUNKS = 4
CHUNK_LEN = 16
OBS = 6
ROUNDS = 80

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", datefmt="%H:%M:%S")


class CartPark:
    """Push a cart to the parking spot; ends when the fuel is used up."""

    def __init__(self, seed, fuel):
        self.gen = torch.Generator().manual_seed(seed)
        self.fuel = fuel
        self.state = torch.zeros(OBS)

    def step(self, action):
        self.fuel -= 1
        noise = torch.randn(OBS, generator=self.gen)
        self.state = 0.9 * self.state + 0.1 * action.mean() + 0.2 * noise
        return self.state, -self.state.pow(2).mean()

    @property
    def finished(self):
        return self.fuel <= 0


def policy_net():
    return nn.Sequential(nn.Linear(OBS, 24), nn.Tanh(), nn.Linear(24, 2))


def pull_weights(net):
    flat = nn.utils.parameters_to_vector(net.parameters()).detach()
    dist.broadcast(flat, src=LEARNER)
    nn.utils.vector_to_parameters(flat, net.parameters())


def actor(rank):
    log = logging.getLogger(f"actor{rank}")
    net = policy_net()
    env = CartPark(seed=40 + rank, fuel=1648 if rank == 2 else 20000)
    for rnd in range(ROUNDS):
        pull_weights(net)
        if rnd % 13 == 0:
            log.info("round %d fuel %d", rnd, env.fuel)
        for _ in range(CHUNKS):
            rows = []
            with torch.no_grad():
                for _ in range(CHUNK_LEN):
                    obs, reward = env.step(net(env.state))
                    rows.append(torch.cat([obs, reward.view(1)]))
            time.sleep(0.03)
            chunk = torch.stack(rows)
            dist.send(chunk, dst=LEARNER)
            if env.finished:
                log.info("episode over after %d rounds", rnd)
                break


def learner(world):
    log = logging.getLogger("learner")
    net = policy_net()
    critic = nn.Linear(OBS, 1)
    opt = torch.optim.Adam([*net.parameters(), *critic.parameters()], lr=1e-3)
    for rnd in range(ROUNDS):
        pull_weights(net)
        inbox = []
        for _ in range(CHUNKS):
            for src in range(1, world):
                buf = torch.empty(CHUNK_LEN, OBS + 1)
                dist.recv(buf, src=src)
                inbox.append(buf)
        data = torch.cat(inbox)
        obs, reward = data[:, :OBS], data[:, OBS:]
        loss = (critic(obs) - reward).pow(2).mean() + 1e-3 * net(obs).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rnd % 10 == 0:
            log.info("update %d loss %.4f frames %d", rnd, loss.item(), len(data))


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    if dist.get_rank() == LEARNER:
        learner(dist.get_world_size())
    else:
        actor(dist.get_rank())
    dist.barrier()
    dist.destroy_process_group()
