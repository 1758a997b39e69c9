"""The well-known calls that set up a training job, and what each is called as a stage."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from rankscope.probe import comm_timeout
from rankscope.probe.imports import ImportWatch
from rankscope.probe.stage_wrappers import Call, wrap_attribute
from rankscope.probe.stages import StageBook
from rankscope.probe.status_watch import tell_changes, tell_status, tell_status_after, tell_variables

_LONGEST_NOTE = 80
_MEETING = ("store", "rank", "world_size")
BY_ARGUMENTS = "by arguments"
"""Of init_process_group: the ranks do not find each other by the variables alone."""


def watch_calls(book: StageBook, imports: ImportWatch) -> None:
    """Wraps each of the calls once the module it is in has been imported."""
    for module, path, call in _calls():
        imports.when_imported(module, _installer(book, path, call))


def _installer(book: StageBook, path: str, call: Call) -> Callable[[ModuleType], None]:
    def install(module: ModuleType) -> None:
        owner: Any = module
        *outer, name = path.split(".")
        for part in outer:
            owner = getattr(owner, part, None)
        if owner is not None:
            wrap_attribute(book, owner, name, call)

    return install


def _calls() -> list[tuple[str, str, Call]]:
    """Module, name inside it, stage."""
    arguments = Call("parsing the arguments", "Args parsed", "arguments", announce=False)
    folder = Call("making a directory", "Directory ready", "directory", announce=False, from_user=True, note=_path)
    tokenizer = Call("{cls}.from_pretrained", "Tokenizer loaded", "tokenizer", note=_source)
    model = Call("{cls}.from_pretrained", "Model loaded", "model", note=_source)
    made_model = Call("{cls}.from_config", "Model created", "model")
    logger = Call("{cls}.__init__", "{cls} ready", "logger")
    saved = Call("saving a checkpoint", "Checkpoint saved", "save", note=_target)
    loaded = Call("loading a checkpoint", "Checkpoint loaded", "load", announce=False, note=_source_file)
    found = [
        ("argparse", "ArgumentParser.parse_known_args", arguments),
        ("jsonargparse._core", "ArgumentParser.parse_args", arguments),
        ("click.core", "Command.parse_args", arguments),
        ("hydra.core.utils", "run_job", Call("the hydra job", "Job finished", "job", before=_composed)),
        ("os", "makedirs", folder),
        ("pathlib", "Path.mkdir", folder),
        ("transformers.tokenization_utils_base", "PreTrainedTokenizerBase.from_pretrained", tokenizer),
        ("transformers.models.auto.tokenization_auto", "AutoTokenizer.from_pretrained", tokenizer),
        *(
            ("tokenizers", f"Tokenizer.{name}", Call(f"Tokenizer.{name}", "Tokenizer loaded", "tokenizer", note=_text))
            for name in ("from_file", "from_pretrained", "from_str", "from_buffer")
        ),
        ("transformers.modeling_utils", "PreTrainedModel.from_pretrained", model),
        ("transformers.models.auto.auto_factory", "_BaseAutoModelClass.from_pretrained", model),
        ("transformers.modeling_utils", "PreTrainedModel._from_config", made_model),
        ("transformers.models.auto.auto_factory", "_BaseAutoModelClass.from_config", made_model),
        ("datasets.load", "load_dataset", Call("load_dataset", "Dataset loaded", "dataset", note=_text)),
        ("datasets.load", "load_from_disk", Call("load_from_disk", "Dataset loaded", "dataset", note=_text)),
        ("datasets.arrow_dataset", "Dataset.map", Call("Dataset.map", "Dataset mapped", "dataset")),
        ("wandb.sdk.wandb_init", "init", Call("wandb.init", "wandb run ready", "logger")),
        ("torch.utils.tensorboard.writer", "SummaryWriter.__init__", logger),
        (
            "torch.distributed.distributed_c10d",
            "init_process_group",
            Call(
                "init_process_group",
                "Process group ready",
                "process group",
                note=_backend,
                before=_changes,
                failed=tell_variables,
            ),
        ),
        (
            "rankscope.distributed.setup",
            "_set_up",
            Call(
                "setup_distributed",
                "Distributed set-up done",
                "set-up",
                announce=False,
                before=_changes,
                failed=tell_variables,
            ),
        ),
        (
            "torch.nn.parallel.distributed",
            "DistributedDataParallel.__init__",
            Call("DistributedDataParallel.__init__", "DDP ready", "wrapping"),
        ),
        (
            "torch.distributed.fsdp.fully_sharded_data_parallel",
            "FullyShardedDataParallel.__init__",
            Call("FullyShardedDataParallel.__init__", "FSDP ready", "wrapping"),
        ),
        (
            "torch.distributed.fsdp._fully_shard._fully_shard",
            "fully_shard",
            Call("fully_shard", "Module sharded", "wrapping", announce=False, note=_class_of_first),
        ),
        ("torch.serialization", "save", saved),
        ("torch.serialization", "load", loaded),
        ("torch.distributed.checkpoint.state_dict_saver", "save", saved),
        ("torch.distributed.checkpoint.state_dict_saver", "async_save", saved),
        ("torch.distributed.checkpoint.state_dict_loader", "load", loaded),
        (
            "transformers.trainer",
            "Trainer.__init__",
            Call("{cls}.__init__", "Trainer ready", "trainer", before=_trainer_status, after=tell_status_after),
        ),
        ("transformers.trainer", "Trainer.train", _training("Trainer.train")),
        (
            "accelerate.accelerator",
            "Accelerator.__init__",
            Call("{cls}.__init__", "Accelerator configured", "accelerator"),
        ),
        (
            "accelerate.accelerator",
            "Accelerator.prepare",
            Call("Accelerator.prepare", "Prepared by accelerate", "prepare"),
        ),
        ("deepspeed", "initialize", Call("deepspeed.initialize", "DeepSpeed ready", "wrapping")),
    ]
    for package in ("lightning.pytorch", "pytorch_lightning"):
        found += _lightning(package, logger)
    return found


def _lightning(package: str, logger: Call) -> list[tuple[str, str, Call]]:
    trainer = f"{package}.trainer.trainer"
    loggers = {
        "wandb": "WandbLogger",
        "tensorboard": "TensorBoardLogger",
        "csv_logs": "CSVLogger",
        "mlflow": "MLFlowLogger",
        "comet": "CometLogger",
        "neptune": "NeptuneLogger",
    }
    return [
        *((f"{package}.loggers.{module}", f"{name}.__init__", logger) for module, name in loggers.items()),
        (
            f"{package}.trainer.connectors.accelerator_connector",
            "_AcceleratorConnector.__init__",
            # A strategy that the program made itself is the same configuration, told when it was made.
            Call(
                "choosing accelerator and strategy", "Accelerator configured", "accelerator", announce=False, once=True
            ),
        ),
        (
            trainer,
            "Trainer.__init__",
            Call(
                "{cls}.__init__",
                "{cls} ready",
                "trainer",
                note=_strategy,
                before=_before_trainer,
                after=tell_status_after,
            ),
        ),
        (trainer, "Trainer.fit", _training("Trainer.fit")),
        *(
            (trainer, f"Trainer.{name}", Call(f"Trainer.{name}", f"Trainer.{name} finished", "evaluation"))
            for name in ("validate", "test", "predict")
        ),
    ]


def _training(label: str) -> Call:
    return Call(label, "Training finished", "training", after=lambda book, _result: book.note_finished())


def _trainer_status(book: StageBook, frame: FrameType, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    tell_status(book, frame, "before the trainer is made")


def _changes(book: StageBook, frame: FrameType, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    tell_changes(book, frame)


def _before_trainer(book: StageBook, frame: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    tell_status(book, frame, "before the trainer is made")
    _callbacks(book, frame, args, kwargs)


def _callbacks(book: StageBook, frame: FrameType, _args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A callback's class has nothing in common with others that could be listened to: seen when handed over."""
    given = kwargs.get("callbacks")
    for callback in given if isinstance(given, (list, tuple)) else [given] if given is not None else []:
        book.mark(f"{type(callback).__name__} ready", "callback", frame)


def _composed(book: StageBook, frame: FrameType, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    book.mark("Args parsed", "arguments", frame, note="hydra")


def _strategy(_args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    strategy = kwargs.get("strategy", "auto")
    return f"strategy={strategy if isinstance(strategy, str) else type(strategy).__name__}"


def _backend(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    backend = args[0] if args else kwargs.get("backend")
    named = f"backend={backend}"[:_LONGEST_NOTE] if backend else ""
    method = args[1] if len(args) > 1 else kwargs.get("init_method")
    by_hand = method not in (None, "env://") or len(args) > 2 or any(kwargs.get(name) is not None for name in _MEETING)
    parts = (named, comm_timeout.told(kwargs.get("timeout")), BY_ARGUMENTS if by_hand else "")
    return ", ".join(filter(None, parts))


def _text(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The first argument where it is a short text: a name or a path, never data."""
    first = args[0] if args else next(iter(kwargs.values()), "")
    return _short(first) if isinstance(first, (str, os.PathLike)) else ""


def _path(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The last part of a path, however long the whole is."""
    first = args[0] if args else next(iter(kwargs.values()), "")
    if not isinstance(first, (str, os.PathLike)) or not os.fspath(first):
        return ""
    return _short(os.path.basename(os.path.normpath(os.fspath(first))))


def _source(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return _text(args[1:], kwargs)


def _source_file(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return _text(args, kwargs)


def _target(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    second = args[1] if len(args) > 1 else kwargs.get("f", kwargs.get("checkpoint_id", ""))
    return _short(second) if isinstance(second, (str, os.PathLike)) else ""


def _class_of_first(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> str:
    return type(args[0]).__name__ if args else ""


def _short(value: str | os.PathLike[str]) -> str:
    text = os.fspath(value)
    text = text if isinstance(text, str) else os.fsdecode(text)
    return text if len(text) <= _LONGEST_NOTE and "\n" not in text else ""
