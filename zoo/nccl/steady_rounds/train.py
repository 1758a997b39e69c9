"""Train with captured steps, and keep a snapshot on a slow disk."""

import argparse
import io
import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn

ROWS, WIDTH = 128, 256


def connect():
    # Several ranks share one device here: NCCL then has to take them for different hosts.
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return dist.get_rank(), dist.get_world_size(), device


class Captured:
    """A function that was recorded once and is replayed from then on."""

    def __init__(self, function):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                function()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.result = function()

    def __call__(self):
        self.graph.replay()
        return self.result


def copy_slowly(data, path, seconds):
    """The disk is shared by the whole group: no more than a part each half second."""
    parts = max(1, int(seconds * 2))
    size = -(-len(data) // parts)
    with open(path, "wb") as file:
        for start in range(0, len(data), size):
            file.write(data[start : start + size])
            file.flush()
            time.sleep(0.5)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--replays", type=int, default=25)
    parser.add_argument("--copy-seconds", type=float, default=12.0)
    args = parser.parse_args()
    rank, world, device = connect()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 1)).to(device)
    parameters = list(model.parameters())
    inputs = torch.zeros(ROWS, WIDTH, device=device)
    targets = torch.zeros(ROWS, 1, device=device)

    def train():
        loss = nn.functional.mse_loss(model(inputs), targets)
        gradients = torch.autograd.grad(loss, parameters)
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat)
        with torch.no_grad():
            start = 0
            for parameter in parameters:
                part = flat[start : start + parameter.numel()]
                parameter.sub_(part.view_as(parameter), alpha=0.05 / world)
                start += parameter.numel()
        return loss.detach()

    def check():
        with torch.no_grad():
            error = (model(inputs) - targets).abs().mean().reshape(1)
        errors = torch.zeros(world, device=device)
        dist.all_gather_into_tensor(errors, error)
        return errors

    train_graph, check_graph = Captured(train), Captured(check)
    generator = torch.Generator(device=device).manual_seed(rank)
    for number in range(args.rounds):
        for _ in range(args.replays):
            inputs.normal_(generator=generator)
            targets.copy_(inputs.mean(dim=1, keepdim=True))
            train_graph()
        errors = check_graph().tolist()
        time.sleep(0.1)
        if rank == 0 and number % 5 == 0:
            print(f"round {number} errors {errors}", flush=True)
        if rank == 0 and number == 15:
            buffer = io.BytesIO()
            torch.save(model.state_dict(), buffer)
            print("copying the snapshot", flush=True)
            with tempfile.TemporaryDirectory() as folder:
                copy_slowly(buffer.getvalue(), os.path.join(folder, "model.pt"), args.copy_seconds)
            print("the snapshot is there", flush=True)
    torch.cuda.synchronize()
    # A communicator cannot go while a graph still refers to it.
    train_graph.graph.reset()
    check_graph.graph.reset()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
