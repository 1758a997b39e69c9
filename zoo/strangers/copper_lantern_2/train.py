import argparse
import time

import torch
import torch.distributed as dist

from pipe.schedule import Schedule
from pipe.stages import CLASSES, VOCAB, build_stage


def documents(count, batch, seq, seed=11):
    """Tagged documents; tokens of untagged spans carry -100."""
    gen = torch.Generator().manual_seed(seed)
    for i in range(count):
        tokens = torch.randint(VOCAB, (batch, seq), generator=gen)
        labels = tokens % CLASSES
        tagged = 0.7 if i % 64 != 63 else 0.0
        drop = torch.rand(batch, seq, generator=gen) > tagged
        labels[drop] = -100
        time.sleep(0.04)  # decoding
        yield tokens, labels


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=200)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--seq", type=int, default=24)
    args = ap.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    stage = build_stage(rank, world)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-3)
    schedule = Schedule(stage, optimizer, rank, world, args.batch, args.seq)
    print(f"stage {rank} ready, {sum(p.numel() for p in stage.parameters())} parameters", flush=True)

    for step, (tokens, labels) in enumerate(documents(args.steps, args.batch, args.seq)):
        loss = schedule.run(tokens, labels)
        if schedule.is_last and step % 10 == 0 and loss is not None:
            print(f"step {step} loss {loss:.4f}", flush=True)

    dist.barrier()
    if rank == 0:
        print("done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
