import logging
import os
import threading

from tqdm import tqdm


class TqdmHandler(logging.Handler):
    def emit(self, record):
        tqdm.write(self.format(record))


class BufferedFileHandler(logging.Handler):
    """Collects lines and writes them in blocks: the shared file system does not like small appends."""

    def __init__(self, path, capacity=40):
        super().__init__()
        self.path = path
        self.capacity = capacity
        self.lines = []
        self._mutex = threading.Lock()

    def emit(self, record):
        with self._mutex:
            self.lines.append(self.format(record))
            if len(self.lines) >= self.capacity:
                self.flush()

    def flush(self):
        self._mutex.acquire()
        try:
            if self.lines:
                with open(self.path, "a") as fh:
                    fh.write("\n".join(self.lines) + "\n")
                self.lines.clear()
        finally:
            self._mutex.release()


def get_logger(rank, log_dir):
    os.makedirs(log_dir, exist_ok=True)
    logger = logging.getLogger("train")
    logger.propagate = False
    logger.setLevel(logging.INFO if rank == 0 else logging.ERROR)
    fmt = logging.Formatter(f"%(asctime)s [{rank}] %(message)s")
    for handler in (TqdmHandler(), BufferedFileHandler(os.path.join(log_dir, f"rank{rank}.log"))):
        handler.setFormatter(fmt)
        logger.addHandler(handler)
    return logger
