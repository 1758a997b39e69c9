import json
import os
import subprocess
import sys
import urllib.request


class Tracker:
    """Sends scalars to the tracking service; starts a local one if TRACKER_URL is not set."""

    def __init__(self, run_name, enabled):
        self.enabled = enabled
        self.run_name = run_name
        self.proc = None
        self.url = os.environ.get("TRACKER_URL")
        if enabled and self.url is None:
            here = os.path.dirname(os.path.abspath(__file__))
            self.proc = subprocess.Popen(
                [sys.executable, os.path.join(here, "tracker_service.py")],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            self.url = f"http://127.0.0.1:{int(self.proc.stdout.readline())}"

    def log(self, step, **scalars):
        if not self.enabled:
            return
        data = json.dumps({"run": self.run_name, "step": step, **scalars}).encode()
        req = urllib.request.Request(self.url + "/log", data=data, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(req) as resp:
            resp.read()

    def close(self):
        if self.proc is not None:
            self.proc.stdin.close()
            self.proc.wait()
