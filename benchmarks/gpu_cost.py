"""What the scope costs a job on a GPU, all of it on: the same job under `torchrun` and under `rankscope run`, in turns.

    python benchmarks/gpu_cost.py [--starts 6] [--turns 20] [--only gpt2|all_reduce] [--null] [--with=OPTION]

Two jobs on one GPU take turns, as in step_time.py: gpt2-124m in DistributedDataParallel with NCCL (one rank), and two
ranks that make about a thousand small all_reduce calls a second, with NCCL over sockets, every rank a host of its own.
Needs a GPU and transformers; prints the ratios and writes them to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import step_time

_CONNECT = """
import json, os, sys, time
os.environ["NCCL_HOSTID"] = "host" + os.environ["RANK"]
import torch
import torch.distributed as dist
torch.cuda.set_device(0)
dist.init_process_group("nccl")
rank = dist.get_rank()
"""
_GPT2 = """
from torch.nn.parallel import DistributedDataParallel
from transformers import GPT2Config, GPT2LMHeadModel
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True
model = DistributedDataParallel(GPT2LMHeadModel(GPT2Config(use_cache=False)).cuda())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
tokens = torch.randint(0, 50257, (8, 1024), device="cuda")

def step():
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    torch.cuda.synchronize()
"""
_ALL_REDUCE = """
one, two = torch.randn(3072, 3072, device="cuda"), torch.randn(3072, 3072, device="cuda")
flag = torch.ones(8, device="cuda")

def step():
    for _ in range(50):
        torch.mm(one, two)
        dist.all_reduce(flag)
        flag.div_(2)
        torch.cuda.synchronize()
"""
_TURNS = """
out, mine, other, turns = sys.argv[1], *sys.argv[3:5], int(sys.argv[5])
for _ in range(30):
    step()
mine, other = (os.open(f"{name}.{rank}", os.O_RDWR) for name in (mine, other))
if rank == 0:
    open(f"{out}.ready", "w").close()
steps = []
for _ in range(turns):
    os.read(mine, 1)
    made = []
    for _ in range(8):
        begin, used = time.perf_counter(), time.thread_time()
        step()
        now, end = time.thread_time(), time.perf_counter()
        made.append((end - begin, now - used))
    steps.append(made)
    os.write(other, b"!")
if rank == 0:
    with open(out, "w") as file:
        json.dump(steps, file)
dist.destroy_process_group()
"""


@dataclass(frozen=True, slots=True)
class Job:
    text: str
    ranks: int
    goal: float
    words: str


JOBS = {
    "gpt2": Job(_GPT2, 1, 1.003, "gpt2-124m in DDP, bf16, 8 x 1,024 tokens, one rank"),
    "all_reduce": Job(
        _ALL_REDUCE, 2, 1.01, "two ranks; a step is 50 products of matrices, each with a small all_reduce"
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--starts", type=int, default=6, help="times that both jobs are started (default: 6)")
    parser.add_argument("--turns", type=int, default=20, help="turns of each job after a start (default: 20)")
    parser.add_argument("--only", choices=tuple(JOBS), help="one of the two jobs")
    parser.add_argument("--null", action="store_true", help="compare torchrun with torchrun: the noise of the measure")
    parser.add_argument("--with", dest="more", action="append", default=[], help="one more option for rankscope run")
    chosen = parser.parse_args(arguments)
    step_time.MORE_OPTIONS = chosen.more
    import torch

    if not torch.cuda.is_available():
        print("gpu_cost.py: needs a GPU", file=sys.stderr)
        return 2
    told = [*step_time.facts(), f"- GPU: {torch.cuda.get_device_name()}, CUDA {torch.version.cuda}", ""]
    for name in [chosen.only] if chosen.only else JOBS:
        job = JOBS[name]
        step_time.RANKS = job.ranks
        print(f"{name}: {job.words}")
        found = step_time.compare(chosen.starts, chosen.turns, 0, _CONNECT + job.text + _TURNS, null=chosen.null)
        settled = step_time.told(found, job.goal, null=chosen.null)
        told += [f"## {name}: {job.words}", "", *step_time.lines_of(found, settled), ""]
    step_time.RESULTS.mkdir(exist_ok=True)
    path = step_time.RESULTS / f"{time.strftime('%Y-%m-%d')}-gpu-cost{'-null' if chosen.null else ''}.md"
    path.write_text("\n".join(["# Step time of `rankscope run` over `torchrun` on a GPU", "", *told]))
    print(f"written: {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
