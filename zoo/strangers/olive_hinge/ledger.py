import fcntl
import subprocess
import sys

COPIER = """
import fcntl, os, shutil, sys, time
source = open(sys.argv[1])
fcntl.flock(source, fcntl.LOCK_EX)
print("locked", flush=True)
parent, step = os.getppid(), 0
while os.getppid() == parent and step < 600:
    shutil.copy(sys.argv[1], sys.argv[1] + ".snapshot")
    if os.path.getsize(sys.argv[1] + ".snapshot") < int(sys.argv[2]):
        break
    step += 1
    time.sleep(0.5)
"""


class Ledger:
    """A CSV that several tools append to, each under a lock on the file."""

    def __init__(self, path, quota=2048):
        self.path = path
        self.quota = quota
        self.rows = 0
        self.copier = None
        path.touch()

    def append(self, step, loss):
        with open(self.path, "a") as out:
            fcntl.flock(out, fcntl.LOCK_EX)
            out.write(f"{step},{loss:.6f},{self.rows}\n")
        self.rows += 1

    def snapshot(self):
        """Copies the ledger beside itself; the copier works on its own."""
        self.copier = subprocess.Popen(
            [sys.executable, "-c", COPIER, str(self.path), str(self.quota)], stdout=subprocess.PIPE, text=True
        )
        self.copier.stdout.readline()
