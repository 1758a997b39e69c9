from .loader import BatchError, batches

__all__ = ["BatchError", "batches"]
