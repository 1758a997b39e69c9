"""Local stand-in for the team's metric tracker: POST /log, keeps runs in memory, compacts now and then."""
import http.server
import json
import os
import sys
import threading

runs, lock = [], threading.Lock()
compacted = threading.Event()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with lock:
            runs.append(body)
            full = len(runs) > 6
        if full:
            compacted.wait()
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *args):
        pass


def leave_with_owner():
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=leave_with_owner, daemon=True).start()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
