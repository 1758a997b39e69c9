import json
import os
import sys
import time


def main():
    out, shards = sys.argv[1], int(sys.argv[2])
    index = {}
    for shard in range(shards):
        time.sleep(1.0)
        index[shard] = [(shard * 7919 + i * 104729) % 1000 for i in range(200)]
    tmp = out + ".part"
    with open(tmp, "w") as f:
        json.dump(index, f)
    os.replace(tmp, out)


if __name__ == "__main__":
    main()
