import heapq
import time

import torch


@torch.no_grad()
def beam_search(model, start, length, width):
    beams = [(0.0, [start])]
    for _ in range(length):
        heap = []
        for cost, seq in beams:
            logp = torch.log_softmax(model(torch.tensor([seq[-1]])), dim=-1)[0].tolist()
            for token, lp in enumerate(logp):
                heapq.heappush(heap, (cost - lp, seq + [token]))
        beams = heapq.nsmallest(width, heap)
    return beams[0]


def evaluate(model, sentences, length=14, width=6, budget=20.0):
    """Mean cost of the best hypothesis; runs over the list until the time budget is used."""
    begin = time.monotonic()
    costs, done = [], 0
    while time.monotonic() - begin < budget:
        cost, _ = beam_search(model, sentences[done % len(sentences)], length, width)
        costs.append(cost)
        done += 1
    return sum(costs) / len(costs), done
