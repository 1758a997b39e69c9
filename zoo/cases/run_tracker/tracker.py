"""Client of an experiment tracker that runs as a local service."""

import json
import socket
import threading


class Service:
    """The tracker's local service: accepts a session, and asks the server behind it for a run id."""

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = self.socket.getsockname()
        self.sessions = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            connection, _ = self.socket.accept()
            self.sessions.append(connection)


class Run:
    def __init__(self, address, project):
        self.connection = socket.create_connection(address)
        self.replies = self.connection.makefile("r")
        self._send({"kind": "start", "project": project})
        self.id = json.loads(self.replies.readline())["id"]

    def _send(self, message):
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def log(self, **values):
        self._send({"kind": "log", "run": self.id, "values": values})


def init(project):
    service = Service()
    return Run(service.address, project)
