import argparse
import time

import torch
from accelerate import Accelerator
from torch import nn


class Captioner(nn.Module):
    def __init__(self, vocab=60, width=24):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.cell = nn.GRUCell(width, width)
        self.out = nn.Linear(width, vocab)

    @torch.no_grad()
    def generate(self, prompt, length):
        state = self.embed(torch.tensor(prompt)).mean(0, keepdim=True)
        token = torch.tensor([prompt[-1]])
        produced = []
        for _ in range(length):
            state = self.cell(self.embed(token), state)
            token = self.out(state).argmax(1)
            produced.append(token)
        return torch.cat(produced)


def prompts(count):
    gen = torch.Generator().manual_seed(14)
    return [torch.randint(0, 60, (6,), generator=gen).tolist() for _ in range(count)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompts", type=int, default=86)
    parser.add_argument("--length", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = Captioner().eval()
    table = []
    with accelerator.split_between_processes(prompts(args.prompts)) as mine:
        for number, prompt in enumerate(mine):
            tokens = model.generate(prompt, args.length)
            time.sleep(0.12)
            rows = accelerator.gather(tokens.unsqueeze(0))
            if accelerator.is_main_process:
                table.extend(rows.tolist())
                if number % 4 == 0:
                    print(f"prompt {number}: {len(table)} captions", flush=True)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        distinct = {tuple(row) for row in table}
        print(f"{len(table)} captions, {len(distinct)} distinct", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
