"""How fast text becomes a prepared dataset on two cores, against tiktoken and HF tokenizers with the same vocabulary.

    python benchmarks/prepare.py [--mb 128] [--rounds 3] [--memory-mb 1000] [--text FILE ...]

The text is real and not repeated: sources and documentation that Python and its packages have on this machine, or the
files given. All take turns on the same two cores: `rankscope prepare` as a whole (start of processes, fingerprints,
encoding, checksums, files and fsync), tiktoken with two threads (lists as its batch call gives them, and arrays), and
HF tokenizers with two threads. The rivals get the text in memory, in pieces of a mebibyte, and only have to give arrays
of ids. Processor time is printed too: it means something on a busy machine, where the other times do not.
Then memory: the peak of all processes of a preparation, for a tenth of --memory-mb and for all of it.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import platform
import random
import resource
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
VOCABULARY = 32_000
PIECE = 1 << 20
SEPARATOR = "<|endoftext|>"
FILE_BYTES = 16 << 20
PACKAGES = ("rankscope", "tokenizers", "tiktoken", "numpy")
CONTENDERS = ("rankscope prepare", "tiktoken, lists", "tiktoken, arrays", "HF tokenizers")
MEMORY_GOAL_MB = 1000


@dataclass(frozen=True, slots=True)
class Turn:
    seconds: float
    ids: str
    """Checksum of all token ids, documents' ends left out."""
    tokens: int
    cpu_s: float
    """Processor time of the same stretch, all threads and processes."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mb", type=int, default=128, help="megabytes of text to encode (default: 128)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each (default: 3)")
    parser.add_argument("--memory-mb", type=int, default=1000, help="text for the memory part; 0: leave it out")
    parser.add_argument("--text", type=Path, nargs="+", help="files to take the text from")
    parser.add_argument("--no-write", action="store_true", help="print only")
    parser.add_argument("--turn", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.turn:
        print(json.dumps(take_turn(chosen.turn, chosen.folder)))
        return 0
    cores = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, cores)
    with tempfile.TemporaryDirectory(prefix="prepare-") as name:
        folder = Path(name)
        size = collect_text(folder / "text", chosen.text or installed_text(), chosen.mb * 1_000_000)
        train_tokenizer(folder)
        turns = measure(folder, chosen.rounds)
        memory = measure_memory(folder, chosen.memory_mb) if chosen.memory_mb else {}
    return report(size, len(cores), turns, memory, write=not chosen.no_write)


# The text


def installed_text() -> Iterator[Path]:
    """Sources and documentation of the standard library and packages; shuffled, so that any amount is a mix."""
    roots = [sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["purelib"]]
    kinds = (".py", ".md", ".rst", ".txt", ".pyi", ".html")
    found = {
        path.resolve() for root in roots for path in Path(root).rglob("*") if path.suffix in kinds and path.is_file()
    }
    paths = sorted(found)
    random.Random(0).shuffle(paths)
    yield from paths


def collect_text(folder: Path, paths: Iterator[Path] | Sequence[Path], most: int) -> int:
    """Writes distinct files' text, one after the other, into files of 16 MiB; returns its bytes."""
    folder.mkdir()
    seen: set[bytes] = set()
    total = 0
    out = None
    for path in paths:
        content = path.read_bytes()
        digest = hashlib.sha256(content).digest()
        # HF tokenizers and `rankscope prepare` take a separator that stands in the text for one, tiktoken does not.
        if digest in seen or total >= most or SEPARATOR.encode() in content:
            continue
        try:
            content.decode("utf-8")
        except UnicodeDecodeError:
            continue
        seen.add(digest)
        if out is None or out.tell() >= FILE_BYTES:
            if out is not None:
                out.close()
            out = (folder / f"{total:012d}.txt").open("wb")
        out.write(content[: most - total] if len(content) > most - total and content.isascii() else content)
        total += len(content)
    if out is None:
        raise SystemExit("no text was found")
    out.close()
    return sum(path.stat().st_size for path in folder.iterdir())


def train_tokenizer(folder: Path) -> None:
    """A byte-level BPE on the beginning of the text, as tokenizer.json."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[SEPARATOR],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = (piece.decode("utf-8") for number, piece in enumerate(pieces(folder)) if number % 2 == 0 and number < 32)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))


def pieces(folder: Path) -> Iterator[bytes]:
    """The text in mebibytes, cut before lines."""
    for path in sorted((folder / "text").iterdir()):
        content = path.read_bytes()
        begin = 0
        while begin < len(content):
            end = begin + PIECE
            while end < len(content) and not (content[end - 1] == 10 and 33 <= content[end] <= 126):
                end += 1
            yield content[begin:end]
            begin = end


# One turn of each, in a process of its own


def measure(folder: Path, rounds: int) -> dict[str, list[Turn]]:
    turns: dict[str, list[Turn]] = {name: [] for name in CONTENDERS}
    for number in range(rounds):
        # There and back again: whatever drifts, drifts for all.
        for name in CONTENDERS if number % 2 == 0 else reversed(CONTENDERS):
            ended = subprocess.run(
                [sys.executable, __file__, "--turn", name, "--folder", str(folder)],
                check=True,
                stdout=subprocess.PIPE,
                env={**os.environ, "RAYON_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "true"},
            )
            turns[name].append(Turn(**json.loads(ended.stdout.splitlines()[-1])))
            print(f"round {number + 1}: {name:<20} {turns[name][-1].seconds:7.2f} s", flush=True)
    return turns


def take_turn(name: str, folder: Path) -> dict[str, Any]:
    if name == "rankscope prepare":
        return _prepare(folder)
    texts = [piece.decode("utf-8") for piece in pieces(folder)]
    encode = _hugging_face(folder) if name == "HF tokenizers" else _tiktoken(folder, arrays=name.endswith("arrays"))
    began, cpu_began = time.perf_counter(), time.process_time()
    found = encode(texts)
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    digest = hashlib.sha256()
    for ids in found:
        digest.update(ids.tobytes())
    return {"seconds": seconds, "ids": digest.hexdigest(), "tokens": sum(map(len, found)), "cpu_s": cpu_s}


def _prepare(folder: Path) -> dict[str, Any]:
    import numpy as np

    cache = folder / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    command = [sys.executable, "-m", "rankscope", "prepare"]
    for key, value in {
        "data.source": "text",
        "data.paths": str(folder / "text" / "*.txt"),
        "data.tokenizer": "file",
        "data.tokenizer_file": str(folder / "tokenizer.json"),
        "data.cache_dir": str(cache),
        "data.workers": "2",
    }.items():
        command += ["--override", f"{key}={value}"]
    began = time.perf_counter()
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    seconds = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    (tokens,) = cache.glob("*/tokens.bin")
    manifest = json.loads((tokens.parent / "manifest.json").read_bytes())["manifest"]
    ids = np.fromfile(tokens, dtype=manifest["dtype"])
    ids = ids[ids != manifest["end_of_text"]]
    return {
        "seconds": seconds,
        "ids": hashlib.sha256(ids.tobytes()).hexdigest(),
        "tokens": len(ids),
        "cpu_s": used.ru_utime + used.ru_stime,
    }


def _hugging_face(folder: Path) -> Any:
    import numpy as np
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
    return lambda texts: [np.array(each.ids, dtype=np.uint16) for each in encode(texts, add_special_tokens=False)]


def _tiktoken(folder: Path, arrays: bool) -> Any:
    import numpy as np
    import tiktoken

    settings = json.loads((folder / "tokenizer.json").read_bytes())
    special = {token["content"]: token["id"] for token in settings["added_tokens"]}
    byte_of = _bytes_of_letters()
    ranks = {
        bytes(byte_of[letter] for letter in token): number
        for token, number in settings["model"]["vocab"].items()
        if token not in special
    }
    rule = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
    encoding = tiktoken.Encoding("same", pat_str=rule, mergeable_ranks=ranks, special_tokens=special)
    if not arrays:
        return lambda texts: [
            np.array(ids, dtype=np.uint16) for ids in encoding.encode_ordinary_batch(texts, num_threads=2)
        ]

    def encode(texts: list[str]) -> list[Any]:
        with ThreadPoolExecutor(2) as threads:
            found = threads.map(lambda text: encoding.encode_to_numpy(text, disallowed_special=()), texts)
            return [ids.astype(np.uint16) for ids in found]

    return encode


def _bytes_of_letters() -> dict[str, int]:
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + place): byte for place, byte in enumerate(hidden)}


# Memory


def measure_memory(folder: Path, megabytes: int) -> dict[int, float]:
    """Peak of all processes together, in MB, for two sizes of a text whose vocabulary never ends."""
    found = {}
    for size in (megabytes // 10, megabytes):
        text = folder / "long.txt"
        write_long_text(text, size * 1_000_000)
        cache = folder / "memory-cache"
        overrides = {
            "data.source": "text",
            "data.paths": str(text),
            "data.tokenizer": "bpe",
            "data.tokenizer_vocab_size": "8192",
            "data.cache_dir": str(cache),
            "data.workers": "2",
        }
        given = [part for key, value in overrides.items() for part in ("--override", f"{key}={value}")]
        process = subprocess.Popen([sys.executable, "-m", "rankscope", "prepare", *given])
        watch = _Peak(process.pid)
        if process.wait() != 0:
            raise SystemExit("the preparation for the memory part failed")
        found[size] = watch.end()
        print(f"memory: {size} MB of text took {found[size]:.0f} MB at most", flush=True)
        shutil.rmtree(cache)
        text.unlink()
    return found


def write_long_text(path: Path, size: int) -> None:
    """Stretches of common words by Zipf's law, and after each of them a word that was never seen before."""
    rng = random.Random(1)
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    common = ["".join(rng.choices(letters, k=rng.randint(1, 11))) for _ in range(50_000)]
    weights = list(itertools.accumulate(1 / (rank + 2) for rank in range(len(common))))
    stretches = [" ".join(rng.choices(common, cum_weights=weights, k=29)) for _ in range(20_000)]
    digits = str.maketrans("0123456789", "ghijklmnop")
    written = 0
    with path.open("w") as out:
        while written < size:
            new = (f" {rng.getrandbits(rng.randint(24, 64)):x}".translate(digits) for _ in range(14))
            line = " ".join(stretch + word for stretch, word in zip(rng.choices(stretches, k=14), new, strict=True))
            written += out.write(line + ".\n")


class _Peak:
    """The most memory that a process and its children held at one time."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._most = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> float:
        self._over.set()
        self._thread.join()
        return self._most

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            self._most = max(self._most, sum(_resident_mb(pid) for pid in [self._pid, *_children(self._pid)]))


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


def _resident_mb(pid: int) -> float:
    """0.0 for a process that has just ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6
    except (OSError, IndexError):
        return 0.0


# The result


def report(size: int, cores: int, turns: dict[str, list[Turn]], memory: dict[int, float], *, write: bool) -> int:
    speeds = {name: [size / 1e6 / turn.seconds for turn in taken] for name, taken in turns.items()}
    ours = speeds["rankscope prepare"]
    rivals = {name: each for name, each in speeds.items() if name != "rankscope prepare"}
    fastest = max(rivals, key=lambda name: statistics.median(rivals[name]))
    ratios = [mine / theirs for mine, theirs in zip(ours, rivals[fastest], strict=True)]
    ids = {name: {turn.ids for turn in taken} for name, taken in turns.items()}
    same = ids["rankscope prepare"] == ids["HF tokenizers"] and len(ids["HF tokenizers"]) == 1
    memory_met = all(peak < MEMORY_GOAL_MB for peak in memory.values())
    lines = [
        f"- date: {datetime.now(timezone.utc):%Y-%m-%d}",
        f"- versions: {', '.join(f'{name} {metadata.version(name)}' for name in PACKAGES)}, "
        f"python {platform.python_version()}",
        f"- machine: {platform.machine()}, {cores} cores used, Linux {platform.release()}, "
        f"load {os.getloadavg()[0]:.1f}",
        f"- text: {size / 1e6:.1f} MB, {turns['HF tokenizers'][0].tokens:,} tokens, vocabulary {VOCABULARY:,}",
        *(
            f"- {name}: {statistics.median(each):.1f} MB/s ({min(each):.1f} to {max(each):.1f}), "
            f"{statistics.median(turn.cpu_s for turn in turns[name]):.2f} s of processor time"
            for name, each in speeds.items()
        ),
        f"- **{statistics.median(ratios):.2f} times {fastest}** ({min(ratios):.2f} to {max(ratios):.2f}); goal 1.0: "
        f"{'met' if min(ratios) >= 1 else 'missed' if max(ratios) < 1 else 'open'}",
        f"- ids are those of HF tokenizers: {'yes' if same else 'NO'}",
        f"- tiktoken's too: {'yes' if ids['tiktoken, lists'] == ids['HF tokenizers'] else 'no'}",
        *(f"- memory: {each} MB of text, {peak:.0f} MB at most in all processes" for each, peak in memory.items()),
    ]
    if memory:
        lines.append(f"- memory goal, below {MEMORY_GOAL_MB} MB: {'met' if memory_met else 'missed'}")
    print("\n".join(lines))
    if write:
        path = RESULTS / f"{datetime.now(timezone.utc):%Y-%m-%d}-prepare.md"
        kept = _notes(path)
        path.write_text("# Text to a prepared dataset, on two cores\n\n" + "\n".join(lines) + "\n" + kept)
        print(f"written to {path}")
    return 0 if same and max(ratios) >= 1 and memory_met else 1


def _notes(path: Path) -> str:
    """What was written by hand under the figures of an earlier run of the day."""
    if not path.exists():
        return ""
    _, mark, notes = path.read_text().partition("\n## ")
    return mark + notes


if __name__ == "__main__":
    sys.exit(main())
