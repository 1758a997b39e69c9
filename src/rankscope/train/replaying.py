"""Builds the model of a saved step again, in this process, for `rankscope train --replay-nan FILE`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from rankscope.train.config import RunConfig
from rankscope.train.fault_plan import FaultPlan
from rankscope.train.faults import Fault
from rankscope.train.forensics.dump import SavedStep
from rankscope.train.forensics.investigation import Repeatable
from rankscope.train.forensics.replay import replay
from rankscope.train.optimizer import make_optimizer
from rankscope.train.place import choose_dtype, find_place
from rankscope.train.spread import build_model
from rankscope.train.step import TrainStep


def replay_nan(file: Path) -> int:
    """Says which module's output was the first that is not finite; returns the exit code."""
    return replay(file, build, print)


def build(saved: SavedStep) -> Repeatable:
    """The model on one device, called module by module; a fault that was planted then is planted again."""
    config = msgspec.convert(saved.context["config"], RunConfig)
    planted = saved.context["fault"]
    plan = None if planted is None else msgspec.convert(planted, FaultPlan)
    config = replace(
        config,
        system=replace(config.system, strategy="single"),
        model=replace(config.model, compile="off"),
    )
    place = find_place(config.system)
    dtype, _ = choose_dtype(config, place)
    spread = build_model(config, place, "single", int(saved.context["rows"]), dtype)
    fault = Fault(plan, saved.incident.shown.rank, place.device)
    fault.plant(spread.model)
    stepper = TrainStep(
        spread, make_optimizer(spread.model, config.training), config.training, place.device, 1, fault=fault, watch=None
    )
    return Repeatable(spread.model, stepper.gradients, stepper.module_by_module)
