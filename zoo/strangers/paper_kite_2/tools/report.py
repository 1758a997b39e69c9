"""Turns the history of a run into a text table on stdout."""
import json
import sys


def main():
    with open(sys.argv[1]) as f:
        rows = [json.loads(line) for line in f]
    print(f"{len(rows)} rows")
    for row in rows:
        print(f"| {row['epoch']:>4} | {row['step']:>6} | {row['loss']:>14.8f} | " + " ".join(f"{g:.6e}" for g in row["grad_norms"]) + " |")
    print("best:", min(r["loss"] for r in rows))


if __name__ == "__main__":
    main()
