import os
import time

import numpy as np
import torch
from torch.utils.data import Dataset


class ClipDataset(Dataset):
    def __init__(self, folder, clips, per_bundle):
        self.folder = folder
        self.clips = clips
        self.per_bundle = per_bundle
        self.open_bundles = {}

    def __len__(self):
        return self.clips

    def _bundle(self, number):
        if number not in self.open_bundles:
            path = os.path.join(self.folder, f"bundle{number}")
            while not os.path.exists(path + ".ok"):
                time.sleep(0.2)
            self.open_bundles[number] = np.load(path + ".npy")
        return self.open_bundles[number]

    def __getitem__(self, i):
        clip = self._bundle(i // self.per_bundle)[i % self.per_bundle]
        return torch.from_numpy(clip), torch.tensor(float(abs(clip).mean()))
