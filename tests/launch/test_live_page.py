"""`rankscope run --page`, as a person sees it: in Chromium, on a job with a slow rank that then hangs."""

from __future__ import annotations

import re
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Rankscope, Started, wait_until
from in_tmux import TRAINS

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
from chromium import OVERLAPS, Browser, Page, find_chromium

pytestmark = pytest.mark.slow


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.skip("not installed: chromium")
    browser = Browser(program, tmp_path / "profile")
    yield browser
    browser.close()


def address(job: Started) -> str:
    job.shows("rankscope: page: ")
    return str(
        re.findall(r"rankscope: page: (http://127\.0\.0\.1:\d+/[\w-]{20,}/)$", job.err.decode(), re.MULTILINE)[0]
    )


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def sample(url: str, name: str) -> float:
    line = next(line for line in get(f"{url}metrics").splitlines() if line.startswith(f"{name} "))
    return float(line.rpartition(" ")[2])


def cells(page: Page, rank: int) -> list[str]:
    found: list[str] = page.value(
        f"[...document.querySelectorAll('tr[data-rank=\"{rank}\"] td')].map(e => e.innerText)"
    )
    return found


def test_page_shows_the_slow_rank_then_who_waits_and_in_the_end_the_report(
    rankscope: Rankscope, browser: Browser
) -> None:
    hang = rankscope.folder / "hang.now"
    options = ("--on-hang", "stop", "--stall-after", "20", "--page")
    job = rankscope.start(*options, rankscope.script(TRAINS), hang, nproc=4)
    url = address(job)
    wait_until(lambda: sample(url, "rankscope_steps_total") > 20, 90.0)
    page = Page(browser, url)

    def shares(rank: int) -> str:
        return str(page.value(f"document.querySelector('tr[data-rank=\"{rank}\"] svg')?.getAttribute('aria-label')"))

    def waiting(rank: int) -> int:
        return int((re.findall(r"waiting for ranks (\d+) %", shares(rank)) or ["-1"])[0])

    assert wait_until(lambda: waiting(0) > 40, 30.0), shares(0)
    assert -1 < waiting(2) < 20, "the others wait for it, not it for them"
    assert page.value("document.getElementById('outcome').textContent") == "RUNNING"
    assert "train.py · 4 ranks · step " in page.value("document.getElementById('head').textContent")
    assert "<script>document.title" in page.value("document.getElementById('output').textContent")
    assert page.value("document.title") == "train.py, live", "what the job prints is text"
    assert page.value(OVERLAPS) == []
    page.resize(390)
    assert page.value(OVERLAPS) == []
    assert page.value("document.documentElement.scrollWidth") <= 390
    first = int(cells(page, 0)[2].replace(",", ""))
    assert wait_until(lambda: int(cells(page, 0)[2].replace(",", "")) > first, 10.0), "it goes on by itself"
    hang.touch()
    assert wait_until(lambda: "in no call for" in cells(page, 3)[1], 30.0), cells(page, 3)
    for rank in (0, 1, 2):
        assert cells(page, rank)[1].startswith("backward at train.py:11"), cells(page, rank)
        assert cells(page, rank)[5] == "3"
    assert page.value("document.querySelector('tr.awaited').dataset.rank") == "3"
    said = get(f"{url}metrics")
    assert "rankscope_ranks_alive 4\n" in said
    assert float(re.findall(r'rankscope_rank_still_seconds\{rank="3"\} (\S+)', said)[0]) > 3
    assert wait_until(lambda: job.process.poll() is not None, 60.0)
    ended = job.wait()
    assert ended.code == 75
    assert wait_until(lambda: str(page.value("document.title")).startswith("HANG"), 10.0), page.value("document.title")
    assert "rank 3 is sleeping in train.py:10" in page.value("document.querySelector('h1').textContent")
    assert page.complaints() == []
    assert {request.partition("?")[0] for request in page.requests()} <= {f"{url}board", url}
    assert not (ended.run_dir / "page.url").exists()
    with pytest.raises(OSError, match="refused"):
        get(url)


def test_nobody_without_the_token_sees_anything_and_nothing_can_be_changed(rankscope: Rankscope) -> None:
    script = rankscope.script("import time\nprint('ready', flush=True)\ntime.sleep(600)")
    job = rankscope.start("--page", script)
    url = address(job)
    job.shows("R0:ready")
    port = int(url.split(":")[2].partition("/")[0])
    assert (job.run_dir / "page.url").read_text() == f"{url}\n"
    assert (job.run_dir / "page.url").stat().st_mode & 0o777 == 0o600
    for wrong in (
        f"http://127.0.0.1:{port}/",
        f"http://127.0.0.1:{port}/metrics",
        f"{url[:-2]}x/",
        f"{url}../etc/passwd",
    ):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(wrong)
    for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10)
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]  # they never ask for anything
    time.sleep(4.0)
    assert 'rankscope_verdict{outcome="running",cause="",certainty=""} 1' in get(f"{url}metrics")
    with socket.create_connection(("127.0.0.1", port)) as rude:
        rude.sendall(b"GET /" + b"x" * 100_000)
        time.sleep(0.5)
    assert "rankscope_ranks 2" in get(f"{url}metrics")
    for each in held:
        each.close()
    assert job.process.poll() is None


def test_good_run_with_nobody_looking_ends_at_once_and_leaves_a_report(rankscope: Rankscope) -> None:
    ended = rankscope.run("--page", rankscope.script("print('done')"))
    assert ended.code == 0
    assert ended.verdict["ended_at"] > time.time() - 6
    assert (ended.run_dir / "report.html").exists()


def test_port_that_is_taken_is_said_in_a_line(rankscope: Rankscope) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = rankscope.run("--page", port, rankscope.script("print('never')"))
    assert ended.code == 2
    assert f"--page {port}: cannot listen on 127.0.0.1:{port}: Address already in use" in ended.err.decode()
