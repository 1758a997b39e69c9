"""Cleans text line by line, as a filter: one line in, one line out."""

import sys

for line in sys.stdin:
    words = [word for word in line.split() if word.isascii()]
    if words:
        print(" ".join(words), flush=True)
