import random
from collections import Counter


def corpus(n_lines=4200, seed=5):
    rng = random.Random(seed)
    stems = ["learn", "train", "grad", "shard", "token", "layer", "batch", "norm", "loss", "rank"]
    ends = ["", "s", "ing", "ed", "er", "able", "ness", "ization"]
    return [" ".join(rng.choice(stems) + rng.choice(ends) + rng.choice("abcdefgh") for _ in range(40)) for _ in range(n_lines)]


def learn(lines, n_merges):
    seqs = [list(line) for line in lines]
    merges = []
    for _ in range(n_merges):
        pairs = Counter()
        for s in seqs:
            pairs.update(zip(s, s[1:]))
        (a, b), _ = pairs.most_common(1)[0]
        merges.append((a, b))
        for k, s in enumerate(seqs):
            out, i = [], 0
            while i < len(s):
                if i + 1 < len(s) and s[i] == a and s[i + 1] == b:
                    out.append(a + b)
                    i += 2
                else:
                    out.append(s[i])
                    i += 1
            seqs[k] = out
    return merges, seqs
