from .loader import ClipDataset
from .staging import stage

__all__ = ["ClipDataset", "stage"]
