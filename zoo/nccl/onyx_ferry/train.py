"""Trains a small model and tells the tracker of the node about it."""

import json
import os
import socket
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 600
# The node's tracker: takes one JSON line a message and answers each with its number.
TRACKER = """
import json, os, socketserver, threading, time
PLAN = {"worker0": 500, "worker1": 20, "worker2": 500}
parent = os.getppid()
class Messages(socketserver.StreamRequestHandler):
    def handle(self):
        for number, line in enumerate(self.rfile):
            while number >= PLAN[json.loads(line)["name"]]:
                time.sleep(1)
            self.wfile.write(b"%d\\n" % number)
server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Messages)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
while os.getppid() == parent:
    time.sleep(0.5)
"""


def connect():
    # Several ranks share one device here: NCCL then has to take them for different hosts.
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    return dist.get_rank(), torch.device("cuda", 0)


class Tracker:
    def __init__(self, rank, device):
        port = torch.zeros(1, dtype=torch.int64, device=device)
        if rank == 0:
            self.service = subprocess.Popen(
                [sys.executable, "-I", "-c", TRACKER],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
            )
            port.fill_(int(self.service.stdout.readline()))
        dist.broadcast(port, src=0)
        self.name = f"worker{rank}"
        self.stream = socket.create_connection(("127.0.0.1", port.item())).makefile("rwb")

    def report(self, step, loss):
        message = {"name": self.name, "step": step, "loss": loss, "time": time.time()}
        self.stream.write(json.dumps(message).encode() + b"\n")
        self.stream.flush()
        return int(self.stream.readline())


def read_batch(device):
    time.sleep(0.028)
    inputs = torch.randn(32, 64, device=device)
    return inputs, inputs[:, :8].argmax(dim=1)


def main():
    rank, device = connect()
    torch.manual_seed(2)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 96), nn.SiLU(), nn.Linear(96, 8)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    tracker = Tracker(rank, device)
    torch.manual_seed(30 + rank)
    for step in range(STEPS):
        inputs, labels = read_batch(device)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            value = loss.item()
            print(f"rank {rank} reports step {step} loss {value:.4f}", flush=True)
            tracker.report(step, value)
    torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
