import torch
from torch.utils.data import Dataset


class Spectrograms(Dataset):
    """Synthetic keyword spectrograms with time masking."""

    def __init__(self, n=4800, classes=8):
        self.n, self.classes = n, classes

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        gen = torch.Generator().manual_seed(i)
        label = i % self.classes
        wave = torch.randn(1024, generator=gen) * 0.3
        wave += torch.sin(torch.arange(1024) * (0.05 + 0.04 * label))
        spec = torch.stft(wave, 64, 32, window=torch.hann_window(64), return_complex=True).abs().log1p()
        start = int(torch.randint(0, spec.shape[1] - 4, (1,), generator=gen))
        spec[:, start : start + 4] = 0
        return spec, label
