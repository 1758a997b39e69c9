"""The job whose steps are measured: a small network under DistributedDataParallel with gloo, two ranks.

Its steps must take the same time from one to the next for a cost of half a per cent to show, hence:

- The layers are narrow and the batch is long. Most of a step is arithmetic on little data; the gradients go over in one
  piece at its end. With wide layers a step mostly waits, for memory and for its peer.
- Each rank has a share of the cores for itself, decided before torch is imported, so that all its threads stay there.
- The thread in which gloo watches its sockets gives way to the others. It spins as long as data has come that nobody
  has asked for yet, and on a core it shares with the thread that is about to ask, that lasts until the kernel's next
  tick: an all-reduce of 4 KB takes 0.2 ms or 4 ms, at random.

Where data happen to lie makes a process faster or slower for as long as it lives, by more than the scope does. A job
under the scope allocates a little more than one without; at fixed addresses its data would lie elsewhere at every start
in the same way, and a difference from that could not be told from a cost. Hence memory is filled at random before the
network is made.
"""

from __future__ import annotations

import os
import textwrap

BATCH = 1024
BATCHES = 64
WIDTH = 128
LAYERS = 7
"""About 10 ms on one core."""
TURN = 8
"""Steps that a job makes before it is the other's turn: as many turns fill a round of the batches."""

STEP = """
optimizer.zero_grad()
model(inputs).square().mean().backward()
optimizer.step()
"""

_BEGIN = """
import json, os, random, sys, time

cores = sorted(os.sched_getaffinity(0))
ranks, rank = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
os.sched_setaffinity(0, cores[rank % len(cores) :: ranks])

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

out, layers = sys.argv[1], int(sys.argv[2])
device = torch.device("cpu")
if {cuda} and torch.cuda.is_available():
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
dist.init_process_group("gloo")
for thread in os.listdir("/proc/self/task"):
    with open(f"/proc/self/task/{{thread}}/comm") as file:
        if file.read().startswith("gloo_tcp"):
            os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))
{before}
fill = [torch.empty(random.randrange(1, 1 << 16)) for _ in range(random.randrange(64))]
torch.manual_seed(0)
network = [layer for _ in range(layers) for layer in (torch.nn.Linear({width}, {width}), torch.nn.ReLU())]
model = DistributedDataParallel(torch.nn.Sequential(*network, torch.nn.Linear({width}, 1)).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
loader = torch.utils.data.DataLoader(torch.randn({batches}, {batch}, {width}), batch_size=None)
steps = []
for inputs in loader:  # the first steps, with all that is special about them
    inputs = inputs.to(device)
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
"""

_END = """
if rank == 0:
    with open(out, "w") as file:
        json.dump(steps, file)
dist.destroy_process_group()
time.sleep(0.5)  # a gloo thread that lets go of the last collective after Python has gone would abort the process
"""

# Which rank is to go on, and when, stands in a pipe of its own: a byte that the same rank of the other job has written.
_TURNS = """
mine, other, turns = *sys.argv[3:5], int(sys.argv[5])
mine, other = (os.open(f"{{name}}.{{rank}}", os.O_RDWR) for name in (mine, other))
if rank == 0:
    open(f"{{out}}.ready", "w").close()
for number in range(turns):
    os.read(mine, 1)
    if number % (len(loader) // {turn}) == 0:
        batches = iter(loader)
    made = []
    for _ in range({turn}):
        begin, used = time.perf_counter(), time.thread_time()
        inputs = next(batches)
{step}
        now, end = time.thread_time(), time.perf_counter()
        made.append((end - begin, now - used))
    steps.append(made)
    os.write(other, b"!")
"""


def text(loop: str, *, before: str = "", cuda: bool = False) -> str:
    """The script around a loop that fills `steps`, with what it needs before the network is made. Its first arguments:
    the file for the steps, and how many layers."""
    begin = _BEGIN.format(before=before.strip("\n"), cuda=cuda, batch=BATCH, batches=BATCHES, width=WIDTH)
    return begin + loop + _END


def in_turns(step: str = STEP, *, before: str = "", cuda: bool = False) -> str:
    """The script that makes steps when it is its turn. More arguments: its pipes, those of the other job, less the
    number of the rank, and how many turns it has. Beside the file for the steps a file `.ready` says that it waits."""
    loop = _TURNS.format(turn=TURN, step=textwrap.indent(step.strip("\n"), " " * 8))
    return text(loop, before=before, cuda=cuda)


def environment() -> dict[str, str]:
    """One thread for arithmetic, and one heap, in huge pages where the kernel has them: the physical pages of a 4 KB
    mapping, and with them which data fight for the same cache lines, are another at every start."""
    tunables = ("hugetlb=1", f"mmap_threshold={1 << 30}", f"trim_threshold={1 << 30}", "arena_max=1")
    known = os.environ | {
        "OMP_NUM_THREADS": "1",
        "GLIBC_TUNABLES": ":".join(f"glibc.malloc.{each}" for each in tunables),
    }
    known.pop("PYTHONDONTWRITEBYTECODE", None)  # Users have compiled modules of both launchers.
    return known
