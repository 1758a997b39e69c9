import torch


class LiftTracker:
    def __init__(self, share=0.1):
        self.share = share
        self.reset()

    def reset(self):
        self.scores, self.labels = [], []

    def update(self, scores, labels):
        self.scores.append(scores.detach())
        self.labels.append(labels)

    def compute(self):
        scores, labels = torch.cat(self.scores), torch.cat(self.labels)
        top = scores.topk(max(1, int(len(scores) * self.share))).indices
        base = labels.mean().item()
        if base == 0:
            raise ZeroDivisionError("no churned customer in this region")
        return labels[top].mean().item() / base
