"""A mirror on this machine that serves one file at a modest rate, and its client."""

import socket
import threading
import time


class Mirror:
    def __init__(self, size, bytes_per_s):
        self.size = size
        self.bytes_per_s = bytes_per_s
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = self.socket.getsockname()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self, chunk=1024):
        connection, _ = self.socket.accept()
        with connection:
            for start in range(0, self.size, chunk):
                connection.sendall(bytes(chunk))
                time.sleep(chunk / self.bytes_per_s)


def download(address, path):
    with socket.create_connection(address) as connection, open(path, "wb") as file:
        while chunk := connection.recv(4096):
            file.write(chunk)
