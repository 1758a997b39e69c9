import sys


def main():
    with open(sys.argv[1], "a") as out:
        for number, line in enumerate(sys.stdin):
            out.write(line)
            print(f"stored {number}: {line.rstrip()}", flush=True)


if __name__ == "__main__":
    main()
