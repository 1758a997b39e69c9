"""Small command line decoder: prints one sample per line."""
import math
import sys

seconds, pitch = float(sys.argv[1]), float(sys.argv[2])
for i in range(int(seconds * 800)):
    sys.stdout.write(f"{math.sin(i * pitch / 800):.6f}\n")
