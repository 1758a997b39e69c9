"""The documentation as a site: built strictly, of itself alone, with a page for every verb, and two pages in Korean."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from rankscope import cli
from rankscope.diagnosis.causes import CAUSES
from rankscope.verbs import brought_verbs

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT / "scripts"))
from site_pages import COPIES, relinked  # noqa: E402

VERBS = (*cli.VERBS, *sorted(name for name, entry in brought_verbs().items() if entry.value.startswith("rankscope.")))
TRANSLATED = ("start.md", "verdict.md")
FROM_ELSEWHERE = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["'](?:https?:)?//[^"']+|"""
    r"""<link\b(?=[^>]*rel=["'](?:stylesheet|preconnect|preload|icon)["'])[^>]*href=["'](?:https?:)?//[^"']+""",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="mkdocs-material is not installed: pip install 'rankscope[docs]'")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return folder


def test_the_strict_build_has_every_page(site: Path) -> None:
    made = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    pages = {page.relative_to(DOCS).with_suffix(".html").as_posix() for page in DOCS.rglob("*.md")}
    assert pages | {page.replace(".md", ".html") for page in COPIES.values()} <= made
    assert (site / "verdict.schema.json").read_bytes() == (DOCS / "verdict.schema.json").read_bytes()


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    asks = {page.name: FROM_ELSEWHERE.findall(page.read_text(encoding="utf-8")) for page in site.rglob("*.html")}
    assert len(asks) > 20
    assert {page: found for page, found in asks.items() if found} == {}


def test_what_would_be_loaded_from_elsewhere_is_seen() -> None:
    assert FROM_ELSEWHERE.search('<link rel="stylesheet" href="https://fonts.googleapis.com/css?family=Roboto">')
    assert FROM_ELSEWHERE.search('<script async src="//www.googletagmanager.com/gtag/js"></script>')
    assert not FROM_ELSEWHERE.search('<link rel="stylesheet" href="assets/stylesheets/main.css">')


def nav_pages(entries: object) -> Iterator[str]:
    if isinstance(entries, str):
        yield entries
    elif isinstance(entries, list):
        for entry in entries:
            yield from nav_pages(entry)
    elif isinstance(entries, dict):
        for entry in entries.values():
            yield from nav_pages(entry)


def test_every_page_is_in_the_navigation_once() -> None:
    listed = list(nav_pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} | set(COPIES.values())
    assert len(listed) == len(set(listed))
    assert set(listed) == pages


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_page_whose_options_exist(verb: str) -> None:
    text = (DOCS / "verbs" / f"{verb}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# rankscope {verb}\n")
    lines = [line for line in text.splitlines() if f"rankscope {verb}" in line and "cap-add" not in line]
    options = {option for line in lines for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", line.split(" -- ")[0])}
    place = ["slurm"] if verb == "launch" else []
    told = subprocess.run(
        [sys.executable, "-m", "rankscope", verb, *place, "--help"], capture_output=True, text=True, check=True
    ).stdout
    of_other_places = {"--gpus", "--image", "--config", "--num-gpus"} if verb == "launch" else set()
    of_ranks = {"--lr"} if verb == "run" else set()
    assert [option for option in sorted(options - of_other_places - of_ranks) if option not in told] == []


def test_there_is_no_page_of_a_verb_that_does_not_exist() -> None:
    assert {page.stem for page in (DOCS / "verbs").glob("*.md")} == set(VERBS)


def levels(page: Path) -> list[int]:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [len(marks) for marks in re.findall(r"^(#+) ", text, re.MULTILINE)]


@pytest.mark.parametrize("page", TRANSLATED)
def test_korean_pages_have_the_headings_commands_and_links_of_the_english_ones(page: str) -> None:
    english, korean = DOCS / page, DOCS / "ko" / page
    assert levels(korean) == levels(english)
    commands = r"^rankscope .*$|`(rankscope \w+ [^`]+)`"
    assert set(re.findall(commands, korean.read_text(encoding="utf-8"), re.MULTILINE)) == set(
        re.findall(commands, english.read_text(encoding="utf-8"), re.MULTILINE)
    )


def test_the_korean_table_of_causes_is_that_of_the_code() -> None:
    rows = re.findall(
        r"^\| `([a-z-]+)` \| ([a-z, ]+) \| ([^|]+) \| ([^|]+) \| (\w+) \|$",
        (DOCS / "ko" / "verdict.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert [(cause, outcomes, again) for cause, outcomes, _, _, again in rows] == [
        (cause.id, ", ".join(cause.outcomes), cause.retry) for cause in CAUSES.values()
    ]
    assert [cause for cause, _, meaning, fix, _ in rows if not re.search("[가-힣]", meaning + fix)] == []


def test_the_korean_page_names_every_field_of_the_english_one() -> None:
    fields = r"^\| ((?:`\w+`(?:, )?)+) \|"
    english = re.findall(fields, (DOCS / "verdict.md").read_text(encoding="utf-8").split("## ")[0], re.MULTILINE)
    korean = re.findall(fields, (DOCS / "ko" / "verdict.md").read_text(encoding="utf-8").split("## ")[0], re.MULTILINE)
    assert korean == english
    assert len(english) > 10


def test_links_that_leave_the_documentation_lead_to_pages_or_lose_their_address() -> None:
    assert relinked("[a](../README.md#exit-codes)", "torchrun.md") == "[a](index.md#exit-codes)"
    assert relinked("[a](../../README.md)", "verbs/run.md") == "[a](../index.md)"
    assert relinked("[a](docs/start.md)", "index.md") == "[a](start.md)"
    assert relinked("[a](../zoo/run.py)", "zoo.md") == "a"
    assert relinked("[a](../zoo/gone.py)", "zoo.md") == "[a](../zoo/gone.py)"
    assert relinked("```text\n[a](../zoo/run.py)\n```", "zoo.md") == "```text\n[a](../zoo/run.py)\n```"


def test_every_file_that_readme_links_to_exists() -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert [link for link in links if not (ROOT / link).exists()] == []
    assert len(links) > 20
