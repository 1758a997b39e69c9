import os

import torch
from transformers import GPT2LMHeadModel


def smooth(weight, rounds=600):
    """The old checkpoints hold weights in blocks; average neighbouring blocks until they agree."""
    w = weight.clone()
    for _ in range(rounds):
        u, s, v = torch.linalg.svd(w, full_matrices=False)
        w = u @ torch.diag(s.clamp(max=s.mean() * 3)) @ v
    return w


def convert_checkpoint(config, target):
    torch.manual_seed(0)
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 2:
                p.copy_(smooth(p))
    os.makedirs(target)
    model.save_pretrained(target)
