"""Tracebacks of ranks that we have stopped."""

from __future__ import annotations

import pytest

from rankscope.launch.after_stop import TracebackFilter

PLAIN = """\
Traceback (most recent call last):
  File "train.py", line 88, in <module>
    main()
    ~~~~^^
  File "train.py", line 61, in main
    loss.backward()
KeyboardInterrupt
"""
CHAINED = f"""\
{PLAIN}
During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 90, in <module>
    dist.destroy_process_group()
RuntimeError: Connection closed by peer
"""
BY_TORCH = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 61, in main
[rank1]:     loss.backward()
[rank1]: torch.distributed.DistBackendError: NCCL error
[rank1]: Last error:
[rank1]: socketProgress: Connection closed
"""


@pytest.mark.parametrize("echo", [PLAIN, CHAINED, BY_TORCH])
def test_a_traceback_is_left_out_and_the_programs_own_words_are_not(echo: str) -> None:
    filtered = TracebackFilter()
    text = f"saving before the end\n{echo}saved\n  with details\n{PLAIN}bye\n"
    shown = [line for line in text.splitlines() if not filtered.is_echo(line.encode())]
    assert shown == ["saving before the end", "saved", "  with details", "bye"]
