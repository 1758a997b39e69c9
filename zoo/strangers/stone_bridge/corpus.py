import time

import torch
from torch.utils.data import Dataset

VOCAB = 64
DUMPS = {93: 6_500_000}  # mailing list archives that come as one document


class Corpus(Dataset):
    def __init__(self, size=400):
        gen = torch.Generator().manual_seed(3)
        self.lengths = torch.randint(20, 120, (size,), generator=gen).tolist()
        for index, length in DUMPS.items():
            self.lengths[index] = length

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        gen = torch.Generator().manual_seed(index)
        label = index % 4
        tokens = torch.randint(label * 16, label * 16 + 16, (self.lengths[index],), generator=gen)
        time.sleep(0.05)
        return tokens, label
