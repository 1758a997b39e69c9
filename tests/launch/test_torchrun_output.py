"""torchrun's options about output: what is on the console and what in files, for each of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import Rankscope

pytestmark = pytest.mark.slow

TALKS = """
import os, sys
rank = os.environ["RANK"]
print("out of", rank)
print("err of", rank, file=sys.stderr)
print("needle", rank)
"""


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ((), {"out of 0", "out of 1", "err of 0", "err of 1"}),
        (("--redirects=3",), set()),
        (("--redirects=3", "--tee=3"), {"out of 0", "out of 1", "err of 0", "err of 1"}),
        (("--tee=1",), {"out of 0", "out of 1", "err of 0", "err of 1"}),
        (("--redirects=1",), {"err of 0", "err of 1"}),
        (("--redirects=0:3,1:1",), {"err of 1"}),
        (("--redirects=3", "--tee=1:2"), {"err of 1"}),
        (("--local-ranks-filter=1",), {"out of 1", "err of 1"}),
        (("--local-ranks-filter=0", "--redirects=3", "--tee=3"), {"out of 0", "err of 0"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_console_shows_what_torchrun_shows(rankscope: Rankscope, options: tuple[str, ...], shown: set[str]) -> None:
    ended = rankscope.run(*options, rankscope.script(TALKS))
    assert ended.code == 0
    said = {line[3:] for line in ended.lines() if line.startswith(("R0:", "R1:")) and " of " in line}
    assert said == shown
    for rank in (0, 1):  # the files are there in any case
        assert ended.log(rank, "stdout") == f"out of {rank}\nneedle {rank}\n".encode()
        assert ended.log(rank, "stderr") == f"err of {rank}\n".encode()


def test_log_dir_gets_the_folders_of_torchrun(rankscope: Rankscope) -> None:
    folder = rankscope.folder / "logs"
    ended = rankscope.run("--log-dir", folder, "--redirects=3", rankscope.script(TALKS))
    assert ended.code == 0
    (run,) = folder.iterdir()
    assert (run / "attempt_0/1/stdout.log").read_text() == "out of 1\nneedle 1\n"
    assert ended.log(1, "stdout") == b"out of 1\nneedle 1\n"  # and the run's folder leads there


def test_log_dir_null_keeps_no_output(rankscope: Rankscope) -> None:
    ended = rankscope.run("--log-dir=/dev/null", rankscope.script(TALKS))
    assert ended.code == 0
    assert b"out of 1" in ended.out
    assert not (ended.run_dir / "logs").exists()


def test_lines_that_match_a_filter_are_gathered_in_one_file(rankscope: Rankscope) -> None:
    ended = rankscope.run("--tee=3", "--duplicate-stdout-filters=needle", rankscope.script(TALKS))
    assert ended.code == 0
    lines = (ended.run_dir / "logs/attempt_0/filtered_stdout.log").read_text().splitlines()
    assert {line.partition(":")[2] for line in lines} == {"needle 0", "needle 1"}


def test_prefix_template_of_torchrun_is_used(rankscope: Rankscope) -> None:
    env = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[${role_name} ${rank} ${local_rank}]: "}
    ended = rankscope.run("--role=trainer", rankscope.script(TALKS), env=env)
    assert b"[trainer 1 1]: out of 1" in ended.out.splitlines()


def test_output_of_each_attempt_is_kept(rankscope: Rankscope) -> None:
    script = rankscope.script(
        """
        import os, sys
        print("attempt", os.environ["TORCHELASTIC_RESTART_COUNT"])
        sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
        """
    )
    ended = rankscope.run("--max-restarts=1", "--monitor-interval=0.2", script)
    assert ended.code == 0
    assert (ended.log(0, "stdout", 0), ended.log(0, "stdout", 1)) == (b"attempt 0\n", b"attempt 1\n")


RECORDED = """
import os
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("a bad day")
main()
"""
PLAIN = RECORDED.replace("@record\n", "")


def error_file(rankscope: Rankscope, *arguments: object) -> tuple[int, dict[str, object] | None]:
    path: Path = rankscope.folder / "error.json"
    path.write_text("older")
    ended = rankscope.run("--monitor-interval=0.2", *arguments, env={"TORCHELASTIC_ERROR_FILE": str(path)})
    text = path.read_text()
    return ended.code, None if text == "older" else json.loads(text)["message"]


def test_error_file_of_the_launcher_is_that_of_the_culprit(rankscope: Rankscope) -> None:
    code, message = error_file(rankscope, rankscope.script(RECORDED))
    assert code == 1
    assert message is not None
    assert (message["message"], message["errorCode"]) == ("ValueError: a bad day", 1)
    assert "in main" in str(message["extraInfo"])


def test_error_file_of_a_program_without_record_is_the_verdict(rankscope: Rankscope) -> None:
    code, message = error_file(rankscope, rankscope.script(PLAIN))
    assert code == 1
    assert message is not None
    assert str(message["message"]).startswith("crash: rank 1 raised ValueError in main (train.py:5)")
    assert message["errorCode"] == 1


def test_run_path_leaves_an_error_file_without_record(rankscope: Rankscope) -> None:
    code, message = error_file(rankscope, "--run-path", rankscope.script(PLAIN))
    assert code == 1
    assert message is not None
    assert message["message"] == "ValueError: a bad day"


def test_error_file_of_a_good_run_is_left_alone(rankscope: Rankscope) -> None:
    assert error_file(rankscope, rankscope.script(TALKS)) == (0, None)


def test_run_path_names_the_line_of_the_script(rankscope: Rankscope) -> None:
    ended = rankscope.run("--run-path", "--monitor-interval=0.2", rankscope.script(PLAIN))
    (culprit,) = ended.verdict["culprits"]
    assert (culprit["rank"], culprit["where"]["line"], culprit["where"]["function"]) == (1, 5, "main")
    assert ended.verdict["exit_codes"]["1"] == 1


def test_script_among_the_libraries_gets_its_line(rankscope: Rankscope) -> None:
    """Whoever names a file as the script means it, though it lies in a package."""
    folder = rankscope.folder / "lib/python3.11/site-packages/torch/recipes"
    folder.mkdir(parents=True)
    script = rankscope.script(PLAIN, str(folder.relative_to(rankscope.folder) / "train.py"))
    ended = rankscope.run("--monitor-interval=0.2", script)
    (culprit,) = ended.verdict["culprits"]
    assert (culprit["rank"], culprit["where"]["line"]) == (1, 5)
