"""The timeout of collectives raised and shown, NCCL's graph dumped, a profile of a few steps."""

from __future__ import annotations

import pytest
from notes import stages, train, without_gpus

from conftest import COMMAND, Rankscope

ROW = "4.4"
COMMAND_LINE = "NCCL_TIMEOUT=3600 rankscope run --comm-debug train.py; rankscope train --override profile.enabled=true"
DIFFERS = "A timeout that the program itself gives counts before NCCL_TIMEOUT and `--comm-timeout`."
TELLS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
from torch.distributed.distributed_c10d import _get_default_group
backend = _get_default_group()._get_backend(torch.device("cpu"))
print("timeout", int(backend.options._timeout.total_seconds()))
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "env"),
    [(("--comm-timeout", 3600), {}), ((), {"NCCL_TIMEOUT": "3600"}), ((), {"NCCL_TIMEOUT_SECONDS": "3600"})],
)
def test_the_timeout_is_set_and_shown(rankscope: Rankscope, options: tuple[object, ...], env: dict[str, str]) -> None:
    ended = rankscope.run(*options, "--stages", "on", rankscope.script(TELLS), env=env)
    assert ended.code == 0, ended.err.decode()
    assert ended.out.decode().count("timeout 3600") == 2
    assert "collectives are given 3600 s" in ended.err.decode()
    assert "timeout=3600 s" in stages(ended)


@pytest.mark.slow
def test_the_programs_own_timeout_wins(rankscope: Rankscope) -> None:
    text = TELLS.replace('("gloo")', '("gloo", timeout=__import__("datetime").timedelta(seconds=55))')
    ended = rankscope.run("--comm-timeout", 3600, rankscope.script(text))
    assert ended.out.decode().count("timeout 55") == 2, ended.err.decode()


def test_a_wrong_timeout_is_one_line(rankscope: Rankscope) -> None:
    rankscope.script(TELLS)
    ended = rankscope.command(*COMMAND, "run", "train.py", env={"NCCL_TIMEOUT": "an hour"}).wait(60)
    assert ended.code == 2
    assert b"write NCCL_TIMEOUT=3600" in ended.err


@pytest.mark.slow
def test_train_takes_the_variable_and_writes_a_profile(rankscope: Rankscope) -> None:
    profile = (
        "--override",
        "profile.enabled=true",
        "--override",
        "profile.first_step=1",
        "--override",
        "profile.steps=1",
    )
    ended = train(rankscope, "--debug", "--max-steps", 3, *profile, env={**without_gpus(), "NCCL_TIMEOUT": "3600"})
    assert ended.code == 0, ended.err.decode()
    assert '"timeout_s": 3600' in (ended.run_dir / "plan.json").read_text()
    assert list((ended.run_dir / "logs" / "profile").glob("*.json"))
