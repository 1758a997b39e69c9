import json
import threading
import time

from lightning.pytorch.loggers.logger import Logger, rank_zero_experiment
from lightning.pytorch.utilities import rank_zero_only


class JsonlLogger(Logger):
    """Buffers metrics and appends them to a JSON-lines file; safe to use from callbacks' threads."""

    def __init__(self, path, flush_every=18):
        super().__init__()
        self._path = path
        self._rows = []
        self._lock = threading.Lock()
        self._flush_every = flush_every
        self._t0 = time.monotonic()
        self._best = float("inf")

    @property
    def name(self):
        return "jsonl"

    @property
    def version(self):
        return "0"

    @property
    @rank_zero_experiment
    def experiment(self):
        return self

    @rank_zero_only
    def log_hyperparams(self, params, *args, **kwargs):
        with self._lock:
            self._rows.append({"hparams": {k: str(v) for k, v in dict(params).items()}})

    @rank_zero_only
    def log_metrics(self, metrics, step=None):
        row = {"step": step, "t": round(time.monotonic() - self._t0, 3)}
        row.update({k: float(v) for k, v in metrics.items()})
        with self._lock:
            self._rows.append(row)
            if row.get("val_loss", self._best) < self._best:
                self._best = row["val_loss"]
                self._rows.append({"best": self._best, "step": step})
        if len(self._rows) >= self._flush_every:
            self.flush()

    @rank_zero_only
    def log_text(self, text, step):
        with self._lock:
            self._rows.append({"step": step, "text": text})
            if len(self._rows) >= self._flush_every:
                self.flush()

    def flush(self):
        self._lock.acquire()
        rows, self._rows = self._rows, []
        self._lock.release()
        with open(self._path, "a") as f:
            for row in rows:
                f.write(json.dumps(row) + "\n")

    @rank_zero_only
    def finalize(self, status):
        self.flush()
