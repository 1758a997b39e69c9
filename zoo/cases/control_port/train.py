"""Train with a small control server beside rank 0 that other tools can ask for the progress."""

import argparse
import os
import socket
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class ControlServer:
    """Answers every line with the current step."""

    def __init__(self):
        self.step = 0
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            connection, _ = self.socket.accept()
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection):
        with connection, connection.makefile("rb") as lines:
            for _ in lines:
                connection.sendall(f"{self.step}\n".encode())


def warm_up(seconds):
    model = nn.Linear(64, 64)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        model(torch.randn(64, 64)).sum().backward()
        time.sleep(0.01)


def agree_on_port(folder, rank):
    """Rank 0 picks the port, the others read it."""
    path = Path(folder) / "port"
    if rank == 0:
        server = ControlServer()
        path.with_suffix(".new").write_text(str(server.port))
        path.with_suffix(".new").rename(path)
        return server, server.port
    while not path.exists():
        time.sleep(0.05)
    return None, int(path.read_text())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default=".")
    args = parser.parse_args()

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # rank 0 keeps the store, as without a launcher
    warm_up(1.5)
    server, port = agree_on_port(args.folder, rank)
    print(f"rank {rank} of {world} connects", flush=True)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(40):
        time.sleep(0.05)
        loss = model(torch.randn(16, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if server is not None:
            server.step = step
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
