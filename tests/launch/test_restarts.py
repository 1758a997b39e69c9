"""What --max-restarts restarts."""

from __future__ import annotations

import pytest

from conftest import Rankscope

pytestmark = pytest.mark.slow

FAILS = """
import os, sys
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print("attempt", attempt, flush=True)
if sys.argv[1] == "mistake":
    undefined_name
if sys.argv[1] == "data":
    raise ValueError("a bad batch")
if sys.argv[1] == "moment" and attempt == 0:
    raise ConnectionResetError("the storage went away")
if sys.argv[1] == "killed" and attempt == 0:
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(
    ("kind", "options", "attempts", "code"),
    [
        ("mistake", (), 1, 1),
        ("mistake", ("--restart-always",), 3, 1),
        ("data", (), 2, 1),
        ("moment", (), 2, 0),
        ("killed", (), 2, 0),
    ],
)
def test_what_will_fail_again_is_not_restarted(
    rankscope: Rankscope, kind: str, options: tuple[str, ...], attempts: int, code: int
) -> None:
    restarts = ("--max-restarts=2", "--monitor-interval=0.2")
    ended = rankscope.run(*restarts, *options, rankscope.script(FAILS), kind, nproc=1)
    assert (ended.out.count(b"R0:attempt"), ended.code) == (attempts, code)
    assert (b"not restarted: it would fail again (--restart-always" in ended.err) == (not options and code != 0)
