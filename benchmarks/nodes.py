"""What a look at a job on many nodes costs: simulated launchers over a real rendezvous store.

    python benchmarks/nodes.py [--nodes 64 512] [--ranks 8]

Every simulated node runs the exchange that `rankscope run` runs, with made-up evidence of its ranks: as many recorded
calls and collectives as travel, stacks, output. All nodes share this machine, so the times are those of the store and
of the speaking node under its worst neighbours. Prints bytes and seconds for each number of nodes and writes them to
benchmarks/results/: what one node sends must not grow with the number of nodes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib import metadata
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from rankscope.diagnosis.diagnose import diagnose
from rankscope.evidence.encode import to_json
from rankscope.evidence.model import (
    Call,
    Collective,
    Evidence,
    Frame,
    HostEvidence,
    ProcessSample,
    Progress,
    RankEvidence,
    Source,
    StackSample,
    Thread,
)
from rankscope.launch.nodes.exchange import Exchange, open_exchange
from rankscope.launch.nodes.parcel import NEWEST, pack
from rankscope.launch.nodes.words import Beat, encode

RESULTS = Path(__file__).resolve().parent / "results"
WORKERS = 4
TRAIN = Frame("main", "/home/user/train.py", 61, True)
LIBRARY = tuple(Frame(f"inner_{n}", f"/usr/lib/python3/torch/part_{n}.py", n, False) for n in range(12))


@dataclass(frozen=True, slots=True)
class Cost:
    nodes: int
    ranks: int
    beat_bytes: int
    parcel_bytes: int
    plain_bytes: int
    meet_s: float
    look_s: float
    diagnose_s: float

    @property
    def look_bytes(self) -> int:
        """Through the store, for one look at everything."""
        return self.nodes * self.parcel_bytes


def made_up(node: int, ranks: int, world: int) -> Evidence:
    """A node whose ranks wait in an all-reduce that the last rank of the job has not joined."""
    now = time.time()
    return Evidence(
        schema=1,
        collected_at=now,
        started_at=now - 600,
        trigger="still",
        world_size=world,
        ranks=tuple(_rank(node * ranks + local, local, node, world, now) for local in range(ranks)),
        hosts=(HostEvidence(f"node-{node}", memory_total_bytes=1 << 40, memory_available_bytes=1 << 39),),
        sources=(Source("/home/user/train.py", 1, "\n".join(f"step_{n}(model)" for n in range(200))),),
        stall_after_s=30.0,
    )


def _rank(rank: int, local: int, node: int, world: int, now: float) -> RankEvidence:
    late = rank == world - 1
    made = NEWEST - late
    calls = tuple(
        Call(
            n + 5000, "all_reduce", "0", n + 5001, 1, 0, now - 600 + n, None if n == NEWEST - 1 else now - 599.9 + n,
            False, n, -1, 25_000_000 + n % 7, "float32", (TRAIN,),
        )
        for n in range(made)
    )  # fmt: skip
    collectives = tuple(
        Collective(
            n, "0", n + 5001, 0, "all_reduce", "gloo", False, "scheduled", n < NEWEST - 1, now - 600 + n,
            ((25_000_000 + n % 7,),), ((25_000_000 + n % 7,),), ("Float",), ("Float",),
        )
        for n in range(made)
    )  # fmt: skip
    frames = (*LIBRARY, TRAIN) if not late else (Frame("push_metrics", "/home/user/train.py", 88, True), TRAIN)
    thread = Thread(rank + 1, "MainThread", True, frames)
    samples = tuple(ProcessSample(now - 1 + at, "S", 100.0, 1, 1, 1 << 30) for at in (0.0, 0.5))
    return RankEvidence(
        rank=rank,
        local_rank=local,
        host=f"node-{node}",
        pid=4000 + local,
        started_at=now - 600,
        progress=Progress("step", now - 600, 600, 600, now - 3, world, 5000 + made, calls, ()),
        stacks=tuple(StackSample(now - 1 + at, (thread,), "py-spy") for at in (0.0, 0.5)),
        processes=samples,
        collectives=collectives,
        last_enqueued={"0": 5000 + made},
        last_completed={"0": 5000 + NEWEST - 1},
        output_tail=tuple(f"step {n} loss {1 / (n + 1):.4f}" for n in range(40)),
        still_for_s=3.0,
    )


def _open(store: Any, node: int, nodes: int, ranks: int) -> Exchange:
    seen = made_up(node, ranks, nodes * ranks)
    opened = open_exchange(
        store,
        node=node,
        nodes=nodes,
        host=f"node-{node}",
        ranks=tuple(range(node * ranks, (node + 1) * ranks)),
        attempt_key="mark",
        collect=lambda _trigger: seen,
        on_ruling=lambda *_: None,
        note=print,
        holds_store=node == 0,
    )
    assert opened is not None
    return opened


def follow(port: int, own: Sequence[int], nodes: int, ranks: int, over: Event) -> None:
    """A process with some of the nodes that do not speak."""
    from torch._C._distributed_c10d import TCPStore

    store = TCPStore("127.0.0.1", port, None, False, timedelta(seconds=60), wait_for_workers=False)
    opened = [_open(store, node, nodes, ranks) for node in own]
    over.wait()
    os._exit(0 if opened else 1)


def measure(nodes: int, ranks: int) -> Cost:
    from torch._C._distributed_c10d import TCPStore

    store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=60), wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    over = context.Event()
    begun = time.perf_counter()
    speaker = _open(store, 0, nodes, ranks)
    shares = [range(1 + worker, nodes, WORKERS) for worker in range(WORKERS)]
    workers = [
        context.Process(target=follow, args=(store.port, share, nodes, ranks, over), daemon=True) for share in shares
    ]
    for worker in workers:
        worker.start()
    try:
        while len(speaker.hellos) < nodes:
            time.sleep(0.05)
        met = time.perf_counter() - begun
        time.sleep(3.0)  # several beats of everyone
        begun = time.perf_counter()
        seen = speaker.gather("still")
        looked = time.perf_counter() - begun
        assert seen is not None
        answered = sum(node.state == "answered" for node in seen.nodes)
        if answered < nodes:
            print(f"only {answered} of {nodes} nodes answered in time")
        begun = time.perf_counter()
        verdict = diagnose(seen)
        diagnosed = time.perf_counter() - begun
        print(f"{nodes} nodes: {verdict.outcome}, {verdict.headline[:100]}")
    finally:
        over.set()
        for worker in workers:
            worker.join(20)
        speaker.close("ended")
    own = made_up(1, ranks, nodes * ranks)
    return Cost(
        nodes=nodes,
        ranks=ranks,
        beat_bytes=len(encode(Beat(1000, time.time(), True, 3))),
        parcel_bytes=len(pack(own)),
        plain_bytes=len(to_json(own)),
        meet_s=met,
        look_s=looked,
        diagnose_s=diagnosed,
    )


def table(costs: Sequence[Cost]) -> str:
    lines = [
        "| nodes × ranks | a node's beat | a node's evidence | sent for one look | look, all evidence in | diagnosis |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for cost in costs:
        lines.append(
            f"| {cost.nodes} × {cost.ranks} | {cost.beat_bytes} bytes every 0.5 s | {cost.parcel_bytes / 1e3:.0f} kB "
            f"({cost.plain_bytes / 1e6:.1f} MB unpacked) | {cost.look_bytes / 1e6:.1f} MB | {cost.look_s:.1f} s "
            f"| {cost.diagnose_s:.1f} s |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--no-result", action="store_true", help="print only, write no file")
    chosen = parser.parse_args()
    costs = [measure(nodes, chosen.ranks) for nodes in chosen.nodes]
    about = (
        f"{time.strftime('%Y-%m-%d')}, torch {metadata.version('torch')}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores shared by all simulated nodes"
    )
    text = f"# A look at many nodes\n\n{about}. `python benchmarks/nodes.py`\n\n{table(costs)}\n"
    print(text)
    if not chosen.no_result:
        (RESULTS / f"{time.strftime('%Y-%m-%d')}-nodes.md").write_text(text)


if __name__ == "__main__":
    main()
