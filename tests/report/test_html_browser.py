"""The page in a real browser: ten incidents of the zoo, hostile text, a phone, the clipboard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import CUT, OVERLAPS, Browser, Page, find_chromium
from msgspec.structs import replace
from recorded_incidents import TEN, incident, of_many, recorded

from rankscope.evidence.model import Evidence, RaisedException
from rankscope.report.conclude import conclude
from rankscope.report.html.page import render_page
from rankscope.report.markdown import markdown
from rankscope.report.plain_text import plain
from rankscope.report.views.incident import Incident, incident_of

pytestmark = pytest.mark.browser
PHONE, DESK = 390, 1280
HOSTILE = (
    "</script><script>window.taken = 1</script>",
    '"><img src=x onerror="window.taken = 2">',
    "' onmouseover='window.taken = 3",
    "</pre></details></main><script src=https://example.invalid/x.js></script>",
    "<style>body { display: none }</style><base href=https://example.invalid>",
    "{{ 7 * 7 }} {% include 'page.html' %}",
    "\x1b]0;title\x07\x1b[31mred\x1b[0m \u202e gnp.exe",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium on this machine (apt-get install chromium)")
    started = Browser(program, tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


def page_of(browser: Browser, folder: Path, about: Incident, width: int = DESK, **options: bool) -> Page:
    file = folder / "report.html"
    file.write_text(render_page(about), encoding="utf-8")
    return Page(browser, file, width, **options)


@pytest.mark.parametrize("name", TEN)
def test_recorded_incident_is_a_quiet_page_that_says_the_verdict(browser: Browser, tmp_path: Path, name: str) -> None:
    about = incident(name)
    page = page_of(browser, tmp_path, about)
    assert page.value("document.querySelector('h1').textContent") == plain(about.verdict.headline)
    body = page.value("document.body.innerText")
    for text in (*about.verdict.fix, *about.verdict.because):
        assert plain(text.replace("`", "")) in body
    assert page.value(OVERLAPS) == []
    assert page.value(CUT) == []
    page.resize(PHONE)
    assert page.value("document.documentElement.scrollWidth") <= PHONE
    assert (
        page.value("[...document.querySelectorAll('.code')].filter((e) => e.scrollWidth > e.clientWidth).length") == 0
    )
    assert page.value(OVERLAPS) == []
    assert page.value(CUT) == []
    page.value("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert page.value("document.documentElement.scrollWidth") <= PHONE
    assert page.value(OVERLAPS) == []
    assert page.value(CUT) == []
    assert page.complaints() == []
    assert page.requests() == []
    page.close()


@pytest.mark.parametrize("name", [TEN[0], TEN[4], TEN[7]])
def test_page_in_korean_says_the_same(browser: Browser, tmp_path: Path, name: str) -> None:
    evidence = recorded(name)
    about = incident_of(conclude(evidence, "ko"), evidence)
    page = page_of(browser, tmp_path, about, PHONE)
    assert page.value("document.documentElement.lang") == "ko"
    assert page.value("document.querySelector('h1').textContent") == plain(about.verdict.headline)
    headings = page.value("[...document.querySelectorAll('h2, th, nav a')].map((each) => each.textContent)")
    assert len(headings) > 10
    assert [text for text in headings if not re.search("[가-힣0-9]", text)] == []
    assert page.value("document.documentElement.scrollWidth") <= PHONE
    assert page.value(OVERLAPS) == []
    assert page.value(CUT) == []
    assert page.complaints() == []
    browser.ask("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    page.value("document.getElementById('copy').click()")
    page.value("new Promise((done) => setTimeout(done, 300))")
    assert page.value("document.getElementById('copy').textContent") == "복사했다"
    page.close()


@pytest.mark.parametrize("name", TEN[:3])
def test_button_copies_the_markdown(browser: Browser, tmp_path: Path, name: str) -> None:
    about = incident(name)
    page = page_of(browser, tmp_path, about)
    browser.ask("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    page.value("document.getElementById('copy').click()")
    copied = page.value(
        "new Promise((done) => setTimeout(done, 300)).then(() => navigator.clipboard.readText()).catch(String)"
    )
    assert copied.replace("\r\n", "\n").strip() == markdown(about).strip()
    assert page.value("document.getElementById('copy').textContent") == "Copied"
    page.close()


def test_page_without_scripts_shows_everything_but_what_needs_them(browser: Browser, tmp_path: Path) -> None:
    about = incident(TEN[0])
    page = page_of(browser, tmp_path, about, scripts=False)
    root = page.ask("DOM.getDocument")["root"]["nodeId"]

    def hidden(selector: str) -> bool:
        node = page.ask("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        return "hidden" in page.ask("DOM.getAttributes", nodeId=node)["attributes"]

    assert hidden("#copy")
    assert hidden("#search")
    heading = page.ask("DOM.querySelector", nodeId=root, selector="h1")["nodeId"]
    shown = page.ask("DOM.getOuterHTML", nodeId=heading)["outerHTML"]
    assert about.verdict.headline in shown.replace("<wbr>", "")
    page.close()


def test_the_look_for_covered_text_finds_it(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "covered.html"
    file.write_text(
        "<style>b { position: absolute; left: 30px; top: 9px }</style><p>a line of text</p><b>covers it</b>"
    )
    page = Page(browser, file)
    assert sorted(page.value(OVERLAPS)[0].split(" / ")) == ["a line of text", "covers it"]
    page.close()


def test_dark_page_is_dark(browser: Browser, tmp_path: Path) -> None:
    shade = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0)"
    light = page_of(browser, tmp_path, incident(TEN[0]))
    assert light.value(shade) > 600
    light.close()
    dark = page_of(browser, tmp_path, incident(TEN[0]), dark=True)
    assert dark.value(shade) < 150
    dark.close()


def test_search_shows_the_ranks_that_wrote_it(browser: Browser, tmp_path: Path) -> None:
    evidence = recorded(TEN[0])
    told = (("all fine",), ("needle in rank 1",), ("fine too",))
    ranks = tuple(replace(seen, output_tail=lines) for seen, lines in zip(evidence.ranks, told, strict=True))
    page = page_of(browser, tmp_path, incident_of(conclude(evidence), replace(evidence, ranks=ranks)))
    page.value(
        "const field = document.getElementById('find');field.value = 'NEEDLE'; field.dispatchEvent(new Event('input'));"
    )
    page.value("new Promise((done) => setTimeout(done, 300))")
    assert page.value("document.getElementById('found').textContent") == "1 line"
    assert page.value("[...document.querySelectorAll('.hit')].map((e) => e.textContent)") == ["needle in rank 1"]
    page.close()


def hostile(evidence: Evidence) -> Evidence:
    """Everything that a job can write or name, written and named by somebody who means harm."""
    huge = "A" * 10_000_000
    text = HOSTILE[0]
    ranks = []
    for seen in evidence.ranks:
        error = RaisedException(text, " ".join(HOSTILE), seen.started_at + 1, (), "hook")
        stacks = tuple(
            replace(
                sample,
                threads=tuple(
                    replace(
                        thread,
                        name=text,
                        frames=tuple(replace(frame, function=f"{frame.function}{text}") for frame in thread.frames),
                    )
                    for thread in sample.threads
                ),
            )
            for sample in seen.stacks
        )
        assert seen.progress is not None
        stages = tuple(replace(stage, label=HOSTILE[1], note=HOSTILE[2]) for stage in seen.progress.stages)
        ranks.append(
            replace(
                seen,
                host=text,
                stacks=stacks,
                exceptions=(error,) if seen.rank == 2 else (),
                output_tail=(*HOSTILE, huge),
                error_tail=(huge, *HOSTILE),
                environment={**seen.environment, text: f"{text}{seen.rank % 2}"},
                missing={text: HOSTILE[3]},
                progress=replace(seen.progress, stages=stages),
            )
        )
    sources = tuple(
        replace(each, text="\n".join(f"{line}  # {text}" for line in each.text.split("\n")))
        for each in evidence.sources
    )
    hosts = tuple(replace(host, host=text, kernel_log=HOSTILE) for host in evidence.hosts)
    return replace(
        evidence, ranks=tuple(ranks), sources=sources, hosts=hosts, command=HOSTILE, versions={text: HOSTILE[1]}
    )


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_hostile_text_is_shown_as_text(browser: Browser, tmp_path: Path, width: int) -> None:
    evidence = hostile(recorded(TEN[0]))
    verdict = replace(
        conclude(evidence), headline=" ".join(HOSTILE[:4]), because=HOSTILE, fix=HOSTILE, notes=HOSTILE, outcome="hang"
    )
    page = page_of(browser, tmp_path, incident_of(verdict, evidence), width)
    assert (tmp_path / "report.html").stat().st_size < 1_000_000
    assert page.value("typeof window.taken") == "undefined"
    assert page.value("document.scripts.length") == 1
    assert page.value("document.querySelectorAll('img, base, iframe, link, [onerror], [onmouseover]').length") == 0
    page.value("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    shown = page.value("document.querySelector('#output').textContent")
    for text in HOSTILE[:6]:
        assert text in shown
    assert "9,999,400 more characters" in shown
    assert "49" not in page.value("document.querySelector('h1').textContent")
    assert page.value("document.documentElement.scrollWidth") <= width
    assert page.value(OVERLAPS) == []
    assert page.value(CUT) == []
    assert page.complaints() == []
    assert page.requests() == []
    page.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_4096_ranks_are_drawn_at_once(browser: Browser, tmp_path: Path) -> None:
    evidence = of_many(4096)
    page = page_of(browser, tmp_path, incident_of(conclude(evidence), evidence))
    assert (tmp_path / "report.html").stat().st_size < 6_000_000
    drawn = page.value(
        "new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(performance.now()), 0)))"
    )
    assert drawn < 2000
    assert "ranks 1-4095" in page.value("document.body.innerText")
    assert page.value(OVERLAPS) == []
    assert page.value(CUT) == []
    page.close()
