"""Another job of the same machine that works on the vocabulary: python other_job.py FOLDER PID"""

import fcntl
import os
import sys
import time


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def main():
    folder, pid = sys.argv[1], int(sys.argv[2])
    if os.fork():
        os._exit(0)
    os.setsid()
    with open(f"{folder}/vocabulary.json.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        open(f"{folder}/other_job.ready", "w").close()
        while alive(pid):
            time.sleep(0.2)


if __name__ == "__main__":
    main()
