import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

VOCAB = 30


class Sentences(Dataset):
    def __init__(self, n, seed, longest):
        g = torch.Generator().manual_seed(seed)
        lengths = [longest] * n
        if n % 3:
            lengths[-1] = longest + 5
        self.rows = [torch.randint(1, VOCAB, (k,), generator=g) for k in lengths]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    ids = pad_sequence(rows, batch_first=True)
    tags = (ids % 3) * (ids > 0)
    return ids, tags


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 16)
        self.rnn = nn.GRU(16, 24, batch_first=True)
        self.out = nn.Linear(24, 3)

    def forward(self, ids):
        return self.out(self.rnn(self.embed(ids))[0])


def evaluate(accelerator, model, loader):
    model.eval()
    right = total = 0
    with torch.no_grad():
        for ids, tags in loader:
            predictions = model(ids).argmax(-1)
            predictions = accelerator.gather(predictions)
            reference = accelerator.gather(tags)
            right += (predictions == reference).sum().item()
            total += reference.numel()
    model.train()
    return right / total


def main():
    accelerator = Accelerator(cpu=True)
    set_seed(0)
    torch.set_num_threads(1)
    train = DataLoader(Sentences(900, 1, 12), batch_size=10, shuffle=True, collate_fn=collate)
    dev = DataLoader(Sentences(95, 2, 12), batch_size=8, collate_fn=collate)
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    model, optimizer, train, dev = accelerator.prepare(model, optimizer, train, dev)
    for epoch in range(3):
        for ids, tags in train:
            loss = F.cross_entropy(model(ids).flatten(0, 1), tags.flatten())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        accelerator.print(f"epoch {epoch} loss {loss.item():.4f}, evaluating", flush=True)
        accuracy = evaluate(accelerator, model, dev)
        accelerator.print(f"epoch {epoch} accuracy {accuracy:.4f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
