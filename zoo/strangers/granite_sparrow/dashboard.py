import json
import os
import time


class DashboardPipe:
    """Feeds the terminal dashboard (`dash follow RUN_DIR`) through a named pipe."""

    def __init__(self, run_dir):
        os.makedirs(run_dir, exist_ok=True)
        self.path = os.path.join(run_dir, "metrics.pipe")
        if not os.path.exists(self.path):
            os.mkfifo(self.path)

    def send(self, **values):
        line = json.dumps({"time": round(time.time(), 3), **values})
        with open(self.path, "w") as pipe:
            pipe.write(line + "\n")
