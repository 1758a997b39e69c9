import os
import time


def sample_usage(path, stop):
    """Writes the load of this machine once in a while until it is told to stop."""
    with open(path, "w") as out:
        while not stop.wait(3.0):
            one, five, _ = os.getloadavg()
            out.write(f"{time.time():.0f},{one:.2f},{five:.2f}\n")
            out.flush()
