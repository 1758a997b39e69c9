"""A small metrics collector that a job can carry along, for places without a central one."""

import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Collector:
    def __init__(self, capacity=4):
        self.records = queue.Queue(maxsize=capacity)
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.records.put(body)
                self.send_response(204)
                self.end_headers()

            def log_message(self, format, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True, name="collector").start()

    @property
    def url(self):
        host, port = self.server.server_address
        return f"http://{host}:{port}/metrics"
