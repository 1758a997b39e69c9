"""The model of a saved step, built again in one process as the rank had it."""

from __future__ import annotations

import dataclasses

import msgspec
import torch

from rankscope.errors import UsageError
from rankscope.train.config import RunConfig
from rankscope.train.fault_plan import FaultPlan
from rankscope.train.faults import Fault
from rankscope.train.forensics.dump import SavedStep
from rankscope.train.forensics.investigation import Repeatable
from rankscope.train.optimizer import make_optimizer
from rankscope.train.place import Place
from rankscope.train.spread import build_model
from rankscope.train.step import TrainStep

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def rebuilt(saved: SavedStep) -> Repeatable:
    """On a GPU where the step was computed on one and there is one; a fault that was planted is planted again."""
    try:
        config = msgspec.convert(saved.context["config"], RunConfig)
        rows, on = int(saved.context["rows"]), str(saved.context["device"])
        dtype = _DTYPES[saved.context["dtype"]]
        fault_plan = msgspec.convert(saved.context["fault"], FaultPlan | None)
    except (KeyError, msgspec.ValidationError) as error:
        raise UsageError(f"the file was written by another version of rankscope: {error}") from error
    device = torch.device("cuda" if on == "cuda" and torch.cuda.is_available() else "cpu")
    place = Place(saved.incident.shown.rank, 0, 1, 1, device)
    plain = dataclasses.replace(config, model=dataclasses.replace(config.model, compile="off"))
    spread = build_model(plain, place, "single", rows, dtype)
    fault = Fault(fault_plan, place.rank, device)
    fault.plant(spread.model)
    optimizer = make_optimizer(spread.model, config.training)
    stepper = TrainStep(spread, optimizer, config.training, device, 1, fault=fault, watch=None)
    return Repeatable(spread.model, stepper.gradients, stepper.module_by_module)
