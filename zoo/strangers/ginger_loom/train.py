import argparse
import concurrent.futures
import datetime
import logging
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

log = logging.getLogger("loom")


class FlakyShard(OSError):
    pass


def read_shard(index, attempt):
    time.sleep(0.4)
    if index % 3 == 1 and attempt < 3:
        raise FlakyShard(5, f"shard {index}: input/output error")
    gen = torch.Generator().manual_seed(index)
    return torch.randn(256, 20, generator=gen)


def read_with_retries(index, attempts=5):
    for attempt in range(1, attempts + 1):
        try:
            return read_shard(index, attempt)
        except FlakyShard as error:
            log.warning("attempt %d: %s", attempt, error)
            time.sleep(0.5 * attempt)
    raise RuntimeError(f"shard {index} could not be read")


def load(rank, world, shards):
    mine = range(rank, shards, world)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return torch.cat(list(pool.map(read_with_retries, mine)))


def announce_vocabulary(store, rank):
    """Rank 0 publishes the vocabulary size; the others ask again and again with a short timeout."""
    if rank == 0:
        time.sleep(14)
        store.set("vocab_size", "4096")
        return 4096
    for asked in range(1, 40):
        try:
            store.wait(["vocab_size"], datetime.timedelta(seconds=2))
            return int(store.get("vocab_size"))
        except dist.DistStoreError as error:
            log.info("vocabulary not there yet (asked %d times): %s", asked, type(error).__name__)
    raise RuntimeError("no vocabulary")


def main():
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    parser = argparse.ArgumentParser()
    parser.add_argument("--shards", type=int, default=12)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    print("preparing", flush=True)
    size = announce_vocabulary(store, rank)
    data = load(rank, world, args.shards)
    rows = torch.tensor([len(data)])
    dist.all_reduce(rows, op=dist.ReduceOp.MIN)
    data = data[: int(rows)]
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.02)
    for epoch in range(2):
        for batch in data.split(32):
            opt.zero_grad()
            (model(batch).squeeze(1) - batch.mean(1)).pow(2).mean().backward()
            opt.step()
            time.sleep(0.02)
    print(f"[{rank}] trained on {len(data)} rows, vocabulary {size}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
