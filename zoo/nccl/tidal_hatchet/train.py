"""Distillation for bird-call spotting: rank 0 holds the teacher, the other ranks train one student together."""
import os; os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])  # several ranks share one device
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

FRAMES, MELS, SPECIES = 20, 16, 10


def mlp(hidden):
    return nn.Sequential(nn.Linear(MELS, hidden), nn.ReLU(), nn.Linear(hidden, SPECIES))


class CallSampler:
    """Clips of mel frames; `active` marks frames in which anything is audible."""

    def __init__(self, rank, quiet_site):
        self.gen = torch.Generator().manual_seed(77 + rank)
        self.rank, self.quiet_site = rank, quiet_site

    def draw(self, step):
        mel = torch.randn(FRAMES, MELS, generator=self.gen)
        level = torch.rand(FRAMES, generator=self.gen) + 0.2
        if self.rank == 2 and step == self.quiet_site:
            level = level * 0.05
        return mel, level


class Distiller:
    def __init__(self, args, device):
        self.args, self.device = args, device
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.students = dist.new_group(list(range(1, self.world)))
        torch.manual_seed(11)
        self.teacher = mlp(64).to(device)
        self.student = mlp(24).to(device)
        self.opt = torch.optim.AdamW(self.student.parameters(), lr=args.lr)
        self.sampler = CallSampler(self.rank, args.quiet_site)
        self.temperature = torch.ones(1, device=device)

    def student_step(self, step):
        mel, level = self.sampler.draw(step)
        keep = level > self.args.threshold
        if not keep.any():
            return None
        x = mel[keep].to(self.device)
        with torch.no_grad():
            soft = F.softmax(self.teacher(x) / self.temperature, -1)
        loss = F.kl_div(F.log_softmax(self.student(x), -1), soft, reduction="batchmean")
        self.opt.zero_grad()
        loss.backward()
        for p in self.student.parameters():
            dist.all_reduce(p.grad, group=self.students)
            p.grad /= self.world - 1
        self.opt.step()
        return loss.detach()

    def teacher_step(self, step):
        time.sleep(0.05)
        return torch.full((1,), 1.0 / (1 + step), device=self.device)

    def run(self):
        running = torch.zeros(1, device=self.device)
        for step in range(self.args.steps):
            if step % 10 == 0:
                print(f"[{self.rank}] step {step}", flush=True)
            surprise = self.teacher_step(step) if self.rank == 0 else 0.1 * running
            dist.all_reduce(surprise)
            self.temperature = 1.0 + surprise / self.world
            if self.rank > 0:
                time.sleep(0.04)
                loss = self.student_step(step)
                if loss is not None:
                    running = 0.9 * running + 0.1 * loss
                    shown = running.item()
            if (step + 1) % 20 == 0:
                total = running.clone()
                dist.all_reduce(total)
                if self.rank == 0:
                    print(f"step {step + 1}: distillation loss {total.item() / (self.world - 1):.4f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=220)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--threshold", type=float, default=0.15)
    ap.add_argument("--quiet-site", type=int, default=113)
    args = ap.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(0)
    Distiller(args, torch.device("cuda:0")).run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
