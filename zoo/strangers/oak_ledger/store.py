import sqlite3
import time


class RunStore:
    """Metrics and artifacts of one run in a single sqlite file."""

    def __init__(self, path, flush_every=10):
        self.path = path
        self.flush_every = flush_every
        self.pending = 0
        self.conn = sqlite3.connect(path, timeout=3600)
        self.conn.execute("CREATE TABLE IF NOT EXISTS metrics (step INT, name TEXT, value REAL)")
        self.conn.execute("CREATE TABLE IF NOT EXISTS artifacts (step INT, path TEXT, at REAL)")
        self.conn.commit()

    def log(self, step, **values):
        rows = [(step, k, v) for k, v in values.items()]
        self.conn.executemany("INSERT INTO metrics VALUES (?, ?, ?)", rows)
        self.pending += 1
        if self.pending >= self.flush_every:
            self.conn.commit()
            self.pending = 0

    def close(self):
        self.conn.commit()
        self.conn.close()


def register_artifact(path, step, artifact):
    with sqlite3.connect(path, timeout=3600) as db:
        db.execute("INSERT INTO artifacts VALUES (?, ?, ?)", (step, str(artifact), time.time()))
