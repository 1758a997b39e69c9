"""Stacks that somebody took with `py-spy dump`, as text or with --json."""

from __future__ import annotations

import re
import sys
from itertools import zip_longest

import msgspec

from rankscope.errors import EvidenceError
from rankscope.evidence.model import Frame, StackSample, Thread
from rankscope.evidence.stacks import parse_py_spy
from rankscope.whose_code import is_user_file

PROCESS = re.compile(r"^Process (?P<pid>\d{1,10}): (?P<command>.*)$", re.MULTILINE)
_THREAD = re.compile(r'^Thread (?:0x)?(?P<tid>[0-9A-Fa-f]+) \((?P<state>[^)]*)\)(?:: "(?P<name>.*)")?\s*$')
_FRAME = re.compile(r"^    (?P<function>\S.*?) \((?P<file>.*?)(?::(?P<line>\d{1,9}))?\)\s*$")
_RANK_ARGUMENT = re.compile(r"--(?:node_|local_|local-|global_)?rank[= ](\d{1,6})\b")
_VERSION = re.compile(r"^Python v(\d+\.\d+)", re.MULTILINE)
_NATIVE = re.compile(r"\.so(?:\.[\d.]+)?$|^\[")

# py-spy writes `torch/distributed/x.py` for an installed package as for a package of the user's: these are the former.
_PACKAGE_NAMES = (
    "torch torchvision torchaudio torchmetrics numpy scipy pandas lightning pytorch_lightning lightning_fabric "
    "accelerate transformers datasets tokenizers huggingface_hub deepspeed megatron apex xformers flash_attn triton "
    "wandb tensorboard tensorboardX mlflow comet_ml neptune requests urllib3 httpx aiohttp tqdm yaml omegaconf hydra "
    "ray fsspec s3fs boto3 botocore google grpc sklearn PIL cv2 h5py pyarrow polars fairscale composer peft trl timm "
    "sentencepiece safetensors filelock joblib numba cupy jax flax einops psutil zmq IPython ipykernel rich click "
    "jsonargparse pydantic webdataset decord av librosa soundfile nltk spacy evaluate bitsandbytes vllm"
)
_PACKAGES = frozenset(_PACKAGE_NAMES.split())


class ProcessStacks(msgspec.Struct, frozen=True):
    pid: int
    rank: int | None
    """By its command line, where that says."""
    sample: StackSample
    command: str = ""


def read_py_spy_json(data: bytes, at: float) -> tuple[ProcessStacks, ...]:
    """The processes of a dump; one with --subprocesses holds several. Raises EvidenceError when it is none."""
    try:
        entries = msgspec.json.decode(data)
        by_pid: dict[int, list[object]] = {}
        for entry in entries:
            by_pid.setdefault(int(entry.get("pid") or 0), []).append(entry)
        return tuple(
            ProcessStacks(pid, None, StackSample(at, parse_py_spy(msgspec.json.encode(entries), pid, None), "py-spy"))
            for pid, entries in by_pid.items()
        )
    except (msgspec.DecodeError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise EvidenceError(f"the stack dump cannot be read: {error}") from error


def read_py_spy_text(text: str, at: float) -> tuple[ProcessStacks, ...]:
    """The processes of one or more dumps. Raises EvidenceError when there is none."""
    heads = list(PROCESS.finditer(text))
    found: list[ProcessStacks] = []
    for head, following in zip_longest(heads, heads[1:]):
        body = text[head.end() : following.start() if following is not None else len(text)]
        version = _VERSION.search(body)
        library = f"/usr/lib/python{version[1] if version else '3.11'}/"
        pid = int(head["pid"]) if len(head["pid"]) < 10 else 0
        threads = _threads(body, pid, library)
        argument = _RANK_ARGUMENT.search(head["command"])
        if threads:
            rank = int(argument[1]) if argument else None
            sample = StackSample(at, threads, "py-spy-native" if _has_native(threads) else "py-spy")
            found.append(ProcessStacks(pid, rank, sample, head["command"][:300]))
    if not found:
        raise EvidenceError("the stack dump holds no thread of a Python process")
    return tuple(found)


def _has_native(threads: tuple[Thread, ...]) -> bool:
    return any(frame.native for thread in threads for frame in thread.frames)


def _threads(body: str, pid: int, library: str) -> tuple[Thread, ...]:
    found: list[tuple[re.Match[str], list[Frame]]] = []
    for line in body.splitlines():
        if head := _THREAD.match(line):
            found.append((head, []))
        elif found and (match := _FRAME.match(line)):
            found[-1][1].append(_frame(match, library))
    threads = []
    for number, (head, frames) in enumerate(found):
        # The id is of the operating system where py-spy could map it, else of Python.
        tid = int(head["tid"]) if head["tid"].isdigit() and len(head["tid"]) < 10 else 0
        main = tid == pid if any(each["tid"] == str(pid) for each, _ in found) else _is_main(head, number)
        state = head["state"]
        threads.append(
            Thread(
                tid=tid or pid,
                name=head["name"] or "",
                main=main,
                frames=tuple(frames),
                owns_gil="gil" in state,
                active="active" in state,
            )
        )
    return tuple(threads)


def _is_main(head: re.Match[str], number: int) -> bool:
    return head["name"] == "MainThread" or (number == 0 and not head["name"])


def _frame(match: re.Match[str], library: str) -> Frame:
    file = match["file"]
    line = int(match["line"]) if match["line"] and len(match["line"]) < 10 else 0
    if _NATIVE.search(file) or not file.endswith((".py", ">", ".pyx")):
        return Frame(match["function"], file, line, user=False, native=True)
    full = file if file.startswith(("/", "<")) else _full_name(file, library)
    return Frame(match["function"], full, line, is_user_file(full))


def _full_name(file: str, library: str) -> str:
    """py-spy shortens names of the library and of packages to what an import would say."""
    top = file.split("/", maxsplit=1)[0].removesuffix(".py")
    if top in _PACKAGES:
        return f"{library}site-packages/{file}"
    if top in sys.stdlib_module_names:
        return library + file
    return file
