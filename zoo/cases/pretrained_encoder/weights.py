"""Fetches pretrained weights into a folder that all ranks of a machine share."""

import io
import time
from pathlib import Path

import torch
from torch import nn


def encoder():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))


def download(path, chunk=4096):
    """Writes the file piece by piece, as it comes in."""
    torch.manual_seed(1)
    buffer = io.BytesIO()
    torch.save(encoder().state_dict(), buffer)
    blob = buffer.getvalue()
    with open(path, "wb") as file:
        for start in range(0, len(blob), chunk):
            file.write(blob[start : start + chunk])
            file.flush()
            time.sleep(0.05)


def pretrained(folder, rank):
    path = Path(folder) / "encoder.pt"
    time.sleep(0.4 * rank)  # not all at the server at once
    if not path.exists():
        print(f"rank {rank} downloads {path.name}", flush=True)
        download(path)
    model = encoder()
    model.load_state_dict(torch.load(path))
    return model
