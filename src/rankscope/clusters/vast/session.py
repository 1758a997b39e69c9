"""The life of a rented machine: rented, filled, watched, emptied, given back. It is always said what still runs."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import rankscope
from rankscope.clusters.vast.account import Account, Offer, VastRefused
from rankscope.clusters.vast.package import record_of_installation
from rankscope.clusters.vast.plan import OWN, VastPlan, offer_query
from rankscope.clusters.vast.remote import NoContact, Remote
from rankscope.clusters.vast.scripts import job_script
from rankscope.errors import RankscopeError

Say = Callable[[str], None]
_DEAD = frozenset({"exited", "stopped", "offline"})


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user has chosen beside the plan."""

    results: Path
    public_key: str
    identity: Path
    environment: bytes = b""
    fetch: tuple[str, ...] = ()
    """Further paths of the work folder that come back."""


@dataclass(frozen=True, slots=True)
class Pace:
    poll_s: float = 3.0
    lost_limit_s: float = 900.0
    destroy_tries: int = 10


def launch(plan: VastPlan, wanted: Wanted, account: Account, say: Say, pace: Pace | None = None) -> int:
    """Runs the plan and returns the job's own exit code."""
    timing = pace or Pace()
    with _stopped_by_signals():
        instance, offer = _rent(plan, account, say)
        begun = time.monotonic()
        remote: Remote | None = None
        ended = False
        try:
            account.let_in(instance, wanted.public_key)
            remote = _reach(instance, plan, wanted, account, say, timing)
            _fill(remote, plan, wanted, say)
            remote.start()
            say(f"the job has started on instance {instance}")
            code = _follow(remote, instance, account, timing)
            ended = True
        finally:
            # The results come first: a machine that was destroyed has none.
            kept = _fetch(remote, wanted, say) if remote is not None else True
            if plan.auto_shutdown and (kept or not ended):
                _give_back(instance, account, say, timing)
            else:
                say(f"instance {instance} IS STILL RUNNING and costs ${offer.price:.2f} an hour. Give it back with:")
                say(f"  vastai destroy instance {instance}")
                if plan.auto_shutdown:
                    say(f"its results did not come; it destroys itself in {plan.fetch_limit_s / 60:.0f} minutes")
            hours = (time.monotonic() - begun) / 3600
            say(f"{hours:.2f} hours of ${offer.price:.2f}: about ${hours * offer.price:.2f}")
    if code == 0:
        say(f"the job has completed successfully; its results are in {wanted.results}")
    else:
        say(f"the job failed with exit code {code}; its log and run folder are in {wanted.results}")
    return code


def _rent(plan: VastPlan, account: Account, say: Say) -> tuple[int, Offer]:
    query = offer_query(plan.offer)
    offers = account.offers(plan)
    for number, name in account.of_runs().items():
        say(f"note: instance {number} of an earlier run, {name}, is still there (vastai destroy instance {number})")
    if not offers:
        raise RankscopeError(f"no offer of Vast fits now ({query}): allow a higher --max-price or another --gpu")
    refused: VastRefused | None = None
    for offer in offers:
        say(
            f"offer {offer.id}: {offer.gpus} x {offer.gpu}, ${offer.price:.2f} an hour, "
            f"reliability {offer.reliability:.3f}, {offer.place}"
        )
        rented: int | None = None
        try:
            rented = account.rent(offer, plan)
            say(f"rented as instance {rented}")
            return rented, offer
        except VastRefused as error:
            refused = error
            say(str(error))
        finally:
            if rented is None:
                _give_back_unnoticed(plan, account, say)
    raise RankscopeError(f"none of {len(offers)} offers could be rented; the last: {refused}")


def _give_back_unnoticed(plan: VastPlan, account: Account, say: Say) -> None:
    """A question whose answer was lost may still have rented a machine."""
    try:
        for instance in [number for number, name in account.of_runs().items() if name == plan.name]:
            say(f"instance {instance} was rented all the same")
            account.destroy(instance)
            say(f"instance {instance} was destroyed")
    except RankscopeError as error:
        say(f"PLEASE LOOK whether a machine labelled rankscope-{plan.name} was rented: {error}")


def _reach(instance: int, plan: VastPlan, wanted: Wanted, account: Account, say: Say, timing: Pace) -> Remote:
    deadline = time.monotonic() + plan.start_limit_s
    told = ""
    last: Exception | None = None
    while time.monotonic() < deadline:
        seen = account.look(instance)
        if seen is None:
            raise RankscopeError(f"instance {instance} is gone: Vast or somebody else has destroyed it")
        if seen.status in _DEAD:
            raise RankscopeError(f"instance {instance} is {seen.status}: {seen.message or 'Vast gives no reason'}")
        if (state := f"{seen.status or 'being made'} {seen.message}".strip()) != told:
            say(f"instance {instance}: {state}")
            told = state
        if seen.reachable:
            remote = Remote(seen.host, seen.port, plan.folder, wanted.identity)
            try:
                remote.call("true", limit_s=30.0)
                return remote
            except NoContact as error:
                last = error
        time.sleep(timing.poll_s)
    why = f"; {last}" if last is not None else ""
    raise RankscopeError(f"instance {instance} was not reachable within {plan.start_limit_s:g} s: {told}{why}")


def _fill(remote: Remote, plan: VastPlan, wanted: Wanted, say: Say) -> None:
    sent = remote.send_tree(plan.workdir)
    own = remote.send_tree(Path(rankscope.__file__).parent, f"{OWN}/rankscope")
    with record_of_installation() as record:
        own += remote.send_tree(record, OWN)
    say(f"sent {plan.workdir} ({sent / 1e6:.1f} MB) and rankscope itself ({own / 1e6:.1f} MB)")
    remote.send_file("job.sh", job_script(plan).encode(), "700")
    if wanted.environment:
        remote.send_file("environment", wanted.environment)


def _follow(remote: Remote, instance: int, account: Account, timing: Pace) -> int:
    def show(news: bytes) -> None:
        sys.stdout.buffer.write(news)
        sys.stdout.flush()

    try:
        return remote.follow(show, poll_s=timing.poll_s, lost_limit_s=timing.lost_limit_s)
    except NoContact as error:
        seen = account.look(instance)
        state = "is gone" if seen is None else f"is {seen.status or 'being made'} {seen.message}".strip()
        raise RankscopeError(f"contact lost: {error}; Vast says that instance {instance} {state}") from error


def _fetch(remote: Remote, wanted: Wanted, say: Say) -> bool:
    """Whether everything is here now. Tells the machine, which waits for that before it destroys itself."""
    names = ["job.log", "exit_code", "run", *(f"work/{path}" for path in wanted.fetch)]
    try:
        remote.fetch(names, wanted.results)
        remote.tell_fetched()
    except RankscopeError as error:
        say(f"the results could not be fetched: {error}")
        return False
    return True


def _give_back(instance: int, account: Account, say: Say, timing: Pace) -> None:
    last: RankscopeError | None = None
    for _ in range(timing.destroy_tries):
        try:
            account.destroy(instance)
        except RankscopeError as error:
            last = error
        try:
            if account.look(instance) is None:
                say(f"instance {instance} was destroyed")
                return
        except RankscopeError as error:
            last = error
        time.sleep(timing.poll_s)
    say(f"instance {instance} COULD NOT BE DESTROYED and may still cost money: {last or 'Vast still lists it'}")
    say(f"  vastai destroy instance {instance}")


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """TERM and HUP end this as Ctrl-C does, so that the machine is given back."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
