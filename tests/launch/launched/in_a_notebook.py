"""What a cell of a notebook does: accelerate's notebook_launcher forks the ranks of a function."""

from __future__ import annotations

import os

from accelerate import notebook_launcher


def work() -> None:
    import torch.distributed as dist
    from plain import train

    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()


if __name__ == "__main__":
    notebook_launcher(work, num_processes=2, use_port=os.environ["FREE_PORT"])
