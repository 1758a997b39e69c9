"""Evaluates a model file with many perturbed inputs: python evaluate.py MODEL SECONDS"""

import random
import sys
import time
from pathlib import Path

blob = Path(sys.argv[1]).read_bytes()
source = random.Random(len(blob))
end = time.monotonic() + float(sys.argv[2])
total = count = 0
while time.monotonic() < end:
    total += sum(source.random() * value for value in blob[:2000])
    count += 1
print(total / count)
