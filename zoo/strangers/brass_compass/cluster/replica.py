import os
from datetime import timedelta

import torch.distributed as dist


class Replica:
    """A group of ranks that holds one copy of the model, with a key-value store of its own."""

    def __init__(self, size):
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self.size = size
        self.index = self.rank // size
        self.count = self.world // size
        self.local = self.rank % size
        self.groups = [
            dist.new_group(list(range(i * size, (i + 1) * size))) for i in range(self.count)
        ]
        self.group = self.groups[self.index]
        self.store = None

    @property
    def is_leader(self):
        return self.local == 0

    def port(self):
        node = int(os.environ.get("GROUP_RANK", "0"))
        return int(os.environ["MASTER_PORT"]) + 17 + node

    def open_store(self):
        # one replica after the other keeps the log readable
        for turn in range(self.count):
            if turn == self.index:
                self.store = self._connect()
                if self.is_leader:
                    print(f"replica {self.index}: store ready on port {self.port()}", flush=True)
            dist.barrier()
        return self.store

    def _connect(self):
        store = dist.TCPStore(
            "127.0.0.1",
            self.port(),
            self.size,
            self.is_leader,
            timeout=timedelta(seconds=120),
            wait_for_workers=False,
        )
        return dist.PrefixStore(f"replica{self.index}", store)
