"""Pretrains a small model on letters from the harbour archive, rows served by records.py."""
import argparse
import os
import socket
import struct
import time
import zlib

import numpy as np
import torch
from torch.utils.data import Dataset, SequentialSampler
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import records


class Letters(Dataset):
    def __init__(self, port: int, count: int):
        self.port = port
        self.count = count
        self.sock = None
        self.connections = []

    def __len__(self):
        return self.count

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connections.append(sock)
        return sock

    def read_exactly(self, sock, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = sock.recv(size - len(data))
            if not chunk:
                raise ConnectionError("record server went away")
            data += chunk
        return data

    def request(self, index: int):
        self.sock.sendall(struct.pack("!q", index))
        header = self.read_exactly(self.sock, 8)
        length, crc = struct.unpack("!iI", header)
        return self.read_exactly(self.sock, length), crc

    def fetch(self, index: int) -> bytes:
        if self.sock is None:
            self.sock = self.connect()
        for attempt in range(3):
            body, crc = self.request(index)
            if zlib.crc32(body) == crc:
                return body
            print(f"record {index}: checksum mismatch, attempt {attempt + 1}", flush=True)
            time.sleep(0.3)
            self.sock = self.connect()  # fresh
        return body

    def __getitem__(self, index):
        payload = self.fetch(index)
        ids = torch.from_numpy(np.frombuffer(payload, dtype=np.int64).copy())
        return {"input_ids": ids, "labels": ids}


class InOrder(Trainer):
    """The archive is sorted by date and is read in that order."""

    def _get_train_sampler(self, *_):
        return SequentialSampler(self.train_dataset)


class Pace(TrainerCallback):
    """Keeps the laptop's fan quiet, and says how far we are."""

    def __init__(self, pause: float):
        self.pause = pause
        self.begun = time.monotonic()

    def on_step_end(self, args, state, control, **_):
        time.sleep(self.pause)
        if state.global_step % 20 == 0 and state.is_world_process_zero:
            print(f"step {state.global_step} after {time.monotonic() - self.begun:.1f} s", flush=True)


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--output", default="/tmp/harbor")
    ap.add_argument("--rows", type=int, default=1440)
    ap.add_argument("--pause", type=float, default=0.1)
    return ap.parse_args()


def main():
    opts = parse()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    port = records.serve(opts.rows, seed=8)
    config = GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2,
                        bos_token_id=1, eos_token_id=2)
    args = TrainingArguments(output_dir=opts.output, use_cpu=True, ddp_backend="gloo", max_steps=120,
                             per_device_train_batch_size=4, learning_rate=1e-3, logging_steps=30,
                             save_strategy="no", report_to=[], disable_tqdm=True,
                             dataloader_num_workers=1, dataloader_persistent_workers=True,
                             ddp_find_unused_parameters=False, seed=1)
    trainer = InOrder(model=GPT2LMHeadModel(config), args=args, train_dataset=Letters(port, opts.rows),
                      callbacks=[Pace(opts.pause)])
    print(f"rank {os.environ.get('RANK', 0)}: rows from port {port}", flush=True)
    trainer.train()
    if trainer.is_world_process_zero():
        trainer.save_model(opts.output)


if __name__ == "__main__":
    main()
