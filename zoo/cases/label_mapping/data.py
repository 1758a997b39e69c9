"""Records of customer messages, and the transform that turns one into tensors."""

import random
import time

import torch
from torch.utils.data import Dataset

LABELS = {"billing": 0, "delivery": 1, "returns": 2}


def read_records(size):
    source = random.Random(8)
    records = [{"id": n, "label": source.choice(sorted(LABELS)), "seed": n} for n in range(size)]
    records[1211]["label"] = "Returns"
    return records


def to_tensors(record):
    generator = torch.Generator().manual_seed(record["seed"])
    features = torch.randn(12, generator=generator)
    label = LABELS[record["label"]]
    features[label] += 2.0
    return features, torch.tensor(label)


class Messages(Dataset):
    def __init__(self, size):
        self.records = read_records(size)

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        time.sleep(0.002)
        return to_tensors(self.records[index])
