import random

import torch
from torch.utils.data import Dataset

MAX_LENGTH = 40


class Conversations(Dataset):
    """(question, answer) pairs as token ids."""

    def __init__(self, size):
        rng = random.Random(5)
        self.pairs = []
        for index in range(size):
            pasted = 8 * 44 + 4 <= index < 8 * 44 + 8  # support threads with whole log files in the question
            question = rng.randint(55, 90) if pasted else rng.randint(4, 20)
            self.pairs.append(
                ([rng.randrange(3, 200) for _ in range(question)], [rng.randrange(3, 200) for _ in range(12)])
            )

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        question, answer = self.pairs[i]
        ids = (question + answer)[:MAX_LENGTH]
        labels = ([-100] * len(question) + answer)[:MAX_LENGTH]
        return {"input_ids": ids, "labels": labels}


def collate(rows):
    width = max(len(row["input_ids"]) for row in rows)
    batch = {"input_ids": [], "attention_mask": [], "labels": []}
    for row in rows:
        pad = width - len(row["input_ids"])
        batch["input_ids"].append(row["input_ids"] + [0] * pad)
        batch["attention_mask"].append([1] * len(row["input_ids"]) + [0] * pad)
        batch["labels"].append(row["labels"] + [-100] * pad)
    return {key: torch.tensor(value) for key, value in batch.items()}
