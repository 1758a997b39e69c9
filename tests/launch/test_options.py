"""Every option of torchrun is accepted with the same meaning, and ours stand beside them."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import run as torchrun

from rankscope.errors import UsageError
from rankscope.launch import options

OURS = {
    "run_dir",
    "on_hang",
    "stall_after",
    "no_probe",
    "json",
    "report",
    "stages",
    "no_merge",
    "prefix",
    "board",
    "page",
    "serialize_imports",
    "memory_limit",
    "low_memory",
    "comm_debug",
    "comm_timeout",
    "node_key_file",
    "gpus",
    "on_nan",
    "on_corrupt",
    "wait",
    "grace",
    "restart_always",
    "notify",
    "retry_codes",
    "lang",
}


def torch_options() -> list[argparse.Action]:
    return [action for action in torchrun.get_args_parser()._actions if action.option_strings and action.dest != "help"]


def torch_spellings() -> list[tuple[argparse.Action, str]]:
    return [(action, spelling) for action in torch_options() for spelling in action.option_strings]


def sample(action: argparse.Action) -> list[str]:
    """Values for the command line that the action takes and that are not its default."""
    if action.nargs == 0:
        return []
    if action.choices is not None:
        return [next(str(choice) for choice in action.choices if choice != action.default)]
    return {int: ["3"], float: ["2.5"]}.get(action.type, ["2:4"])  # type: ignore[call-overload, no-any-return]


def both(arguments: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What torchrun and we make of a command line, without what only we know."""
    expected = vars(torchrun.get_args_parser().parse_args(arguments))
    got = vars(options.build_parser().parse_args(arguments))
    return expected, {name: value for name, value in got.items() if name not in OURS}


@pytest.mark.parametrize(("action", "spelling"), torch_spellings(), ids=[spelling for _, spelling in torch_spellings()])
def test_each_option_of_torchrun_is_parsed_alike(action: argparse.Action, spelling: str) -> None:
    expected, got = both([spelling, *sample(action), "train.py", "--lr", "1"])
    assert got == expected
    assert got[action.dest] != action.default
    if action.nargs is None and spelling.startswith("--"):
        assert both([f"{spelling}={sample(action)[0]}", "train.py"])[1][action.dest] == got[action.dest]


def test_all_options_of_torchrun_together_are_parsed_alike() -> None:
    arguments = [word for action in torch_options() for word in (action.option_strings[-1], *sample(action))]
    expected, got = both([*arguments, "train.py"])
    assert got == expected


def test_our_options_take_no_name_of_torchrun() -> None:
    theirs = torchrun.get_args_parser()._actions
    mine = [action for action in options.build_parser()._actions if action.dest in OURS]
    assert {action.dest for action in mine} == OURS
    assert not {action.dest for action in theirs} & OURS
    spellings = {spelling for action in theirs for spelling in action.option_strings}
    assert not spellings & {spelling for action in mine for spelling in action.option_strings}


def abbreviations() -> list[str]:
    """Every shortened option that torchrun takes for exactly one of its own."""
    known = [spelling for _, spelling in torch_spellings() if spelling.startswith("--")]
    short = {spelling[:length] for spelling in known for length in range(3, len(spelling))}
    return sorted(text for text in short if sum(spelling.startswith(text) for spelling in known) == 1)


def test_abbreviations_that_torchrun_takes_mean_the_same() -> None:
    by_spelling = {spelling: action for action, spelling in torch_spellings()}
    assert "--nproc-p" in abbreviations()
    different = []
    for text in abbreviations():
        action = next(action for spelling, action in by_spelling.items() if spelling.startswith(text))
        try:
            expected, got = both([text, *sample(action), "train.py"])
        except UsageError as error:
            different.append(f"{text}: {error}")
        else:
            assert got == expected
    assert different == []


def test_our_options_can_be_abbreviated_too() -> None:
    parsed = options.build_parser().parse_args(["--stall", "9", "--on-h", "report", "train.py"])
    assert parsed.stall_after == 9.0
    assert parsed.on_hang == "report"


@pytest.mark.parametrize("action", torch_options(), ids=lambda action: str(action.dest))
def test_environment_variables_of_torchrun_are_defaults(
    action: argparse.Action, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = "1" if action.nargs == 0 else sample(action)[0]
    monkeypatch.setenv(f"PET_{action.dest.upper()}", value)
    expected, got = both(["train.py"])
    assert got == expected


def test_environment_variable_reaches_the_launch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = write_script(tmp_path)
    monkeypatch.setenv("PET_NPROC_PER_NODE", "3")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    config, _, _ = options.launch_config(options.parse([script]))
    assert config.nproc_per_node == 3


def test_everything_after_the_script_is_the_scripts(tmp_path: Path) -> None:
    script = write_script(tmp_path)
    rest = [
        "--run-dir", "x", "--json", "--no-probe", "--nproc-per-node", "7", "--on-hang=bogus", "--", "-h", "--help",
    ]  # fmt: skip
    parsed = options.parse(["--nproc-per-node", "2", script, *rest])
    assert parsed.torch.training_script_args == rest
    assert parsed.torch.nproc_per_node == "2"
    assert (parsed.run_dir, parsed.json, parsed.probe, parsed.on_hang) == (None, False, True, "auto")
    assert (parsed.on_nan, parsed.on_corrupt) == ("report", "report")
    expected, got = both(["--nproc-per-node", "2", script, *rest])
    assert got == expected


def test_our_options_before_the_script_are_ours(tmp_path: Path) -> None:
    script = write_script(tmp_path)
    given = ["--run-dir", "out", "--json", "--no-probe", "--on-hang", "stop", "--stall-after", "2.5"]
    parsed = options.parse([*given, script, "a"])
    assert (parsed.run_dir, parsed.json, parsed.probe) == (Path("out"), True, False)
    assert (parsed.on_hang, parsed.stall_after_s) == ("stop", 2.5)
    assert parsed.torch.training_script_args == ["a"]
    assert options.parse(["--stall-after", "auto", script]).stall_after_s is None


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--standalone"],
        ["--nproc-per-node=2"],
        ["--nproc-per-node=cpu", "--max-restarts=2", "--monitor-interval=0.5"],
        ["--master-port=29777", "--master-addr=127.0.0.2"],
        ["--nnodes=2", "--node-rank=1", "--master-addr=127.0.0.1"],
        ["--nnodes=1:3", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=job"],
        ["--rdzv-backend=c10d", "--rdzv-endpoint=h:1", "--rdzv-conf=timeout=5,join_timeout=7"],
        ["--redirects=3", "--tee=0:1,1:2", "--local-ranks-filter=0,1", "--role=trainer"],
        ["--no-python"],
        ["--module"],
        ["--run-path"],
        ["--start-method=fork", "--local-addr=127.0.0.1"],
        ["--nproc-per-node=auto", "--rdzv-backend=static", "--rdzv-endpoint=127.0.0.1:29778"],
        ["--nproc-per-node=2", "--virtual-local-rank", "--event-log-handler=console"],
        ["--signals-to-handle=SIGTERM,SIGUSR1", "--shutdown-timeout=7"],
        ["--duplicate-stdout-filters=loss", "--duplicate-stderr-filters=Error"],
    ],
    ids=" ".join,
)
def test_the_job_is_launched_as_torchrun_would(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "torch.utils" if "--module" in arguments else write_script(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    expected = torchruns_launch([*arguments, script, "--lr", "1"], monkeypatch)
    config, entry, entry_arguments = options.launch_config(options.parse([*arguments, script, "--lr", "1"]))
    in_a_fresh_interpreter = (sys.executable, ["-u", "-m", "rankscope.launch.run_path", *expected[2]])
    wanted = in_a_fresh_interpreter if "--run-path" in arguments else (expected[1], expected[2])
    assert (entry, entry_arguments) == wanted
    differences = {
        field.name: (getattr(config, field.name), getattr(expected[0], field.name))
        for field in dataclasses.fields(config)
        if field.name != "logs_specs" and getattr(config, field.name) != getattr(expected[0], field.name)
    }
    # A name that nobody gave is made up anew for every job.
    assert set(differences) <= ({"run_id"} if config.rdzv_endpoint == "localhost:0" else set())
    for attribute in ("_redirects", "_tee", "_local_ranks_filter"):
        assert getattr(config.logs_specs, attribute) == getattr(expected[0].logs_specs, attribute)


def torchruns_launch(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, str | Callable[..., Any], list[str]]:
    """What `torchrun` hands over to elastic."""
    seen: list[tuple[Any, Any, list[str]]] = []

    def elastic_launch(config: Any, entrypoint: Any) -> Callable[..., None]:
        return lambda *entry_arguments: seen.append((config, entrypoint, list(entry_arguments)))

    with monkeypatch.context() as patch:
        patch.setattr(torchrun, "elastic_launch", elastic_launch)
        patch.setattr("torch.multiprocessing._set_thread_name", lambda _name: None)
        torchrun.run(torchrun.get_args_parser().parse_args(arguments))  # type: ignore[no-untyped-call]
    return seen[0]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "no script to run"),
        (["--nproc-per-node", "0", "SCRIPT"], "at least 1"),
        (["--nproc-per-node", "-3", "SCRIPT"], "at least 1"),
        (["--nproc-per-node", "many", "SCRIPT"], "many"),
        (["--nproc-per-node", "gpu", "SCRIPT"], "Cuda"),
        (["--nnodes", "0", "SCRIPT"], "nodes"),
        (["--nnodes", "2:1", "SCRIPT"], "nodes"),
        (["--nnodes", "1:2:3", "SCRIPT"], "1:2:3"),
        (["--nnodes", "two", "SCRIPT"], "two"),
        (["--max-restarts", "-1", "SCRIPT"], "max_restarts"),
        (["--max-restarts", "x", "SCRIPT"], "max-restarts"),
        (["--local-ranks-filter", "a", "SCRIPT"], "local_ranks_filter"),
        (["--logs-specs", "nowhere", "SCRIPT"], "nowhere"),
        (["--stall-after", "-1", "SCRIPT"], "-1"),
        (["--stall-after", "nan", "SCRIPT"], "nan"),
        (["--stall-after", "soon", "SCRIPT"], "soon"),
        (["--on-hang", "pray", "SCRIPT"], "pray"),
        (["--no-such-option", "SCRIPT"], "no-such-option"),
        (["--no-python", "--module", "SCRIPT"], "--module"),
        (["missing.py"], "missing.py"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_a_mistake_is_a_usage_error_that_names_it(arguments: list[str], word: str, tmp_path: Path) -> None:
    script = write_script(tmp_path)
    with pytest.raises(UsageError) as caught:
        options.launch_config(options.parse([script if word == "SCRIPT" else word for word in arguments]))
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def write_script(folder: Path) -> str:
    path = folder / "train.py"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "page", "rest"),
    [
        (["--page"], ("127.0.0.1", 0), []),
        (["--page", "8080"], ("127.0.0.1", 8080), []),
        (["--page=8080"], ("127.0.0.1", 8080), []),
        (["--page", "0.0.0.0:8080"], ("0.0.0.0", 8080), []),
        (["--page", "[::1]:8080"], ("::1", 8080), []),
        (["--page", "--json"], ("127.0.0.1", 0), []),
        ([], None, ["--page", "1"]),
        (["--page"], ("127.0.0.1", 0), ["--page", "train.py", "--json"]),
    ],
)
def test_port_of_the_page_may_be_left_out(
    arguments: list[str], page: tuple[str, int] | None, rest: list[str], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.touch()
    chosen = options.parse([*arguments, str(script), *rest])
    assert chosen.page == page
    assert (chosen.torch.training_script, chosen.torch.training_script_args) == (str(script), rest)


def test_page_that_is_no_port_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    with pytest.raises(UsageError, match="--page 99999: give a port up to 65535"):
        options.parse(["--page=99999", str(tmp_path / "train.py")])
