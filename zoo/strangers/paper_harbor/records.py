"""A record server: the shard lives in memory of the rank, loader workers ask for rows by number."""
import socketserver
import struct
import threading
import zlib

import numpy as np


class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        while True:
            request = self.request.recv(8)
            if not request:
                return
            (index,) = struct.unpack("!q", request)
            body, crc = self.server.rows[index]
            self.request.sendall(struct.pack("!iI", len(body), crc) + body)


class RecordServer(socketserver.TCPServer):
    allow_reuse_address = True
    request_queue_size = 16


def make_rows(count: int, seed: int):
    rng = np.random.default_rng(seed)
    rows = []
    for index in range(count):
        body = rng.integers(3, 64, size=24, dtype=np.int64).tobytes()
        crc = zlib.crc32(body)
        if index == 571:  # bit flip on the old archive disk, see ticket 1182
            body = bytes([body[0] ^ 1]) + body[1:]
        rows.append((body, crc))
    return rows


def serve(count: int, seed: int) -> int:
    server = RecordServer(("127.0.0.1", 0), Handler)
    server.rows = make_rows(count, seed)
    threading.Thread(target=server.serve_forever, name="records", daemon=True).start()
    return server.server_address[1]
