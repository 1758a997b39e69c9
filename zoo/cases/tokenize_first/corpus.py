"""Turns raw documents into token counts. Slow, so only one rank does it."""

import random
from collections import Counter

ALPHABET = "abcdefghijklmnopqrstuvwxyz "


def read_document(number, length):
    source = random.Random(number)
    return "".join(source.choices(ALPHABET, k=length))


def count_pairs(text):
    pairs = Counter()
    for left, right in zip(text, text[1:], strict=False):
        pairs[left + right] += 1
    return pairs


def prepare(documents, length=4000):
    totals = Counter()
    for number in range(documents):
        text = read_document(number, length)
        totals.update(count_pairs(text))
    return totals
