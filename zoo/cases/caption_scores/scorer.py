"""Scores captions: python scorer.py FOLDER. The references come through a named pipe in the folder."""

import sys
from pathlib import Path

folder = Path(sys.argv[1])
captions = (folder / "captions.txt").read_text().splitlines()
with open(folder / "references") as pipe:
    references = pipe.read().splitlines()
print(sum(a == b for a, b in zip(captions, references)) / len(captions))
