import logging
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


class RelayHandler(logging.Handler):
    """Hands records to a collector process, which writes them to a file in its own time."""

    def __init__(self, path):
        super().__init__()
        self.proc = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "collector.py"), path],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def emit(self, record):
        line = self.format(record)
        print(line, file=self.proc.stdin, flush=True)

    def close(self):
        self.proc.stdin.close()
        self.proc.wait()
        super().close()
