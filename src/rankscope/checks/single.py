"""`check single`: a few real training steps on one device.

`python -m rankscope.checks.single` is the part that needs torch; the step runs it in a process of its own.
"""

from __future__ import annotations

import sys
import time

import msgspec

from rankscope.checks.child import run_child
from rankscope.checks.model import Findings, Flaw
from rankscope.checks.sizes import size_text
from rankscope.evidence.gpus import read_gpus

LIMIT_S = 120.0
STEPS = 8


def check_single(limit_s: float = LIMIT_S) -> Findings:
    ended = run_child(["-m", "rankscope.checks.single"], limit_s=limit_s)
    if ended.over == "time":
        return Findings(
            flaws=(
                Flaw(
                    "slow-rank" if isinstance(read_gpus(), str) else "gpu-stuck",
                    f"{STEPS} small training steps did not end within {limit_s:.0f} s",
                    "see what else runs on this machine (top, 'rankscope gpus') and the kernel's log; compare with "
                    "CUDA_VISIBLE_DEVICES=''",
                ),
            )
        )
    if ended.code != 0:
        cause = "out-of-memory-gpu" if "OutOfMemoryError" in ended.err else "exception"
        if ended.code is not None and ended.code < 0:
            cause = "out-of-memory-host" if ended.code == -9 else "native-crash"
        return Findings(
            flaws=(
                Flaw(
                    cause,
                    f"training on one device fails: {ended.last_words or f'exit code {ended.code}'}",
                    "run python -m rankscope.checks.single for the whole traceback",
                ),
            )
        )
    return msgspec.json.decode(ended.out.splitlines()[-1].encode(), type=Findings)


def train() -> Findings:
    """Runs where torch may be imported: forward, backward and optimizer of a small transformer layer."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(101, 64), layer, nn.Linear(64, 101)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    tokens = torch.randint(0, 101, (8, 33), device=device)
    losses = []
    begun = time.perf_counter()
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    seconds = (time.perf_counter() - begun) / STEPS
    told = f"{device}: {STEPS} steps, {seconds * 1000:.1f} ms each, loss {losses[0]:.2f} to {losses[-1]:.2f}"
    if device.type == "cuda":
        told += f", {size_text(torch.cuda.max_memory_allocated())} of GPU memory"
    if not all(torch.isfinite(torch.tensor(losses)).tolist()):
        bad = next(number for number, value in enumerate(losses) if not torch.isfinite(torch.tensor(value)))
        flaw = Flaw("nan-loss", f"{device}: the loss of step {bad} is {losses[bad]}", "the device computes wrongly")
        return Findings(flaws=(flaw,))
    if losses[-1] >= losses[0]:
        flaw = Flaw(
            "nan-parameter", f"{told}: it does not fall", "the device computes wrongly: run rankscope check basic"
        )
        return Findings(flaws=(flaw,))
    return Findings(facts=(told,))


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(train()).decode() + "\n")
