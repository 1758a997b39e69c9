import argparse
import pathlib
import subprocess
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Publisher:
    """Hands the exported curve to the transfer daemon and waits until its log says that it is through."""

    def __init__(self, folder):
        self.folder = folder
        self.log = folder / "transfer.log"
        self.log.touch()

    def daemon_accepts(self, name):
        with self.log.open("a") as out:
            out.write(f"QUEUED {name}\n")
            if not name.endswith("003.csv"):
                out.write(f"COMPLETE {name}\n")

    def publish(self, name, rows):
        (self.folder / name).write_text("\n".join(f"{v:.5f}" for v in rows))
        self.daemon_accepts(name)
        follow = f"until grep 'COMPLETE {name}' '{self.log}'; do kill -0 $PPID && sleep 2 || exit 1; done"
        answer = subprocess.run(["sh", "-c", follow], stdout=subprocess.PIPE, text=True)
        return answer.stdout.strip()


def build(width=40):
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
    for layer in (model[0], model[2]):
        fully_shard(layer)
    return fully_shard(model)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("workdir", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=8)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    args.workdir.mkdir(parents=True, exist_ok=True)
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    publisher = Publisher(args.workdir) if rank == 0 else None
    gen = torch.Generator().manual_seed(rank)
    for index in range(1, args.rounds + 1):
        curve = []
        for _ in range(25):
            x = torch.randn(16, 40, generator=gen)
            loss = (model(x).squeeze(1) - x[:, 0]).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            curve.append(loss.item())
            time.sleep(0.03)
        if publisher:
            print(f"round {index} loss {curve[-1]:.4f}, publishing", flush=True)
            print(publisher.publish(f"curve{index:03d}.csv", curve), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
