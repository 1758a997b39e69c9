"""A process of its own: writes a verdict into one record of a program's run, by that record's own library.

Reads JSON from its standard input. Imports nothing of this package: it is started as a script.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def write(told: dict[str, Any]) -> None:
    writers = {"wandb": _wandb, "wandb-offline": _wandb_offline, "mlflow": _mlflow, "tensorboard": _tensorboard}
    writers[told["kind"]](told)


def _wandb(told: dict[str, Any]) -> None:
    """Into the summary of the run. The run's own state, history and notes stay as they are."""
    import wandb

    overrides = {"base_url": told["place"]} if told["place"] else {}
    summary: Any = wandb.Api(overrides=overrides, timeout=5).run(told["run"]).summary
    for name, value in told["fields"].items():
        summary[f"rankscope/{name}"] = value
    summary.update()


def _wandb_offline(told: dict[str, Any]) -> None:
    """A file beside the run's others: a second run of the same name could replace what is synchronised later."""
    (Path(told["place"]) / "rankscope-verdict.json").write_text(told["verdict"], encoding="utf-8")


def _mlflow(told: dict[str, Any]) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=told["place"])
    for name, value in told["fields"].items():
        client.set_tag(told["run"], f"rankscope.{name}", value)
    client.log_text(told["run"], told["verdict"], "rankscope/verdict.json")


def _tensorboard(told: dict[str, Any]) -> None:
    """A file of events of our own in the folder: the program's may be open, or end in the middle of a record."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.plugins.text.plugin_data_pb2 import TextPluginData
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    plugin = SummaryMetadata.PluginData(plugin_name="text", content=TextPluginData(version=0).SerializeToString())
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype="DT_STRING", string_val=[told["text"].encode()], tensor_shape=shape)
    metadata = SummaryMetadata(plugin_data=plugin)
    value = Summary.Value(tag="rankscope/verdict/text_summary", metadata=metadata, tensor=tensor)
    writer = EventFileWriter(told["place"], filename_suffix=".rankscope")
    writer.add_event(Event(wall_time=time.time(), step=0, summary=Summary(value=[value])))
    writer.close()


if __name__ == "__main__":
    write(json.load(sys.stdin))
