import os
import time

import torch
from transformers import TrainerCallback


class ExportBest(TrainerCallback):
    """After each save the first process writes a deployable export of the model."""

    def __init__(self, out_dir, seconds):
        self.out_dir = out_dir
        self.seconds = seconds

    def on_save(self, args, state, control, model=None, **kwargs):
        if not state.is_world_process_zero:
            return
        print(f"exporting at step {state.global_step}", flush=True)
        os.makedirs(self.out_dir, exist_ok=True)
        for part, (name, tensor) in enumerate(model.state_dict().items()):
            torch.save(tensor.half(), os.path.join(self.out_dir, f"{part:03d}.pt"))
        time.sleep(self.seconds)
        print("export written", flush=True)
