"""Reads metric records, one JSON object a line, and appends them to a file."""
import json
import sys


def main(path):
    with open(path, "a") as sink:
        for line in sys.stdin:
            rec = json.loads(line)
            sink.write(line)
            sink.flush()
            print("ok", rec["step"], "fields", " ".join(sorted(rec)), json.dumps(rec["hist"]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
