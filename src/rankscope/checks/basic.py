"""`check basic`: versions that fit together, and a matmul on every device against a reference.

`python -m rankscope.checks.basic` is the part that needs torch; the step runs it in a process of its own.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys

import msgspec

from rankscope.checks.child import run_child
from rankscope.checks.model import Findings, Flaw
from rankscope.evidence.gpus import driver_versions, read_gpus

LEAST_TORCH = (2, 9)
LIMIT_S = 90.0
_SIZE = 128


def check_basic(limit_s: float = LIMIT_S) -> Findings:
    if importlib.util.find_spec("torch") is None:
        return Findings(
            flaws=(
                Flaw(
                    "import-failed",
                    f"the package torch is missing from {sys.prefix}",
                    "pip install torch, or run rankscope from the environment that has it",
                ),
            )
        )
    ended = run_child(["-m", "rankscope.checks.basic"], limit_s=limit_s)
    if ended.over == "time":
        return Findings(
            flaws=(
                Flaw(
                    "gpu-stuck" if not isinstance(read_gpus(), str) else "blocked-call",
                    f"torch did not get through a matrix product on every device within {limit_s:.0f} s",
                    "look at 'rankscope gpus' and the kernel's log (dmesg | grep -i xid); a stuck GPU needs a reset",
                ),
            )
        )
    if ended.code != 0:
        return Findings(
            flaws=(
                Flaw(
                    "import-failed" if "Error" in ended.last_words else "native-crash",
                    f"torch does not work here: {ended.last_words or f'exit code {ended.code}'}",
                    "reinstall torch for this Python and this driver",
                ),
            )
        )
    return msgspec.json.decode(ended.out.splitlines()[-1].encode(), type=Findings)


def examine() -> Findings:
    """Runs where torch may be imported."""
    import torch

    flaws: list[Flaw] = []
    facts = [f"Python {platform.python_version()}, torch {torch.__version__}"]
    if tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2] if part.isdigit()) < LEAST_TORCH:
        flaws.append(Flaw("exception", f"torch {torch.__version__} is too old", "install torch 2.9 or later"))
    flaws += _fit(facts)
    devices = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    for name in devices:
        flaw = _multiply(name)
        if flaw is not None:
            flaws.append(flaw)
        else:
            facts.append(f"{name}: a {_SIZE} x {_SIZE} product is right")
    return Findings(flaws=tuple(flaws), facts=tuple(facts))


def _fit(facts: list[str]) -> list[Flaw]:
    """Do torch's CUDA, the driver and NCCL belong together?"""
    import torch

    flaws: list[Flaw] = []
    seen = read_gpus()
    gpus = () if isinstance(seen, str) else seen
    built_for = torch.version.cuda
    if not gpus:
        facts.append(f"no GPU: {seen if isinstance(seen, str) else 'the driver knows none'}")
        return flaws
    driver = driver_versions()
    if built_for is None:
        flaws.append(
            Flaw(
                "device-mapping",
                f"this machine has {len(gpus)} GPUs and torch {torch.__version__} is built without CUDA",
                "install the CUDA build of torch (see pytorch.org for the command)",
            )
        )
        return flaws
    if driver is not None:
        facts.append(f"driver {driver.driver} for CUDA {driver.cuda[0]}.{driver.cuda[1]}, torch built for {built_for}")
        if int(built_for.split(".")[0]) > driver.cuda[0]:
            flaws.append(
                Flaw(
                    "device-mapping",
                    f"torch is built for CUDA {built_for}, the driver {driver.driver} goes up to "
                    f"{driver.cuda[0]}.{driver.cuda[1]}",
                    "update the driver, or install the build of torch for the older CUDA",
                )
            )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    wanted = (
        len(gpus) if visible is None else len([part for part in visible.split(",") if part.strip() not in ("", "-1")])
    )
    if torch.cuda.device_count() < wanted:
        names = "" if visible is None else f" of CUDA_VISIBLE_DEVICES={visible}"
        flaws.append(
            Flaw(
                "device-mapping",
                f"torch sees {torch.cuda.device_count()} of {wanted} GPUs{names}",
                "name only GPUs that 'rankscope gpus' lists; a driver that was updated needs a restart",
            )
        )
    if torch.distributed.is_nccl_available():
        version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        facts.append("NCCL " + ".".join(map(str, version)))
    else:
        flaws.append(Flaw("comm-error", "this torch has no NCCL", "install a build of torch with NCCL"))
    return flaws


def _multiply(device: str) -> Flaw | None:
    import torch

    generator = torch.Generator().manual_seed(7)
    left = torch.randn(_SIZE, _SIZE, generator=generator, dtype=torch.float64)
    right = torch.randn(_SIZE, _SIZE, generator=generator, dtype=torch.float64)
    # The reference is the sum written out: it shares no code with the product that is checked.
    expected = (left[:, :, None] * right[None, :, :]).sum(1)
    try:
        found = (left.float().to(device) @ right.float().to(device)).double().cpu()
    except RuntimeError as error:
        message = str(error).splitlines()[0][:200]
        low = message.lower()
        cause = "out-of-memory-gpu" if "out of memory" in low else "comm-error"
        return Flaw(
            cause, f"{device} cannot multiply: {message}", "see 'rankscope gpus' for who uses it and its health"
        )
    worst = (found - expected).abs().max().item()
    # TF32 keeps ten bits of each factor: an error of about 0.05 on sums of this size is its own.
    if not worst < 0.5:
        return Flaw(
            "comm-error",
            f"{device} computes wrongly: a {_SIZE} x {_SIZE} product is off by {worst:.3g}",
            "take this device out of use; look at its ECC counters with 'rankscope gpus'",
        )
    return None


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(examine()).decode() + "\n")
