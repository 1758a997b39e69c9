"""Runs that several tests look at, each from another side: whichever asks first makes it, in whatever process."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Ended, Rankscope

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
LIGHTNING = EXAMPLES / "lightning_wandb.py"


def needs(*packages: str) -> None:
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Rankscope], Ended]) -> Ended:
    """What `make` gives, in a folder of that name; whoever comes meanwhile waits. After an error the next one tries."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    kept = folder / "ended.pickle"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            launcher = Rankscope(folder)
            try:
                kept.write_bytes(pickle.dumps(make(launcher)))
            finally:
                launcher.end()
        ended: Ended = pickle.loads(kept.read_bytes())
    return ended


@pytest.fixture
def lightning_run(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """The example with Lightning and W&B, to its end."""
    needs("lightning", "wandb", "tokenizers")

    def make(rankscope: Rankscope) -> Ended:
        options = ("--max_steps", 3, "--num_workers", 0, "--batch_size", 8, "--root", rankscope.folder / "logs")
        return rankscope.run("--stages", "on", LIGHTNING, *options, timeout_s=300)

    return once(tmp_path_factory, "lightning", make)


@pytest.fixture
def lightning_try(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """One batch of it, with variables of which one is secret."""
    needs("lightning", "wandb", "tokenizers")

    def make(rankscope: Rankscope) -> Ended:
        options = ("--fast_dev_run", 1, "--root", rankscope.folder / "logs")
        env = {"WANDB_PROJECT": "rows", "HF_HOME": "/nowhere", "WANDB_API_KEY": "a-secret-that-must-not-be-told"}
        return rankscope.run("--stages", "on", LIGHTNING, *options, env=env, timeout_s=300)

    return once(tmp_path_factory, "lightning-try", make)
