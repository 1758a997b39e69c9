"""`rankscope train`: from the command line to a job of `rankscope run`. Needs no torch until the ranks start."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rankscope.distributed.environment import TIMEOUTS
from rankscope.errors import MissingTorch, UsageError
from rankscope.spelling import Once, mended
from rankscope.terminal_text import harmless
from rankscope.train.config import RunConfig
from rankscope.train.fault_plan import KINDS, FaultKind, FaultPlan, parse_fault

_EPILOG = """\
examples:
  rankscope train --debug                                  a small model, ten steps, two CPU ranks or all GPUs
  rankscope train --preset gpt2-124m --max-steps 2000      a preset, shortened
  rankscope train --config my.yaml --override training.batch_size=4
  rankscope train --debug --fault hang@rank=1,step=5       plant a failure and see the verdict

What follows -- goes to 'rankscope run': rankscope train -- --on-hang stop --nnodes 2 --rdzv-endpoint host:29400
"""


_FOR_RUN: dict[FaultKind, tuple[str, ...]] = {"hang": ("--on-hang", "stop", "--stall-after", "10")}
"""A call that may yet return is only ever a likely hang, reported and watched: game day should end by itself."""


_OUTPUT = ("--no-merge",)
"""Every line of the trainer names its GPU; whoever filters a log by `GPU2:` finds all of that rank."""


def train_command(arguments: list[str]) -> int:
    """The verb."""
    options, for_run = _parse(arguments)
    _refuse_contradictions(options)
    if options.replay_nan is not None:
        return _replay(options.replay_nan)
    from rankscope.train.settings import load_config, render_config

    loaded = load_config(_preset(options), options.config, options.override, named_options(options))
    if options.config is not None and not loaded.uses(options.config):
        print(harmless(f"rankscope: {options.config} changes nothing: it sets no key that counts"), file=sys.stderr)
    if options.show_config:
        sys.stdout.write(render_config(loaded))
        return 0
    config = loaded.config
    if options.plan:
        return _show_plan(config)
    if options.export is not None:
        return _export(config, options.export)
    fault = None if options.fault is None else parse_fault(options.fault, config.training.max_steps)
    _need("torch", "train")
    _refuse_for_run(for_run)
    _refuse_variables()
    from rankscope.launch.entry import run_prepared

    return run_prepared(lambda: _prepared(options, config, fault, for_run))


def _refuse_contradictions(options: argparse.Namespace) -> None:
    """Two wishes of which one would be dropped without a word."""
    ends = {
        "--plan": options.plan,
        "--show-config": options.show_config,
        "--export": options.export is not None,
        "--replay-nan": options.replay_nan is not None,
    }
    asked = [name for name, given in ends.items() if given]
    if len(asked) > 1:
        raise UsageError(f"{asked[0]} and {asked[1]} each do their work and stop: leave one out")
    if options.preset == "":
        raise UsageError("--preset is empty: write --preset production, or leave it out")
    if options.export is not None and str(options.export) == ".":
        raise UsageError("--export names no folder of its own: write --export weights, say")
    if options.nproc_per_node is not None and options.nproc_per_node < 1:
        raise UsageError(
            f"--nproc-per-node {options.nproc_per_node}: a job needs at least 1 rank; leave it out for all GPUs"
        )
    keys = {each.partition("=")[0].strip() for each in options.override}
    for option, (key, _) in named_options(options).items():
        if option.startswith("--") and key in keys:
            raise UsageError(f"{option} and --override {key} say the same thing: leave one out")


def _refuse_for_run(for_run: Sequence[str]) -> None:
    """Mistakes in what follows -- are told before a dataset is prepared for minutes."""
    if not for_run:
        return
    from rankscope.launch import options as of_run

    parsed = of_run.parse([*for_run, "--module", "rankscope.train.rank"])
    if parsed.torch.training_script != "rankscope.train.rank":
        raise UsageError(
            f"what follows -- are options of 'rankscope run', and {parsed.torch.training_script} is none: "
            f"rankscope run {parsed.torch.training_script} runs a program of your own"
        )


def _refuse_variables() -> None:
    """What every rank would refuse, once."""
    from rankscope.distributed.environment import wanted_backend
    from rankscope.distributed.failures import BadEnvironment

    try:
        wanted_backend(os.environ)
    except BadEnvironment as error:
        raise UsageError(str(error)) from error
    gpu = os.environ.get("GPU_RANK", "")
    if gpu and not gpu.isdigit():
        raise UsageError(f"GPU_RANK={gpu} is no number of a GPU: write GPU_RANK=3, or unset it")


def named_options(options: argparse.Namespace) -> dict[str, tuple[str, object]]:
    """The options, and the one variable, that stand for a key of the configuration: name → key and value."""
    name = next((name for name in TIMEOUTS if os.environ.get(name)), "")
    by_hand = any(each.startswith("system.timeout_s=") for each in options.override)
    own = {
        name: ("system.timeout_s", None if by_hand else os.environ.get(name)),
        "--max-steps": ("training.max_steps", options.max_steps),
        "--strategy": ("system.strategy", options.strategy),
        "--resume": ("checkpoint.resume", options.resume),
    }
    return {option: (key, value) for option, (key, value) in own.items() if value is not None}


def _prepared(
    options: argparse.Namespace, config: RunConfig, fault: FaultPlan | None, for_run: Sequence[str]
) -> list[str]:
    """Everything that is done once, before there are ranks; returns the command line for `rankscope run`."""
    from rankscope.launch.folder import make_run_folder
    from rankscope.launch.gpu_choice import choose_gpus
    from rankscope.report import live
    from rankscope.train.plan import RunPlan, write_plan
    from rankscope.train.state.before_start import check_checkpoints

    if options.wait and options.gpus is None:
        raise UsageError("--wait waits for free GPUs: say which with --gpus auto:2")
    if options.gpus is not None:
        choose_gpus(options.gpus, wait=options.wait, say=live.say)
    ranks, why, on_gpus = count_ranks(config, options.nproc_per_node)
    if fault is not None and fault.rank >= ranks and not for_run:
        raise UsageError(f"--fault: there is no rank {fault.rank}; the ranks are 0 to {ranks - 1}")
    live.say(f"{ranks} {'rank' if ranks == 1 else 'ranks'}: {why}")
    check_before_ranks(config, None if for_run else ranks)
    dataset, tokenizer_size = _dataset(config)
    check_checkpoints(config, tokenizer_size)
    folder = make_run_folder(options.run_dir, "train")
    bar = config.logging.progress_bar
    plan = RunPlan(
        config=config,
        dataset=dataset,
        tokenizer_size=tokenizer_size,
        folder=str(folder.resolve()),
        device_word="GPU" if on_gpus else "CPU",
        progress_bar=bar == "on" or (bar == "auto" and sys.stderr.isatty()),
        fault=fault,
    )
    path = folder / "plan.json"
    write_plan(plan, path)
    if fault is not None:
        live.say(f"planted: {fault.kind} on rank {fault.rank} in step {fault.step}")
    if for_run_of(fault):
        live.say(f"with {' '.join(for_run_of(fault))}, so that it ends; what follows -- changes that")
    return [
        *("--nproc-per-node", str(ranks), "--run-dir", str(folder)),
        *_OUTPUT,
        *(("--stages", "on") if options.debug else ()),
        *(("--report",) if config.logging.plots else ()),
        *for_run_of(fault),
        *for_run,
        *("--module", "rankscope.train.rank", str(path.resolve())),
    ]


def for_run_of(fault: FaultPlan | None) -> tuple[str, ...]:
    """Options of `rankscope run` under which a planted fault shows what it should; the user's own come after them."""
    return () if fault is None else _FOR_RUN.get(fault.kind, ())


def count_ranks(config: RunConfig, wanted: int | None) -> tuple[int, str, bool]:
    """How many ranks to start on this machine, why, and whether they have GPUs."""
    import torch

    from rankscope.launch.beforehand import gpus_by_variable

    gpus = torch.cuda.device_count() if config.system.device != "cpu" and torch.cuda.is_available() else 0
    if config.system.device == "cuda" and not gpus:
        raise UsageError("system.device is 'cuda', and no GPU is visible: write system.device=auto or cpu")
    said = "--nproc-per-node"
    if wanted is None and os.environ.get("NUM_GPUS"):
        wanted, said = gpus_by_variable(os.environ["NUM_GPUS"]), "NUM_GPUS"
    if wanted is not None:
        if wanted < 1:
            raise UsageError(f"{said} {wanted}: a job needs at least 1 rank; leave it out for {gpus or 2}")
        if gpus and wanted > gpus:
            raise UsageError(
                f"{said} {wanted} is not possible here: {gpus} GPUs are visible, and each rank needs one; "
                f"write {gpus}, or system.device=cpu"
            )
        if wanted > 1 and config.system.strategy == "single":
            raise UsageError(f"--strategy single is one process, not {wanted}: use ddp")
        return wanted, "asked for", gpus > 0
    if config.system.strategy == "single" or config.system.device_id is not None:
        return (
            1,
            "--strategy single" if config.system.strategy == "single" else "system.device_id names one GPU",
            gpus > 0,
        )
    if gpus:
        return gpus, f"one for each of {gpus} GPUs" if gpus > 1 else "one GPU is visible", True
    return 2, "on the CPU, because no GPU is visible" if config.system.device == "auto" else "on the CPU", False


def check_before_ranks(config: RunConfig, world_size: int | None) -> None:
    """What a rank would find out later, and not every rank: missing packages, and shards that do not come out even.

    `world_size`: None where options of `rankscope run` may add nodes.
    """
    import importlib.util

    for wanted, package in ((config.logging.wandb, "wandb"), (config.logging.tensorboard, "tensorboard")):
        if wanted and importlib.util.find_spec(package) is None:
            raise UsageError(f"logging.{package} needs a package that is missing: pip install {package}")
    size = config.system.shard_size
    if config.system.strategy == "hsdp" and size is not None and world_size is not None and world_size % size:
        raise UsageError(f"system.shard_size={size} does not divide the {world_size} ranks")


def _dataset(config: RunConfig) -> tuple[str | None, int]:
    """Folder and vocabulary of the prepared dataset."""
    if config.data.source == "random":
        return None, config.model.vocab_size or 50304
    from rankscope.report import live
    from rankscope.train.data import prepare

    prepared = prepare(config, live.say)
    return str(Path(prepared.folder).resolve()), prepared.manifest.vocab_size


def _show_plan(config: RunConfig) -> int:
    _need("torch", "train")
    from rankscope.train.memory_plan import plan_text

    # A tokenizer that is not made yet has the size that was asked for.
    size = {"bytes": 256, "bpe": config.data.tokenizer_vocab_size}.get(
        config.data.tokenizer, config.model.vocab_size or 0
    )
    if not size:
        raise UsageError("--plan needs the size of the vocabulary: write model.vocab_size")
    sys.stdout.write(plan_text(config, size))
    return 0


def _replay(file: Path) -> int:
    _need("torch", "train")
    from rankscope.train.forensics import replay

    return replay(file)


def _export(config: RunConfig, to: Path) -> int:
    _need("torch", "train")
    from rankscope.train.state.export import export

    asked = config.checkpoint.resume
    export(Path(config.checkpoint.dir if asked in ("no", "auto") else asked), to, say=print)
    return 0


def _need(module: str, verb: str) -> None:
    import importlib.util

    if importlib.util.find_spec(module) is None:
        raise MissingTorch(verb)


def _preset(options: argparse.Namespace) -> str:
    """The preset that lies beneath --config too."""
    if options.debug and options.preset not in (None, "debug"):
        raise UsageError(f"--debug is --preset debug, and --preset {options.preset} was given too: leave one out")
    if options.debug:
        return "debug"
    preset: str = options.preset or "production"
    return preset


def _parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    for_run: list[str] = []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, for_run = arguments[:at], arguments[at + 1 :]
    return build_parser().parse_args(arguments), for_run


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{mended(message, self)} (see 'rankscope train --help')")


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rankscope train",
        description="Train a language model on all GPUs of this machine, or on two CPU ranks. The job runs under "
        "'rankscope run': when it hangs, dies, slows down or goes NaN, it says why.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = parser.add_argument_group("what to train")
    what.add_argument("--debug", action="store_true", help="the preset 'debug': 2 layers, 10 steps")
    what.add_argument(
        "--preset",
        action=Once,
        metavar="NAME",
        help="a configuration that comes with rankscope, also beneath --config (default: production)",
    )
    what.add_argument("--config", type=Path, action=Once, metavar="FILE", help="JSON (with // comments), YAML or TOML")
    what.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="A.B=C",
        help="change one value, as training.batch_size=4; may be given several times",
    )
    what.add_argument("--max-steps", type=int, metavar="N", help="optimizer steps (training.max_steps)")
    what.add_argument("--resume", metavar="no|auto|PATH", help="go on from a checkpoint (checkpoint.resume)")
    what.add_argument(
        "--export",
        type=Path,
        metavar="DIR",
        help="write the weights of the newest checkpoint, or of --resume PATH, as safetensors; then stop",
    )
    what.add_argument("--show-config", action="store_true", help="print every value and where it came from; then stop")
    what.add_argument(
        "--plan",
        action="store_true",
        help="print parameters and the memory of a GPU for 1, 4 and 8 GPUs and each strategy; then stop",
    )
    where = parser.add_argument_group("where to train")
    where.add_argument("--gpus", metavar="LIST", help="0,3 by number; auto: all that are free; auto:2: the two freest")
    where.add_argument("--wait", action="store_true", help="with --gpus: start once enough of them are free")
    where.add_argument(
        "--nproc-per-node", type=int, metavar="N", help="ranks on this machine (default: its GPUs, or 2 on the CPU)"
    )
    where.add_argument(
        "--strategy",
        choices=["auto", "single", "ddp", "fsdp", "hsdp"],
        help="how ranks share the model (system.strategy)",
    )
    where.add_argument("--run-dir", type=Path, metavar="DIR", help="logs, metrics, pictures, evidence, verdict.json")
    failing = parser.add_argument_group("when it fails")
    failing.add_argument(
        "--fault", action=Once, metavar="KIND@rank=R,step=S", help=f"plant a failure on purpose: {', '.join(KINDS)}"
    )
    failing.add_argument(
        "--replay-nan",
        type=Path,
        metavar="FILE",
        help="run a saved non-finite step again and name the first bad module",
    )
    return parser
