import os
import shutil
import subprocess
import sys
import threading
import time

CHILD = """
import os, sys
marker = sys.argv[1]
tries = len(os.listdir(marker))
open(os.path.join(marker, str(tries)), "w").close()
if tries < 2:
    sys.exit(3)
print("index built")
"""


def build_index(folder, attempts=5):
    marker = os.path.join(folder, "tries")
    os.makedirs(marker, exist_ok=True)
    for n in range(attempts):
        done = subprocess.run([sys.executable, "-c", CHILD, marker], capture_output=True, text=True)
        if done.returncode == 0:
            print(done.stdout.strip(), flush=True)
            return
        print(f"indexer returned {done.returncode}, trying again", flush=True)
        time.sleep(1 + n)
    raise RuntimeError("indexer failed")


def copy_later(source, target, parts):
    def work():
        for i in range(parts):
            shutil.copyfile(source, f"{target}.{i}")
            time.sleep(0.8)
        print("copies complete", flush=True)

    t = threading.Thread(target=work, name="copier")
    t.start()
    return t
