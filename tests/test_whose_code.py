"""Whose code a file is, by its path alone; and which installed package is the program."""

from __future__ import annotations

from pathlib import Path

import pytest

import rankscope
from rankscope.whose_code import absolute, is_user_file, program_in_stack, program_of

SITE = "/opt/conda/envs/x/lib/python3.11/site-packages/"


@pytest.mark.parametrize(
    "path",
    [
        "/home/me/project/train.py",
        "train.py",
        "../train.py",
        "/home/me/lib/train.py",
        "/home/me/torch/train.py",
        "/home/me/torch/utils/metrics.py",
        "/home/me/transformers/src/transformers/trainer.py",  # pip install -e
        "/opt/venv/src/mymodel/model.py",  # pip install -e git+...
        "/home/me/rankscope/zoo/cases/train.py",
        "/home/me/rankscope_examples/train.py",
        "/home/me/job.zip/train.py",
        "/home/me/job.pex/trainer/main.py",
        "/tmp/ipykernel_4711/1882371.py",
        "<ipython-input-12-0f3a>",
        "<command-3217>",
        "/home/me/project/bin/train",
        "/home/me/ops/fast.pyx",
        "/tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_1/train.py",
        "C:\\Users\\me\\project\\train.py",
    ],
)
def test_the_users_own(path: str) -> None:
    assert is_user_file(path)


@pytest.mark.parametrize(
    "path",
    [
        "",
        SITE + "torch/nn/modules/module.py",
        "site-packages/torch/nn/modules/module.py",
        "/usr/lib/python3/dist-packages/yaml.py",
        "/usr/lib/python3.12/threading.py",
        "/usr/lib64/python3.13t/threading.py",
        "lib/python3.12/threading.py",
        "/opt/pypy/lib/pypy3.10/threading.py",
        "/usr/lib/python312.zip/threading.py",
        "C:\\Python312\\Lib\\threading.py",
        "<frozen importlib._bootstrap>",
        "<frozen runpy>",
        "<string>",
        "<stdin>",
        "<eval_with_key>.12",
        "<attrs generated init data.Batch>",
        "<__array_function__ internals>",
        "<rankscope>",
        "/tmp/torchinductor_me/ab/cabcde.py",
        "/home/me/.cache/huggingface/modules/transformers_modules/falcon/modeling.py",
        "/home/me/.cache/torch/hub/facebookresearch_dino_main/vision.py",
        "/home/me/pytorch/torch/distributed/distributed_c10d.py",  # a checkout of torch
        "/home/me/pytorch/torch/_tensor.py",
        "torch/nn/parallel/distributed.py",
        "pandas/_libs/parsers.pyx",
        "/home/me/.pex/unzipped_pexes/1f/.deps/numpy-2.whl/numpy/core.py",
        "/home/me/.pex/installed_wheels/1f/numpy-2.whl/numpy/core.py",
        "/home/me/job.pex/.bootstrap/pex/pex.py",
        "/opt/conda/bin/torchrun",
        "/home/me/miniconda3/envs/x/bin/accelerate",
        "/home/me/project/.venv/bin/torchrun",
        "/home/me/.local/bin/deepspeed",
        "/home/me/rankscope/src/rankscope/marks.py",
        "/opt/libs/rankscope/probe/calls.py",
        "/opt/libs/rankscope/train/step.py",
    ],
)
def test_not_the_users(path: str) -> None:
    assert not is_user_file(path)


def test_no_file_of_this_package_is_the_users_wherever_it_lies() -> None:
    package = Path(rankscope.__file__).parent
    for folder in (package, Path("/opt/conda/lib/python3.12/site-packages/rankscope")):
        for file in package.rglob("*.py"):
            assert not is_user_file(str(folder / file.relative_to(package)))


def test_an_installed_program_is_the_users_and_its_neighbours_are_not() -> None:
    program = program_of(SITE + "trainer/cli/__main__.py")
    assert program == (SITE + "trainer/",)
    assert is_user_file(SITE + "trainer/loop.py", program)
    assert not is_user_file(SITE + "trainer_extras/loop.py", program)
    assert not is_user_file(SITE + "torch/nn/modules/module.py", program)
    assert program_of(SITE + "single.py") == (SITE + "single.py",)


@pytest.mark.parametrize(
    "file",
    [
        "/home/me/train.py",
        "/usr/lib/python3.11/pdb.py",
        SITE + "accelerate/commands/launch.py",
        SITE + "torch/distributed/run.py",
        SITE + "ipykernel_launcher.py",
        "<frozen runpy>",
        "",
    ],
)
def test_what_runs_other_peoples_scripts_is_not_the_program(file: str) -> None:
    assert program_of(file) == ()


def test_the_trainer_is_the_users_when_it_is_the_program_and_the_rest_of_the_package_never_is() -> None:
    for root in ("/home/me/rankscope/src/", SITE):
        program = program_of(root + "rankscope/train/rank.py")
        assert is_user_file(root + "rankscope/train/loop.py", program)
        for other in ("probe/calls.py", "distributed/setup.py", "marks.py"):
            assert not is_user_file(root + "rankscope/" + other, program)
            assert not is_user_file(root + "rankscope/" + other, (root + "rankscope/",))


def test_a_stack_tells_which_package_was_started() -> None:
    started = [("<frozen runpy>", "_run_module_as_main"), ("<frozen runpy>", "_run_code")]
    module = [*started, (SITE + "trainer/__main__.py", "<module>"), (SITE + "torch/nn/modules/module.py", "forward")]
    assert program_in_stack(module) == (SITE + "trainer/",)
    script = [("/opt/conda/bin/trainer", "<module>"), (SITE + "trainer/cli.py", "main")]
    assert program_in_stack(script) == (SITE + "trainer/",)
    launcher = [("/opt/conda/bin/torchrun", "<module>"), (SITE + "torch/distributed/run.py", "main")]
    assert program_in_stack(launcher) == ()
    runs_script = [*started, (SITE + "sweeper/__main__.py", "<module>"), ("/home/me/train.py", "<module>")]
    assert program_in_stack(runs_script) == ()
    thread = [("/usr/lib/python3.11/threading.py", "_bootstrap"), (SITE + "wandb/sdk/run.py", "poll")]
    assert program_in_stack(thread) == ()


def test_a_relative_path_is_seen_from_where_the_program_was_started() -> None:
    assert absolute("train.py", "/home/me") == "/home/me/train.py"
    assert absolute("../train.py", "/home/me") == "/home/train.py"
    for unchanged in ("/train.py", "<string>", "pandas/_libs/parsers.pyx", ""):
        assert absolute(unchanged, "/home/me") == unchanged
