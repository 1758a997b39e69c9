"""The verdict on a GPU whose memory ran out says what filled it."""

from __future__ import annotations

from factories import ended, evidence, frame, progress, raised, rank
from msgspec.structs import replace

from rankscope.evidence.cuda_memory import told_memory
from rankscope.evidence.model import HeldMemory, HeldTensors, RankEvidence, Stage
from rankscope.report.conclude import conclude

MESSAGE = (
    "CUDA out of memory. Tried to allocate 128.00 MiB. GPU 0 has a total capacity of 79.20 GiB of which 60.50 MiB is "
    "free. Process 4121 has 30.00 GiB memory in use. Including non-PyTorch memory, this process has 49.00 GiB memory "
    "in use. Of the allocated memory 40.00 GiB is allocated by PyTorch, and 8.00 GiB is reserved by PyTorch but "
    "unallocated."
)
GB = 1 << 30


def out_of_memory(
    message: str = MESSAGE, *, steps: int = 0, first: int = 0, held: HeldMemory | None = None
) -> RankEvidence:
    error = raised("torch.OutOfMemoryError", message, frame("/job/train.py", 45, "main"))
    stage = Stage(
        index=0, label="first optimizer step", words="First optimizer step done", kind="first step", note="",
        entered_at=1.0, left_at=2.0, number=1, failed=False, announced=False, always=False, thread=1,
        memory_before=0, memory_after=0, gpu_before=first, gpu_after=first,
    )  # fmt: skip
    seen = rank(1, exit=ended(1), exceptions=(error,))
    told = replace(progress(steps=steps), stages=(stage,), held=held)
    return replace(seen, progress=told)


def because(seen: RankEvidence) -> str:
    verdict = conclude(evidence(rank(0, pid=4121), seen))
    assert (verdict.cause, [culprit.rank for culprit in verdict.culprits]) == ("out-of-memory-gpu", [1])
    return "\n".join((*verdict.because, *verdict.fix))


def test_torchs_message_is_read() -> None:
    told = told_memory(MESSAGE)
    assert told is not None
    assert (told.device, told.asked, told.free) == (0, 128 << 20, int(60.5 * (1 << 20)))
    assert (told.allocated, told.idle, told.allowed, told.others) == (40 * GB, 8 * GB, 0, ((4121, 30 * GB),))
    assert told_memory("ValueError: no such thing") is None


def test_who_held_what_is_said() -> None:
    words = because(out_of_memory())
    assert "rank 1 held 40.0 GB in tensors and 8.0 GB in torch's reserve, and asked for 128 MB more" in words
    assert "other processes held 30.0 GB of that GPU: pid 4121; rank 0 of this job among them" in words
    assert "with every step" not in words


def test_growth_from_step_to_step_is_told_with_what_to_do() -> None:
    words = because(out_of_memory(steps=101, first=10 * GB))
    assert "rank 1 held 10.0 GB after its first step and 307 MB more with every step since, 100 of them" in words
    assert "loss.detach()" in words


def test_memory_that_the_first_step_took_already_is_no_growth() -> None:
    assert "with every step" not in because(out_of_memory(steps=101, first=39 * GB))


def test_the_largest_tensors_and_what_graphs_hold_are_told() -> None:
    held = HeldMemory(
        40 * GB, 48 * GB, 5 * GB, (HeldTensors(412, "[4096, 1024] float32", 4 * GB),), (("/job/train.py", 45, 3 * GB),)
    )
    words = because(out_of_memory(held=held))
    assert "412 of [4096, 1024] float32 (4.0 GB); 35.0 GB more are held by autograd graphs" in words
    assert "3.0 GB at train.py:45" in words
