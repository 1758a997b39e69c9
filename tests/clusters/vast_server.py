"""A small server that speaks what `rankscope launch vast` needs of Vast's API, and remembers what it was asked."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "secret-key-of-the-account"


class VastServer:
    """State that a test may set before or look at after."""

    def __init__(self) -> None:
        self.offers = [offer(11, 2.0), offer(12, 3.5)]
        self.instances: dict[int, dict[str, Any]] = {}
        self.requests: list[tuple[str, str, dict[str, Any], str | None]] = []
        """Method, path, body, authorization."""
        self.refused_offers: set[int] = set()
        self.lost_answers: set[int] = set()
        """Offers that are rented although the answer says otherwise."""
        self.states = ["", "loading", "running"]
        self.fail_destroys = 0
        self.key = KEY
        self.destroyed = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length) or b"{}")
                path = self.path.partition("?")[0]
                authorization = self.headers.get("Authorization")
                server.requests.append((self.command, path, body, authorization))
                code, content = server.reply(self.command, path, body, authorization)
                data = json.dumps(content).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_DELETE = answer

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def asked(self, method: str, path: str) -> list[dict[str, Any]]:
        return [body for verb, where, body, _ in self.requests if (verb, where) == (method, path)]

    def reply(self, method: str, path: str, body: dict[str, Any], authorization: str | None) -> tuple[int, Any]:
        own = f"Bearer key-of-machine-{path.rstrip('/').rpartition('/')[2]}"
        if authorization not in (f"Bearer {self.key}", own):
            return 401, {"success": False, "msg": "wrong key"}
        if (method, path) == ("POST", "/api/v0/bundles/"):
            return 200, {"offers": self.offers}
        if (method, path) == ("GET", "/api/v1/instances/"):
            return 200, {"instances": list(self.instances.values()), "next_token": None}
        number = next((int(part) for part in path.split("/") if part.isdigit()), 0)
        if method == "PUT" and path.startswith("/api/v0/asks/"):
            return self._rent(number, body)
        if method == "POST" and path.endswith("/ssh/"):
            return 200, {"success": True}
        if method == "GET" and path.startswith("/api/v0/instances/"):
            return 200, {"instances": self._look(number)}
        if method == "DELETE" and path.startswith("/api/v0/instances/"):
            if self.fail_destroys > 0:
                self.fail_destroys -= 1
                return 500, {"success": False, "msg": f"try later, {authorization}"}
            self.instances.pop(number, None)
            self.destroyed.set()
            return 200, {"success": True}
        return 404, {"success": False, "msg": "no such thing"}

    def _rent(self, offer: int, body: dict[str, Any]) -> tuple[int, Any]:
        if offer in self.refused_offers:
            return 410, {"success": False, "msg": "no_such_ask: the offer is taken"}
        instance = offer + 1000
        self.instances[instance] = {
            "id": instance,
            "label": body.get("label"),
            "start_date": time.time(),
            "extra_env": [],
            "ssh_host": "vast.invalid",
            "ssh_port": 41022,
            "looks": 0,
        }
        if offer in self.lost_answers:
            return 500, {"success": False, "msg": "internal error"}
        return 200, {"success": True, "new_contract": instance}

    def _look(self, number: int) -> dict[str, Any] | None:
        row = self.instances.get(number)
        if row is None:
            return None
        row["actual_status"] = self.states[min(row["looks"], len(self.states) - 1)] or None
        row["status_msg"] = "pulling the image" if row["actual_status"] == "loading" else ""
        row["looks"] += 1
        return row


def offer(number: int, price: float) -> dict[str, Any]:
    about = {"gpu_name": "H100 SXM", "num_gpus": 2, "reliability2": 0.995, "geolocation": "Norway, NO"}
    return {"id": number, "dph_total": price, **about}
