"""`rankscope.setup_distributed()`: from the environment to a process group that has proved itself."""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rankscope.distributed import nccl
from rankscope.distributed.agreement import everybody_says, first_word, open_store
from rankscope.distributed.environment import Place, read_place, read_timeout
from rankscope.distributed.failures import BadDevice, NoGroup, NoProof, NoRendezvous, SetupFailed
from rankscope.mask import mask_environment

if TYPE_CHECKING:
    import torch

SHOWN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DDP_BACKEND")
TOLD_ON_FAILURE = ("NCCL_", "CUDA_", "TORCH_NCCL_", "GLOO_")
OK = "ok"
_FALLING_BACK = "NCCL failed ({reason}), trying Gloo fallback..."
_BY_VARIABLE = "DDP_BACKEND=gloo"
_NOT_WANTED, _GIVEN_UP = "gloo", "gloo in place of nccl"
"""What a rank would take, before its reason: Gloo as such, or because NCCL failed on it."""


@dataclass(frozen=True, slots=True)
class Distributed:
    """A rank with its process group."""

    rank: int
    local_rank: int
    world_size: int
    backend: str
    device: torch.device
    fell_back: bool
    """NCCL was wanted and given up for Gloo, on all ranks."""


def setup_distributed(
    *, timeout_s: float | None = None, verbose: bool = True, device: torch.device | None = None
) -> Distributed:
    """Sets up the default process group, telling each step as `[DDP-DEBUG]` lines on standard output.

    The backend is DDP_BACKEND, or NCCL where every rank can use it, else Gloo: all ranks have the same one, always. The
    device is set before the group is made, and a first sum over all ranks proves the group before this returns. Where
    `device` is None it is the GPU of the local rank, or the CPU where there is none; with a CPU the backend is Gloo.

    `timeout_s`: of every wait here, and of the group's collectives from then on; where it is None, NCCL_TIMEOUT or
    NCCL_TIMEOUT_SECONDS says it, else 600.

    Raises SetupFailed, whose subclasses say in which phase; not caught, it ends the program with that phase's exit
    code: 80 environment, 81 device, 82 rendezvous, 83 process group, 84 first collective.
    """
    log = _Log(verbose)
    log.debug("setup_distributed() called")
    try:
        limit = timeout_s if timeout_s is not None else read_timeout(os.environ)
        log.debug(f"Timeout of the set-up and of collectives: {limit:g} s")
        return _set_up(log, limit, device)
    except SetupFailed as error:
        log.error(f"{error.phase}: {error}")
        log.failure()
        raise


def _set_up(log: _Log, timeout_s: float, given: torch.device | None) -> Distributed:
    variables = mask_environment(os.environ)
    for name in SHOWN:
        log.debug(f"{name}={variables.get(name, '(not set)')}")
    place = read_place(os.environ)
    log.debug(f"Parsed env vars: rank={place.rank}, local_rank={place.local_rank}, world_size={place.world_size}")
    if not place.launched:
        log.debug("No launcher: a single process of its own")
    _tell_versions(log)
    wanted, device = _choose_device(place, given, log)
    store = open_store(place, timeout_s)
    backend, fell_back = _agree(store, place, wanted, log, timeout_s)
    if backend == "gloo" and place.backend != "nccl" and device.type == "cuda":
        log.debug(f"Tensors stay on {device}; Gloo moves them through the host")
    if backend == "nccl":
        refused = _try_nccl(store, place, device, log, timeout_s)
        if refused is not None:
            if place.backend == "nccl":
                raise NoGroup(f"NCCL was asked for with DDP_BACKEND=nccl and does not work: {refused}")
            log.warning(_FALLING_BACK.format(reason=refused))
            backend, fell_back = "gloo", True
        else:
            _bind(device)
    if backend == "gloo":
        _use_gloo(store, place, log, timeout_s)
    if fell_back:
        log.warning("Fell back to Gloo backend (NCCL failed), on all ranks")
        log.warning("Gloo is CPU-based and slower - for debugging only!")
    log.info(f"Distributed training initialized: {place.world_size} ranks, backend {backend}, device {device}")
    log.debug(f"setup_distributed() returning successfully for rank {place.rank}")
    return Distributed(place.rank, place.local_rank, place.world_size, backend, device, fell_back)


def _tell_versions(log: _Log) -> None:
    import torch
    import torch.distributed as dist

    log.debug(f"PyTorch version: {torch.__version__}")
    log.debug("Checking GPU availability...")
    available = torch.cuda.is_available()
    log.debug(f"torch.cuda.is_available() = {available}")
    log.debug(f"torch.cuda.device_count() = {torch.cuda.device_count() if available else 0}")
    log.debug(f"CUDA version: {torch.version.cuda}")
    log.debug(f"NCCL available: {dist.is_nccl_available()}")
    if available and dist.is_nccl_available():
        nccl_module: Any = torch.cuda.nccl
        log.debug(f"NCCL version: {nccl_module.version()}")


def _choose_device(place: Place, given: torch.device | None, log: _Log) -> tuple[str, torch.device]:
    """The backend that this rank would take (`nccl`, or `gloo` with the reason), and its device, set."""
    import torch

    index = place.local_rank if given is None or given.index is None else given.index
    if place.backend == "gloo":
        reason: str | None = _BY_VARIABLE
    elif given is not None and given.type == "cpu":
        reason = "this rank computes on the CPU"
    else:
        reason = nccl.why_not_nccl(index)
    if place.backend == "nccl" and reason is not None:
        raise BadDevice(f"DDP_BACKEND=nccl, and {reason}: set DDP_BACKEND=gloo, or leave it out to let it be chosen")
    if not torch.cuda.is_available() or (given is not None and given.type == "cpu"):
        return _word(reason, on_gpu=False), torch.device("cpu")
    if index >= torch.cuda.device_count():
        raise BadDevice(
            f"LOCAL_RANK={place.local_rank} has no GPU {index}: {torch.cuda.device_count()} are visible. "
            "Start fewer ranks, or change CUDA_VISIBLE_DEVICES"
        )
    device = torch.device("cuda", index)
    log.debug(f"Setting CUDA device to {index}...")
    torch.cuda.set_device(device)
    log.debug(f"Device set to {device}")
    word = _word(reason, on_gpu=True)
    if word.startswith(_GIVEN_UP):
        log.error(f"NCCL cannot be used on this rank: {reason}")
        log.failure()
    return word, device


def _word(reason: str | None, *, on_gpu: bool) -> str:
    """What a rank says about its backend. A rank on a GPU whose NCCL does not work wanted it, and gives it up."""
    if reason is None:
        return "nccl"
    return f"{_GIVEN_UP if on_gpu and reason != _BY_VARIABLE else _NOT_WANTED}: {reason}"


def _agree(store: Any, place: Place, wanted: str, log: _Log, timeout_s: float) -> tuple[str, bool]:
    """One backend for all: NCCL only where every rank can."""
    log.debug(f"This rank would take {wanted}; asking all {place.world_size} ranks")
    words = everybody_says(store, "backend", place.rank, place.world_size, wanted, timeout_s)
    odd = first_word(words, lambda word: word != "nccl")
    if odd is None:
        log.debug("All ranks can use NCCL")
        return "nccl", False
    rank, word = odd
    reason = word.partition(": ")[2]
    fell_back = any(other == "nccl" or other.startswith(f"{_GIVEN_UP}: ") for other in words)
    log.debug(f"Backend gloo for all ranks, because of rank {rank}: {reason}")
    if fell_back:
        log.warning(_FALLING_BACK.format(reason=f"rank {rank}: {reason}"))
    return "gloo", fell_back


def _try_nccl(store: Any, place: Place, device: Any, log: _Log, timeout_s: float) -> str | None:
    """A group over NCCL that has proved itself on all ranks; otherwise why not, after it was taken down on all."""
    others = [f"nccl failed/{other}" for other in range(place.world_size) if other != place.rank]

    def gave_up() -> str | None:
        failed = next((key for key in others if store.check([key])), None)
        return None if failed is None else f"rank {failed.partition('/')[2]} has given up"

    found = nccl.prove_group(
        lambda: form_group("nccl", store, place, log, timeout_s),
        device,
        place.rank,
        place.world_size,
        timeout_s,
        gave_up=gave_up,
        on_error=log.failure,
    )
    problem = None if found is None else found.text
    if problem is not None:
        log.error(f"dist.init_process_group(backend='nccl') failed: {problem}")
        store.set(f"nccl failed/{place.rank}", problem)
    words = everybody_says(store, "nccl", place.rank, place.world_size, problem or OK, timeout_s)
    # The first that failed by itself; those that gave up because of it say so.
    odd = first_word(words, lambda word: word != OK and "has given up" not in word)
    odd = odd or first_word(words, lambda word: word != OK)
    if odd is None:
        return None
    nccl.abandon_group()
    everybody_says(store, "nccl taken down", place.rank, place.world_size, OK, timeout_s)
    return f"rank {odd[0]}: {odd[1]}"


def _bind(device: torch.device) -> None:
    """As `device_id` of init_process_group does, which would make the communicator before anybody could give up."""
    from torch.distributed import distributed_c10d as c10d

    group: Any = c10d._get_default_group()
    group.bound_device_id = device


def _use_gloo(store: Any, place: Place, log: _Log, timeout_s: float) -> None:
    import torch

    problem = nccl.prove_group(
        lambda: form_group("gloo", store, place, log, timeout_s),
        torch.device("cpu"),
        place.rank,
        place.world_size,
        timeout_s,
        on_error=log.failure,
    )
    if problem is not None and problem.made:
        raise NoProof(f"the first all-reduce failed: {problem.text}")
    if problem is not None:
        raise NoGroup(f"dist.init_process_group(backend='gloo') failed: {problem.text}")
    log.debug("First all-reduce: the sum is right")


def form_group(backend: str, store: Any, place: Place, log: _Log, timeout_s: float) -> None:
    """The default process group over one backend."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore

    log.debug(f"Attempting dist.init_process_group(backend='{backend}')...")
    if place.launched:
        store = open_store(place, timeout_s, serve=False)
    dist.init_process_group(
        backend,
        store=PrefixStore(f"group/{backend}", store),
        rank=place.rank,
        world_size=place.world_size,
        timeout=timedelta(seconds=timeout_s),
    )
    log.debug(f"dist.init_process_group(backend='{backend}') completed successfully")


class _Log:
    """Whole lines on standard output, as the program's own."""

    def __init__(self, verbose: bool) -> None:
        self._verbose = verbose

    def debug(self, text: str) -> None:
        if self._verbose:
            self._write("DEBUG", text)

    def info(self, text: str) -> None:
        if self._verbose:
            self._write("INFO", text)

    def warning(self, text: str) -> None:
        self._write("WARNING", text)

    def error(self, text: str) -> None:
        self._write("ERROR", text)

    def failure(self) -> None:
        """What is being handled, its traceback from the program's first line on, and the variables that NCCL and CUDA
        go by."""
        error = sys.exc_info()[0]
        if error is not None:
            self._write("ERROR", f"Exception type: {error.__name__}")
        sys.stdout.write(_whole_traceback())
        self._write("DEBUG", "Printing NCCL/CUDA environment variables:")
        for name, value in sorted(mask_environment(os.environ).items()):
            if name.startswith(TOLD_ON_FAILURE):
                sys.stdout.write(f"  {name}={value}\n")
        sys.stdout.flush()

    def _write(self, level: str, text: str) -> None:
        sys.stdout.write(f"[DDP-{level}] {text}\n")
        sys.stdout.flush()


def _whole_traceback() -> str:
    """Python's own begins where the exception is caught, which is here: the program's lines would be missing."""
    error = sys.exc_info()[1]
    if error is None:
        return ""
    told = traceback.TracebackException.from_exception(error)
    inner = error.__traceback__
    outer = traceback.extract_stack(inner.tb_frame.f_back) if inner is not None and inner.tb_frame.f_back else []
    told.stack = traceback.StackSummary.from_list([*outer, *told.stack])
    return "".join(told.format())


__all__ = ["Distributed", "NoRendezvous", "setup_distributed"]
