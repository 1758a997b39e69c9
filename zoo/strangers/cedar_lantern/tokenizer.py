import collections
import json
import os
import random
import time


def synth_corpus(n_words=30000, seed=3):
    rng = random.Random(seed)
    stems = ["".join(rng.choice("abcdefghijklmnop") for _ in range(rng.randint(3, 9))) for _ in range(3000)]
    return [rng.choice(stems) + rng.choice(["", "s", "ed", "ing", "er"]) for _ in range(n_words)]


def train_bpe(path, vocab_size, max_seconds):
    words = collections.Counter(synth_corpus())
    pieces = {w: list(w) for w in words}
    merges = []
    deadline = time.monotonic() + max_seconds
    print(f"[tokenizer] counting pairs over {len(words)} word types", flush=True)
    while len(merges) < vocab_size and time.monotonic() < deadline:
        pairs = collections.Counter()
        for w, n in words.items():
            p = pieces[w]
            for a, b in zip(p, p[1:]):
                pairs[a, b] += n
        if not pairs:
            break
        (a, b), _ = pairs.most_common(1)[0]
        merges.append((a, b))
        for w, p in pieces.items():
            i, out = 0, []
            while i < len(p):
                if i + 1 < len(p) and p[i] == a and p[i + 1] == b:
                    out.append(a + b)
                    i += 2
                else:
                    out.append(p[i])
                    i += 1
            pieces[w] = out
    vocab = sorted({t for p in pieces.values() for t in p})
    tmp = path + ".part"
    with open(tmp, "w") as f:
        json.dump({"merges": merges, "vocab": vocab, "pieces": pieces}, f)
    os.replace(tmp, path)


def load_or_train(cache, local_rank, vocab_size=100000, max_seconds=20):
    os.makedirs(cache, exist_ok=True)
    path = os.path.join(cache, f"bpe-{os.environ.get('TORCHELASTIC_RUN_ID', 'local')}.json")
    if local_rank == 0 and not os.path.exists(path):
        train_bpe(path, vocab_size, max_seconds)
    while not os.path.exists(path):
        time.sleep(0.5)
    with open(path) as f:
        return json.load(f)
