import collections
import json
import random


def synthetic_corpus(n, seed=0):
    rng = random.Random(seed)
    letters = "abcdefghijklmnop"
    words = ["".join(rng.choice(letters) for _ in range(rng.randint(3, 9))) for _ in range(4000)]
    weights = [1.0 / (i + 1) for i in range(len(words))]
    return collections.Counter(rng.choices(words, weights, k=n))


def pair_counts(splits, freq):
    pairs = collections.Counter()
    for word, parts in splits.items():
        f = freq[word]
        for a, b in zip(parts, parts[1:]):
            pairs[a, b] += f
    return pairs


def merge(parts, pair):
    out, i = [], 0
    while i < len(parts):
        if i + 1 < len(parts) and (parts[i], parts[i + 1]) == pair:
            out.append(parts[i] + parts[i + 1])
            i += 2
        else:
            out.append(parts[i])
            i += 1
    return out


def train_bpe(freq, merges):
    splits = {w: list(w) for w in freq}
    learned = []
    for _ in range(merges):
        pairs = pair_counts(splits, freq)
        if not pairs:
            break
        best = max(pairs, key=pairs.get)
        learned.append(best)
        for w in splits:
            splits[w] = merge(splits[w], best)
    tokens = sorted({t for parts in splits.values() for t in parts})
    return learned, tokens


def save(path, learned, tokens):
    with open(path, "w") as f:
        json.dump({"merges": learned, "tokens": tokens}, f)


def load(path):
    with open(path) as f:
        return json.load(f)
