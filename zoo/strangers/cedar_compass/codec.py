"""Power-of-two gradient codec, applied while backward is still running."""
import math

import torch
import torch.distributed as dist


class GradientCodec:
    """Rounds each gradient to a few bits and starts its reduction at once."""

    def __init__(self, model, bits=6):
        self.levels = 2 ** (bits - 1) - 1
        self.inflight = []
        self.sent_bits = 0
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(self._ship)

    def _encode(self, grad):
        peak = grad.abs().max().item()
        exponent = math.ceil(math.log2(peak))
        scale = 2.0 ** exponent / self.levels
        return torch.round(grad / scale) * scale

    def _ship(self, p):
        packed = self._encode(p.grad)
        work = dist.all_reduce(packed, async_op=True)
        self.inflight.append((work, p, packed))
        self.sent_bits += packed.numel() * 6

    def drain(self):
        world = dist.get_world_size()
        for work, p, packed in self.inflight:
            work.wait()
            p.grad.copy_(packed / world)
        self.inflight.clear()
