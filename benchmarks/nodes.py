"""What a look at a job on many nodes costs: simulated launchers over a real rendezvous store.

    python benchmarks/nodes.py [--nodes 8 64 512] [--ranks 8]

Every simulated node runs the exchange that `rankscope run` runs, with made-up evidence of its ranks: as many recorded
calls and collectives as travel, stacks, output. All nodes share this machine, so the times are those of the store and
of the speaking node under its worst neighbours. What a node does alone, packing its own evidence, is done beforehand
and measured apart: in a real job every node does it on a machine of its own.

Prints bytes and seconds for each number of nodes and writes them to benchmarks/results/: what one node sends must not
grow with the number of nodes. Ends with an error, and writes nothing, when a node does not join or does not answer.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import random
import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib import metadata
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace
from torch._C._distributed_c10d import TCPStore

from rankscope import __version__
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
from rankscope.launch.nodes import looks as looking
from rankscope.launch.nodes.channel import Channel
from rankscope.launch.nodes.exchange import PERIOD_S, Exchange
from rankscope.launch.nodes.opening import open_exchange
from rankscope.launch.nodes.parcel import NEWEST, Packed, pack, travelling, unpack
from rankscope.launch.nodes.parts import Library
from rankscope.launch.nodes.words import Beat, encode
from rankscope.report.conclude import conclude

# torch's store looks up the names of those who connect and answers nobody meanwhile. Hundreds of nodes on one machine
# are hundreds of lookups at once; a name server that loses some must not be what is measured.
os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"
RESULTS = Path(__file__).resolve().parent / "results"
T = TypeVar("T")
WORKERS = max(2, os.cpu_count() or 2)
TRAIN = Frame("main", "/home/user/train.py", 61, True)
LIBRARY = tuple(Frame(f"inner_{n}", f"/usr/lib/python3/torch/part_{n}.py", n, False) for n in range(12))


JOIN_LIMIT_S = 60.0
"""Without any further node, after which those that have not joined are given up."""
BEATS_S = 5.0


@dataclass(frozen=True, slots=True)
class Cost:
    nodes: int
    ranks: int
    beat_bytes: int
    parcel_bytes: int
    pack_s: float
    """For a node, by itself, with as much evidence as it can have."""
    unpack_s: float
    """For the speaking node, for each other node."""
    beats_share: float
    """Of one core, in the speaking node with the store, while nothing happens."""
    look_s: float
    look_cpu_s: float
    look_bytes: int
    """That came through the store for one look at everything, parts included."""
    second_s: float
    second_bytes: int
    """The same job a moment later: nothing has moved but the times of the samples."""
    diagnose_s: float
    diagnose_cpu_s: float
    before_bytes: int
    """Memory of the speaking process before the look: torch, mostly."""
    gathered_bytes: int
    """Its peak when all evidence was there."""
    memory_bytes: int
    """Its peak with the diagnosis and the second look, during which the first evidence is kept."""

    @property
    def alone_s(self) -> float:
        """A look where each node has a machine of its own: the call is heard with the next beat, evidence is packed by
        all at once, and the speaking node does its part. Computed, not seen: collecting and the network come on top."""
        return PERIOD_S + self.pack_s + self.look_cpu_s


def made_up(node: int, ranks: int, world: int, newest: int = NEWEST) -> Evidence:
    """A node whose ranks wait in an all-reduce that the last rank of the job has not joined."""
    now = time.time()
    return Evidence(
        schema=1,
        collected_at=now,
        started_at=now - 600,
        trigger="still",
        world_size=world,
        ranks=tuple(_rank(node * ranks + local, local, node, world, now, newest) for local in range(ranks)),
        hosts=(HostEvidence(f"node-{node}", memory_total_bytes=1 << 40, memory_available_bytes=1 << 39),),
        sources=(Source("/home/user/train.py", 1, "\n".join(f"step_{n}(model)" for n in range(200))),),
        stall_after_s=30.0,
    )


def _rank(rank: int, local: int, node: int, world: int, now: float, newest: int) -> RankEvidence:
    late = rank == world - 1
    moment = random.Random(rank).random  # no two ranks enter and leave at the same time
    first = NEWEST - newest
    made = NEWEST - late
    calls = tuple(
        Call(
            n + 5000, "all_reduce", "0", n + 5001, rank + 1, 0, now - 600 + n + moment() / 20,
            None if n == NEWEST - 1 else now - 599.9 + n + moment() / 20, False, n, -1, 25_000_000 + n % 7, "float32",
            (TRAIN,),
        )
        for n in range(first, made)
    )  # fmt: skip
    collectives = tuple(
        Collective(
            n, "0", n + 5001, 0, "all_reduce", "gloo", False, "scheduled", n < NEWEST - 1,
            now - 600 + n + moment() / 20,
            ((25_000_000 + n % 7,),), ((25_000_000 + n % 7,),), ("Float",), ("Float",),
        )
        for n in range(first, made)
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


def a_moment_later(seen: Evidence) -> Evidence:
    """The ranks stand where they stood; they were looked at again."""

    def later(rank: RankEvidence) -> RankEvidence:
        stacks = tuple(replace(stack, at=stack.at + 5) for stack in rank.stacks)
        samples = tuple(replace(sample, at=sample.at + 5, cpu_s=sample.cpu_s + 0.01) for sample in rank.processes)
        return replace(rank, stacks=stacks, processes=samples, still_for_s=8.0)

    return replace(seen, collected_at=seen.collected_at + 5, ranks=tuple(map(later, seen.ranks)))


class Counted:
    """Counts what the speaker's channel brings."""

    def __init__(self, channel: Channel) -> None:
        self.bytes = 0
        read = channel.read

        def counting(keys: Sequence[str]) -> list[bytes | None]:
            found = read(keys)
            self.bytes += sum(len(value) for value in found if value is not None)
            return found

        vars(channel)["read"] = counting


def _open(store: Any, node: int, nodes: int, ranks: int, seen: Evidence) -> Exchange:
    opened = open_exchange(
        store,
        node=node,
        nodes=nodes,
        host=f"node-{node}",
        ranks=tuple(range(node * ranks, (node + 1) * ranks)),
        attempt_key="mark",
        collect=lambda _trigger: seen,
        hand_over=lambda _ruled: None,
        note=print,
        holds_store=node == 0,
    )
    assert opened is not None
    return opened


def follow(ports: SimpleQueue[int], own: Sequence[int], nodes: int, ranks: int, over: Event) -> None:
    """A process with some of the nodes that do not speak."""
    looks: dict[int, list[Packed]] = {}
    for node in own:
        first = made_up(node, ranks, nodes * ranks, travelling(nodes))
        looks[node] = [pack(first), pack(a_moment_later(first))]
    # All nodes of this process share its interpreter: the work of each on its own machine is not done here again.
    vars(looking)["pack"] = lambda seen, *_: looks[seen.ranks[0].rank // ranks].pop(0)
    store = TCPStore("127.0.0.1", ports.get(), None, False, timedelta(seconds=120), wait_for_workers=False)
    opened = [_open(store, node, nodes, ranks, made_up(node, ranks, nodes * ranks, 1)) for node in own]
    over.wait()
    os._exit(0 if opened else 1)


def measure(nodes: int, ranks: int) -> Cost:
    # Forked before there is any thread: four more imports of torch would be most of the work.
    context = multiprocessing.get_context("fork")
    over = context.Event()
    ports: SimpleQueue[int] = context.SimpleQueue()
    shares = [range(1 + worker, nodes, WORKERS) for worker in range(min(WORKERS, nodes - 1))]
    workers = [context.Process(target=follow, args=(ports, share, nodes, ranks, over), daemon=True) for share in shares]
    for worker in workers:
        worker.start()
    store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=120), wait_for_workers=False)
    speaker = _open(store, 0, nodes, ranks, made_up(0, ranks, nodes * ranks, travelling(nodes)))
    for _ in workers:
        ports.put(store.port)
    try:
        _await_all(speaker, nodes)
        beats = _share_while_nothing_happens()
        counted = Counted(vars(speaker)["_channel"])
        size = peak_bytes()
        before = time.process_time()
        begun = time.perf_counter()
        seen = speaker.gather("still")
        looked, worked, brought = time.perf_counter() - begun, time.process_time() - before, counted.bytes
        gathered = peak_bytes()
        assert seen is not None
        states = Counter(node.state for node in seen.nodes)
        if states["answered"] < nodes:
            told = ", ".join(f"{count} {state}" for state, count in states.most_common())
            raise SystemExit(f"{nodes} nodes: only {states['answered']} answered within {looked:.1f} s ({told})")
        before, begun = time.process_time(), time.perf_counter()
        verdict = conclude(seen)
        diagnosed, thought = time.perf_counter() - begun, time.process_time() - before
        late = nodes * ranks - 1
        if verdict.outcome != "hang" or [culprit.rank for culprit in verdict.culprits] != [late]:
            raise SystemExit(f"{nodes} nodes: a wrong verdict, {verdict.headline}")
        print(f"{nodes} nodes: {verdict.headline[:100]}", flush=True)
        counted.bytes = 0
        begun = time.perf_counter()
        again = speaker.gather("still")
        second, second_bytes = time.perf_counter() - begun, counted.bytes
        if again is None or conclude(again).culprits != verdict.culprits:
            raise SystemExit(f"{nodes} nodes: the second look found something else")
    finally:
        over.set()
        for worker in workers:
            worker.join(20)
            worker.kill()
        speaker.close("ended")
    memory = peak_bytes()
    whole = made_up(1, ranks, nodes * ranks)
    packed, packing = _timed(lambda: pack(whole, 0.0, travelling(nodes)))
    _, reading = _timed(lambda: _read(packed))
    return Cost(
        nodes=nodes,
        ranks=ranks,
        beat_bytes=len(encode(Beat(1000, time.time(), True, 3))),
        parcel_bytes=len(packed.data) + sum(map(len, packed.parts.values())),
        pack_s=packing,
        unpack_s=reading,
        beats_share=beats,
        look_s=looked,
        look_cpu_s=worked,
        look_bytes=brought,
        second_s=second,
        second_bytes=second_bytes,
        diagnose_s=diagnosed,
        diagnose_cpu_s=thought,
        before_bytes=size,
        gathered_bytes=gathered,
        memory_bytes=memory,
    )


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _read(packed: Packed) -> Evidence:
    """By somebody who knows nothing yet."""
    library, parcel = Library(), unpack(packed.data)
    for name, kind in library.lacks(parcel).items():
        library.add(name, kind, packed.parts[name], 8)
    return library.open(parcel)


def _await_all(speaker: Exchange, nodes: int) -> None:
    """Until the speaking node has heard a beat of every other; an error that names those which do not come."""
    known, since = 0, time.monotonic()
    while (heard := 1 + len(speaker.beating())) < nodes:
        if heard != known:
            known, since = heard, time.monotonic()
        elif time.monotonic() - since > JOIN_LIMIT_S:
            missing = sorted(set(range(1, nodes)) - speaker.beating())
            shown = ", ".join(map(str, missing[:10]))
            raise SystemExit(f"only {known} of {nodes} nodes have joined; {len(missing)} are missing: {shown} ...")
        time.sleep(0.05)


def _share_while_nothing_happens() -> float:
    before, begun = time.process_time(), time.perf_counter()
    time.sleep(BEATS_S)
    return (time.process_time() - before) / (time.perf_counter() - begun)


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    """The best of three."""
    best = float("inf")
    for _ in range(3):
        begun = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - begun)
    return result, best


def table(costs: Sequence[Cost]) -> str:
    lines = [
        "| nodes × ranks | a beat, each 0.5 s | beats: of a core | a node's evidence | packing it | reading it "
        "| brought for a look | look, all in | its processor time | on machines of their own | second look "
        "| brought for it | diagnosis | its processor time | memory before | with all evidence "
        "| with diagnosis and second look |",
        "| --- " * 17 + "|",
    ]
    for cost in costs:
        lines.append(
            f"| {cost.nodes} × {cost.ranks} | {cost.beat_bytes} bytes | {cost.beats_share:.1%} "
            f"| {cost.parcel_bytes / 1e3:.0f} kB | {cost.pack_s * 1e3:.0f} ms | {cost.unpack_s * 1e3:.0f} ms "
            f"| {cost.look_bytes / 1e6:.1f} MB | {cost.look_s:.1f} s | {cost.look_cpu_s:.1f} s "
            f"| {cost.alone_s:.1f} s | {cost.second_s:.1f} s | {cost.second_bytes / 1e6:.1f} MB "
            f"| {cost.diagnose_s:.1f} s | {cost.diagnose_cpu_s:.1f} s | {cost.before_bytes / 1e6:.0f} MB "
            f"| {cost.gathered_bytes / 1e6:.0f} MB | {cost.memory_bytes / 1e6:.0f} MB |"
        )
    return "\n".join(lines)


ABOUT = """\
Beats, look, processor time, diagnosis and memory are those of the one node that speaks, which also serves the store.
A node sends the same amount whatever the number of ranks elsewhere, and of that only what no other node has sent; with
more than 16 nodes each leaves more of its oldest calls at home. Packing is done by every node at the same time, each on
its own machine. The second look is at the same ranks a moment later, which stand where they stood, while the evidence
of the first is kept. Memory is the peak of the whole speaking process: torch alone is 220 MB of it.

"Look, all in" is what the clock of this machine shows while it does the work of all nodes. "On machines of their own"
is computed: one beat until the call is heard, packing, and the processor time of the speaking node.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--no-result", action="store_true", help="print only, write no file")
    chosen = parser.parse_args()
    costs = [measure(nodes, chosen.ranks) for nodes in chosen.nodes]
    about = (
        f"{time.strftime('%Y-%m-%d')}, rankscope {__version__}, torch {metadata.version('torch')}, "
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores "
        f"shared by all simulated nodes, load {os.getloadavg()[0]:.1f} at the end"
    )
    text = f"# A look at many nodes\n\n{about}. `python benchmarks/nodes.py`\n\n{table(costs)}\n\n{ABOUT}"
    print(text)
    if not chosen.no_result:
        (RESULTS / f"{time.strftime('%Y-%m-%d')}-nodes.md").write_text(text)


if __name__ == "__main__":
    main()
