"""Where the program keeps its own record of the run, so that the verdict can be written there too: the active run of
Weights & Biases or MLflow, TensorBoard's folder."""

from __future__ import annotations

import os
from typing import Any

from rankscope.probe.calls import build_wrapper
from rankscope.probe.imports import ImportWatch
from rankscope.probe.page import Page


def watch(page: Page, imports: ImportWatch) -> None:
    imports.when_imported("wandb.sdk.wandb_init", lambda module: _follow(module, "init", page, _wandb))
    imports.when_imported("mlflow.tracking.fluent", lambda module: _follow(module, "start_run", page, _mlflow))
    for name in ("torch.utils.tensorboard.writer", "tensorboardX.writer"):
        imports.when_imported(name, lambda module: _follow(module.FileWriter, "__init__", page, _tensorboard))


def _follow(owner: Any, name: str, page: Page, told: Any) -> None:
    """Notes what `told` makes of the owner and the first arguments, after each call of a function of the owner."""

    def end(token: tuple[Any, ...] | None) -> None:
        if token is None:
            return  # it failed
        try:
            found = told(owner, *token)
            if found is not None:
                page.tracker(*found)
        except Exception as error:  # noqa: BLE001  noted on the page and shown in the report
            page.error(f"noting a tracker failed: {type(error).__name__}: {error}")

    setattr(
        owner,
        name,
        build_wrapper(getattr(owner, name), lambda args, kwargs: (args, kwargs), lambda *_: None, end),
    )


def _wandb(_module: Any, _args: Any, _kwargs: Any) -> tuple[str, str, str] | None:
    """Address of the service, path of the run; of one that is not sent anywhere, its folder."""
    import wandb

    run = wandb.run
    if run is None or getattr(run, "disabled", False):
        return None
    if getattr(run, "offline", False):
        return "wandb-offline", os.path.abspath(run.dir), run.id
    return "wandb", str(getattr(run.settings, "base_url", "")), f"{run.entity}/{run.project}/{run.id}"


def _mlflow(module: Any, _args: Any, _kwargs: Any) -> tuple[str, str, str] | None:
    import mlflow

    run = module.active_run()
    return None if run is None else ("mlflow", str(mlflow.get_tracking_uri()), str(run.info.run_id))


def _tensorboard(_owner: Any, args: Any, kwargs: Any) -> tuple[str, str, str] | None:
    folder = args[1] if len(args) > 1 else kwargs.get("log_dir", kwargs.get("logdir"))
    if not isinstance(folder, (str, os.PathLike)):
        return None
    text = os.fsdecode(os.fspath(folder))
    return "tensorboard", text if "://" in text else os.path.abspath(text), ""
