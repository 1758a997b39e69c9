#!/usr/bin/env python
"""Finds grazing patterns in collar data with a small BERT; snapshots are shipped to the field station."""
import argparse
import json
import os
import queue
import shutil
import threading
import time
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import (BertConfig, BertForSequenceClassification, Trainer, TrainerCallback,
                          TrainingArguments, set_seed)


class Collars(Dataset):
    def __init__(self, count=3000, length=20):
        gen = torch.Generator().manual_seed(3)
        self.ids = torch.randint(5, 80, (count, length), generator=gen)
        self.labels = (self.ids[:, :4].sum(1) > 4 * 42).long()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        time.sleep(0.003)
        return {"input_ids": self.ids[i], "labels": self.labels[i]}


class Shipper:
    """Copies snapshots to the outbox in the background and keeps its manifest."""

    def __init__(self, outbox: Path):
        self.outbox = outbox
        self.outbox.mkdir(parents=True, exist_ok=True)
        self.manifest_lock = threading.Lock()
        self.manifest: dict[str, dict] = {}
        self.jobs: queue.Queue = queue.Queue()
        threading.Thread(target=self.work, name="shipper", daemon=True).start()

    def add(self, path: Path, step: int):
        with self.manifest_lock:
            self.manifest[path.name] = {"step": step, "state": "queued", "bytes": path.stat().st_size}
            (self.outbox / "manifest.json").write_text(json.dumps(self.manifest, indent=1))
        self.jobs.put(path)

    def work(self):
        while True:
            path = self.jobs.get()
            try:
                self.ship(path)
            except OSError as e:
                print(f"upload failed, will be sent with the next one: {e}", flush=True)

    def ship(self, path: Path):
        time.sleep(1.2)  # the link to the station is slow
        self.manifest_lock.acquire()
        target = shutil.copy2(path, self.outbox / path.name)
        self.manifest[path.name].update(state="sent", target=str(target))
        self.manifest_lock.release()


class Snapshots(TrainerCallback):
    def __init__(self, folder: Path, every: int, keep: int):
        self.folder, self.every, self.keep = folder, every, keep
        self.shipper = None
        self.saved: list[Path] = []

    def on_train_begin(self, args, state, control, **_):
        if state.is_world_process_zero:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.shipper = Shipper(self.folder / "outbox")

    def on_step_end(self, args, state, control, model=None, **_):
        if self.shipper is None or state.global_step % self.every:
            return
        path = self.folder / f"snapshot-{state.global_step:05d}.pt"
        torch.save({k: v.half() for k, v in model.state_dict().items()}, path)
        self.saved.append(path)
        self.shipper.add(path, state.global_step)
        print(f"snapshot {path.name}", flush=True)
        # nights are short on disk space: fewer files are kept late in the run
        keep = self.keep if state.global_step < 120 else 0
        while len(self.saved) > keep:
            self.saved.pop(0).unlink(missing_ok=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--output", type=Path, default=Path("/tmp/meadow"))
    ap.add_argument("--every", type=int, default=40)
    ap.add_argument("--keep", type=int, default=2)
    ap.add_argument("--max-steps", type=int, default=240)
    opts = ap.parse_args()

    torch.set_num_threads(1)
    set_seed(21)
    config = BertConfig(vocab_size=80, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                        intermediate_size=64, max_position_embeddings=32, num_labels=2)
    args = TrainingArguments(output_dir=str(opts.output), use_cpu=True, ddp_backend="gloo",
                             max_steps=opts.max_steps, per_device_train_batch_size=8, learning_rate=5e-4,
                             logging_steps=50, save_strategy="no", report_to=[], disable_tqdm=True,
                             ddp_find_unused_parameters=False)
    trainer = Trainer(model=BertForSequenceClassification(config), args=args, train_dataset=Collars(),
                      callbacks=[Snapshots(opts.output / "snapshots", opts.every, opts.keep)])
    print(f"rank {os.environ.get('RANK', '0')} of {trainer.args.world_size} ready", flush=True)
    trainer.train()
    print(f"rank {os.environ.get('RANK', '0')} finished", flush=True)


if __name__ == "__main__":
    main()
