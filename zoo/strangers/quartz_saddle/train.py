"""Population-based training of small game agents, with pairs that share gradients."""
import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

MATCHES = 200
WINS = (  # league table of the scripted opponents, per member and round
    (101, 96, 99, 104),
    (110, 104, 98, 108),
    (113, 121, 117, 112),
    (119, 126, 124, 131),
    (128, 139, 139, 133),
    (140, 142, 138, 137),
    (143, 145, 141, 150),
)


def league(rank, round_no):
    """Plays the league and returns the share of matches won."""
    time.sleep(0.3)
    return WINS[round_no % len(WINS)][rank] / MATCHES


class Member:
    def __init__(self, mesh):
        self.group = dist.group.WORLD
        self.pair = mesh["mate"].get_group()
        self.rank = dist.get_rank()
        torch.manual_seed(self.rank // 2)
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
        self.lr = 1e-2 * (1 + self.rank // 2)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=self.lr)
        self.gen = torch.Generator().manual_seed(self.rank)

    def learn(self):
        x = torch.randn(32, 8, generator=self.gen)
        loss = nn.functional.cross_entropy(self.net(x), x[:, :4].argmax(1))
        self.opt.zero_grad()
        loss.backward()
        for p in self.net.parameters():
            dist.all_reduce(p.grad, group=self.pair)
            p.grad /= 2
        self.opt.step()
        return loss.item()

    def scoreboard(self, mine):
        rows = [torch.zeros(1) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, torch.tensor([mine]), group=self.group)
        board = [r.item() for r in rows]
        board[self.rank] = mine
        return board

    def copy_from(self, winner):
        vec = nn.utils.parameters_to_vector(self.net.parameters()).detach()
        dist.broadcast(vec, src=winner, group=self.group)
        nn.utils.vector_to_parameters(vec, self.net.parameters())

    def exploit(self, round_no):
        mine = league(self.rank, round_no)
        board = self.scoreboard(mine)
        winner = max(range(len(board)), key=board.__getitem__)
        print(f"[{self.rank}] round {round_no} winner {winner} with {board[winner]:.3f}", flush=True)
        self.copy_from(winner)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=100)
    ap.add_argument("--every", type=int, default=10)
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("island", "mate"))
    member = Member(mesh)
    for step in range(args.steps):
        loss = member.learn()
        time.sleep(0.1)
        if step % args.every == args.every - 1:
            member.exploit(step // args.every)
            if member.rank == 0:
                print(f"step {step} loss {loss:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
