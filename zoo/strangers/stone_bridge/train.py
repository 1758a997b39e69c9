import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from corpus import VOCAB, Corpus
from model import Classifier


def collate(items):
    tokens = torch.nn.utils.rnn.pad_sequence([t for t, _ in items], batch_first=True)
    return tokens, torch.tensor([label for _, label in items])


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data = Corpus()
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=1, sampler=sampler, collate_fn=collate)
    torch.manual_seed(0)
    model = DDP(Classifier(VOCAB, 8, 4))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)

    for epoch in range(2):
        for step, (tokens, labels) in enumerate(loader):
            loss = F.cross_entropy(model(tokens), labels)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if rank == 0 and step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
