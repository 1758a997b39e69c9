"""Text to tokens on disk, and from there to batches. The loader is not named here: it needs torch, preparing none."""

from rankscope.train.data.prepared import PreparedDataset, open_prepared
from rankscope.train.data.preparing import prepare

__all__ = ["PreparedDataset", "open_prepared", "prepare"]
