"""Wrong uses of every verb: one line that says what is wrong and what to write instead, and exit code 2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rankscope.cli import main
from rankscope.errors import RankscopeError
from rankscope.launch import entry, options

WRONG_USES: tuple[tuple[str, str], ...] = (
    ("trian", "did you mean 'train'?"),
    ("rnu train.py", "did you mean 'run'?"),
    ("--verison", "did you mean '--version'?"),
    ("doctor", "see 'rankscope --help'"),
    ("train --debgu", "did you mean '--debug'?"),
    ("train --max_steps 3", "did you mean '--max-steps'?"),
    ("train --preset prodution", "did you mean 'production'?"),
    ("train --preset", "--preset NAME"),
    ("train --debug --preset micro", "leave one out"),
    ("train --debug --max-steps 0", "--max-steps: training.max_steps must be greater than 0"),
    ("train --debug --max-steps -5", "must be greater than 0"),
    ("train --debug --max-steps ten", "write it in digits"),
    ("train --debug --strategy zero", "'fsdp'"),
    ("train --debug --strategy single --nproc-per-node 2", "use ddp"),
    ("train --debug --nproc-per-node -1", "a job needs at least 1 rank"),
    ("train --debug --nproc-per-node 0", "a job needs at least 1 rank"),
    ("train --debug --nproc-per-node two", "write it in digits"),
    ("train --debug --fault explode", "there are hang, crash, oom, nan, slow, skip"),
    ("train --debug --fault hnag", "did you mean 'hang'? there are hang"),
    ("train --debug --fault hang@rank=9", "the ranks are 0 to 1"),
    ("train --debug --fault hang@step=99", "write hang@rank=1,step=9 at most"),
    ("train --debug --fault hang@rank=x", "write it as hang@rank=1,step=5"),
    ("train --debug --fault hang,rank=1", "there are hang"),
    ("train --debug --config missing.json", "does not exist"),
    ("train --debug --config bad.json", "bad.json:1: not JSON"),
    ("train --debug --config train.py", "ends in .json, .yaml, .yml or .toml"),
    ("train --debug --config folder", "cannot be read"),
    ("train --debug --override batch_size=4", "training.batch_size=4"),
    ("train --debug --override training.batch_size", "write section.name=value"),
    ("train --debug --override training.batchsize=4", "did you mean 'training.batch_size'?"),
    ("train --debug --override training.batch_size=many", "a whole number"),
    ("train --debug --override training.learning_rate=-1", "greater than 0"),
    ("train --debug --override model.heads=7", "must divide model.width"),
    ("train --debug --override trainig.batch_size=4", "did you mean 'training.batch_size'?"),
    ("train --debug --override fsdp.use_orig_params=false", "leave it out"),
    ("train --debug --override models.policy.dtype=int8", "write training.precision="),
    ("train --debug --override data.source=csv", "'jsonl'"),
    ("train --debug --override data.source=text", "data.paths is empty"),
    ("train --debug --override data.source=hf", "data.name is missing"),
    ("train --debug --override system.device=tpu", "'auto', 'cuda', 'cpu'"),
    ("train --debug --override system.device_id=-1", "counted from 0"),
    ("train --debug --override checkpoint.keep_earlier=0", "checkpoint.keep_earlier"),
    ("train --debug --gpus one", "write numbers (0,3), auto, or auto:2"),
    ("train --debug --gpus 0,0", "names a GPU twice"),
    ("train --debug --wait", "--gpus auto:2"),
    ("train --debug extra", "unrecognized arguments: extra"),
    ("train --export out", "no complete checkpoint to export"),
    ("train --replay-nan nothing.pkl", "there is no file 'nothing.pkl'"),
    ("train --replay-nan half.pkl", "give a file .checkpoints/nan_grad_step_N.pt"),
    ("prepare --preset nope", "there are 14b, 32b, debug"),
    ("prepare --debug --preset micro", "not allowed with"),
    ("prepare --override data.source=text", "data.paths is empty"),
    ("prepare --config missing.yaml", "does not exist"),
    ("prepare --debug --cache-dir /proc/nothing", "data.cache_dir"),
    ("diagnose", "PATH"),
    ("diagnose missing.log", "does not exist"),
    ("diagnose --jsn empty.log", "did you mean '--json'?"),
    ("attach --pid 999999999", "999999999"),
    ("attach --pid me", "write it in digits"),
    ("attach --watch 0", "give 1 to 3600 seconds"),
    ("attach --watch soon", "write it in digits"),
    ("check nope", "the steps are basic"),
    ("check ddp --ranks 0", "at least 1 rank"),
    ("check ddp --ranks many", "write it in digits"),
    ("gpus --gpus nope", "write numbers (0,3), auto, or auto:2"),
    ("gpus extra", "unrecognized arguments: extra"),
    ("launch vast", "give --config FILE"),
    ("launch vats", "there is slurm, vast"),
    ("launch vast --num-gpus 0 -- train.py", "give 1 or more"),
    ("launch vast --config missing.yaml", "there is no such file"),
    ("launch slurm", "write rankscope launch slurm"),
    ("launch slurm --nodes 0 -- train.py", "at least 1"),
    ("launch slurm --nodes two -- train.py", "write it in digits"),
    ("launch k8s", "--image"),
    ("launch sky", "write rankscope launch sky"),
    ("run", "there is no script to run: name it after the options"),
    ("run --nproc-per-node 2", "as in rankscope run --nproc-per-node 2 train.py"),
    ("run missing.py", "does not exist"),
    ("run folder", "name the script itself"),
    ("run --nproc-per-node 0 train.py", "at least 1 process"),
    ("run --nproc-per-node -1 train.py", "at least 1 process"),
    ("run --nproc-per-node many train.py", "give a number, or one of auto, gpu, cpu"),
    ("run --on-hang kill train.py", "'auto', 'stop', 'report', 'restart'"),
    ("run --on-nan die train.py", "'report', 'stop'"),
    ("run --stall-after 0 train.py", "at least 1 second, or 'auto'"),
    ("run --stall-after soon train.py", "neither 'auto' nor a number of seconds"),
    ("run --memory-limit 10 train.py", "give at least 256M"),
    ("run --memory-limit lots train.py", "write it as 100G"),
    ("run --comm-timeout 0 train.py", "write 3600 for an hour"),
    ("run --comm-timeout hour train.py", "write 3600 for an hour"),
    ("run --stages loud train.py", "'auto', 'on', 'off'"),
    ("run --gpus 1,1 train.py", "names a GPU twice"),
    ("run --gpus some train.py", "write numbers (0,3), auto, or auto:2"),
    ("run --wait train.py", "--gpus auto:2"),
    ("run --serialize-imports yes train.py", "'auto', 'on', 'off'"),
    ("run --no-python nosuchprogram", "no program 'nosuchprogram'"),
    ("run --no-python --module train.py", "leave one out"),
    ("run --nnodes 0 train.py", "give 1 or more, or MIN:MAX"),
    ("run --nnodes 2:1 train.py", "the smaller first"),
    ("run --nnodes few train.py", "MIN:MAX as in 1:4"),
    ("run --node-rank -1 train.py", "nodes count from 0"),
    ("run --nnodes 2 --node-rank 2 train.py", "give 0 to 1"),
    ("run --master-port 99999999 train.py", "between 1 and 65535"),
    ("run --rdzv-backend c10b train.py", "did you mean 'c10d'?"),
    ("run --max-restarts -1 train.py", "max_restarts"),
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("NUM_GPUS", "GPU_RANK", "NCCL_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "train.py").write_text("print('trained')\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.log").write_text("")
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "half.pkl").write_bytes(b"\x80\x04garbage")
    monkeypatch.setattr(entry, "run_prepared", prepared)
    monkeypatch.setattr(entry, "run", parsed)


def prepared(arguments: Callable[[], list[str]]) -> int:
    """As the real one says it, without the guard: that forks."""
    arguments()
    return 0


def parsed(arguments: list[str]) -> int:
    """What `run` refuses before it starts anything."""
    options.launch_config(options.parse(arguments))
    return 0


@pytest.mark.parametrize(("command", "instead"), WRONG_USES, ids=[use for use, _ in WRONG_USES])
def test_a_wrong_use_is_one_line_with_the_word_to_write_instead(
    command: str, instead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command.split()) == 2
    told = capsys.readouterr()
    lines = [line for line in told.err.splitlines() if line.strip()]
    # What was decided before the mistake was met is said too; the mistake is the last line.
    assert lines[-1].startswith("rankscope: "), lines
    assert instead in lines[-1]
    assert told.out == ""
    assert "Traceback" not in told.err


def test_there_are_more_than_fifty() -> None:
    assert len(WRONG_USES) > 70
    assert len({use for use, _ in WRONG_USES}) == len(WRONG_USES)


def test_errors_have_the_code_of_a_mistake() -> None:
    with pytest.raises(RankscopeError) as refused:
        options.parse(["missing.py"])
    assert refused.value.exit_code == 2
