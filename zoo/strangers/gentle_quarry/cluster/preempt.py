import os
import signal
import sys

import torch


class Preemption:
    """Saves the local stage when the scheduler announces the end of the allocation (SIGUSR1)."""

    def __init__(self, stage_module, folder, rank):
        self.module, self.folder, self.rank = stage_module, folder, rank
        self.requested = False
        signal.signal(signal.SIGUSR1, self._on_signal)

    def _on_signal(self, signum, frame):
        self.requested = True

    def check(self, step):
        if not self.requested:
            return
        path = os.path.join(self.folder, f"stage{self.rank}-{step}.pt")
        torch.save({"step": step, "model": self.module.state_dict()}, path)
        print(f"[stage {self.rank}] saved {path}, leaving", flush=True)
        sys.exit(0)
