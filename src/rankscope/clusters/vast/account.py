"""Vast's API through its own package, with its mistakes as one line and without the key in any of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from rankscope.clusters.vast.plan import VastPlan, offer_query
from rankscope.clusters.vast.scripts import onstart
from rankscope.errors import RankscopeError, UsageError

T = TypeVar("T")
MOST_OFFERS = 8
_LABEL = "rankscope-"


class VastRefused(RankscopeError):
    """Vast did not do what was asked; says what."""


class NotThere(VastRefused):
    """What was asked about does not exist, or does not any more."""


@dataclass(frozen=True, slots=True)
class Offer:
    id: int
    gpu: str
    gpus: int
    price: float
    """Dollars an hour."""
    reliability: float
    place: str


@dataclass(frozen=True, slots=True)
class Instance:
    id: int
    status: str
    """Vast's `actual_status`; empty while it is being made."""
    message: str
    host: str
    port: int

    @property
    def reachable(self) -> bool:
        return self.status == "running" and bool(self.host) and self.port > 0


class Account:
    """The user's account; the key comes from VAST_API_KEY or from the file that `vastai set api-key` wrote."""

    def __init__(self, server: str | None = None, retries: int = 3) -> None:
        try:
            from vastai import VastAI
        except ImportError as error:
            raise UsageError("'rankscope launch vast' needs Vast's package: pip install 'rankscope[vast]'") from error
        try:
            self._sdk: Any = VastAI(server_url=server, retry=retries)
            self._once: Any = VastAI(server_url=server, retry=1)
        except RuntimeError as error:
            raise UsageError("no key of Vast: set VAST_API_KEY, or run vastai set api-key once") from error
        self._key: str = self._sdk.client.api_key

    def offers(self, plan: VastPlan) -> list[Offer]:
        """The cheapest first."""
        query = offer_query(plan.offer)
        found = self._ask(
            "search for offers",
            lambda: self._sdk.search_offers(
                query=query, order="dph_total", limit=MOST_OFFERS, storage=plan.offer.disk_gb
            ),
        )
        return [_offer(row) for row in found]

    def rent(self, offer: Offer, plan: VastPlan) -> int:
        """The new instance. Asked once only: a repeated question could rent two machines."""
        answer = self._ask(
            f"rent offer {offer.id}",
            lambda: self._once.create_instance(
                id=offer.id,
                image=plan.image,
                disk=plan.offer.disk_gb,
                label=f"{_LABEL}{plan.name}",
                onstart_cmd=onstart(plan),
                cancel_unavail=True,
                ssh=True,
                direct=True,
            ),
        )
        if not answer.get("success") or "new_contract" not in answer:
            raise VastRefused(f"Vast did not rent offer {offer.id}: {self._hide(answer.get('msg') or answer)}")
        return int(answer["new_contract"])

    def of_runs(self) -> dict[int, str]:
        """Machines of the account that a launch has rented, with the name of its run."""
        rows = self._ask("list the machines", self._sdk.show_instances)
        labels = {int(row["id"]): str(row.get("label") or "") for row in rows}
        return {number: label[len(_LABEL) :] for number, label in labels.items() if label.startswith(_LABEL)}

    def look(self, instance: int) -> Instance | None:
        """None once it is gone."""
        try:
            row = self._ask(f"show instance {instance}", lambda: self._sdk.show_instance(instance))
        except NotThere:
            return None
        if row is None:
            return None
        ports = row.get("ports") or {}
        direct = (ports.get("22/tcp") or [{}])[0].get("HostPort")
        if row.get("public_ipaddr") and direct:
            host, port = str(row["public_ipaddr"]).strip(), int(direct)
        else:
            host, port = str(row.get("ssh_host") or ""), int(row.get("ssh_port") or 0)
        message = " ".join(str(row.get("status_msg") or "").split())
        return Instance(instance, str(row.get("actual_status") or ""), message, host, port)

    def let_in(self, instance: int, public_key: str) -> None:
        self._ask("attach the ssh key", lambda: self._sdk.attach_ssh(instance, public_key))

    def destroy(self, instance: int) -> None:
        self._ask(f"destroy instance {instance}", lambda: self._sdk.destroy_instance(instance))

    def _ask(self, what: str, question: Callable[[], T]) -> T:
        import requests

        try:
            return question()
        except requests.HTTPError as error:
            answer = error.response
            if answer is not None and answer.status_code in (401, 403):
                raise UsageError(f"Vast refused the key ({answer.status_code}): could not {what}") from None
            told = f"{answer.status_code} {answer.text[:200]}" if answer is not None else str(error)
            missing = answer is not None and answer.status_code == 404
            raise (NotThere if missing else VastRefused)(f"Vast could not {what}: {self._hide(told)}") from None
        except (requests.RequestException, ValueError, KeyError, TypeError) as error:
            raise VastRefused(f"could not {what} at Vast: {type(error).__name__}: {self._hide(error)}") from None

    def _hide(self, text: object) -> str:
        return " ".join(str(text).replace(self._key, "(key)").split())


def _offer(row: dict[str, Any]) -> Offer:
    return Offer(
        id=int(row["id"]),
        gpu=str(row.get("gpu_name") or "?"),
        gpus=int(row.get("num_gpus") or 0),
        price=float(row.get("dph_total") or 0.0),
        reliability=float(row.get("reliability2") or row.get("reliability") or 0.0),
        place=str(row.get("geolocation") or "somewhere"),
    )
