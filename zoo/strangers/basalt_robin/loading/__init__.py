from .shards import PaddingCollator, SyncedShards, sync

__all__ = ["PaddingCollator", "SyncedShards", "sync"]
