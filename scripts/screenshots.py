"""Makes docs/images/*.png: runs programs of the zoo that fail, and takes pictures of the pages they leave.

python scripts/screenshots.py                 all pictures; needs torch and Chromium
python scripts/screenshots.py hang-light      one of them

`--from NAME=FOLDER` takes the page of a run that is there already, in place of a new one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
sys.path.insert(0, str(ROOT / "tests" / "report"))

from chromium import Browser, Page, find_chromium  # noqa: E402


@dataclass(frozen=True, slots=True)
class Picture:
    name: str
    case: str
    """A program of zoo/cases."""
    ranks: int
    width: int
    section: str = ""
    """The part of the page, by its id; empty for its top."""
    height: int = 0
    """Of the top; 0 for the whole part."""
    dark: bool = False


PICTURES = (
    Picture("hang-light", "eval_batchnorm", 3, 1280, height=900),
    Picture("hang-dark", "eval_batchnorm", 3, 1280, height=900, dark=True),
    Picture("hang-phone", "eval_batchnorm", 3, 390, height=844),
    Picture("stacks", "eval_batchnorm", 3, 1280, section="stacks"),
    Picture("calls", "eval_batchnorm", 3, 1280, section="calls"),
    Picture("waits", "replica_groups", 4, 1280, section="waits"),
    Picture("time", "metrics_push", 3, 1280, section="time"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="*", help="pictures to make (default: all)")
    parser.add_argument("--from", dest="given", action="append", default=[], metavar="CASE=FOLDER")
    chosen = parser.parse_args()
    program = find_chromium()
    if program is None:
        print("screenshots: no Chromium on this machine (apt-get install chromium)", file=sys.stderr)
        return 1
    wanted = [picture for picture in PICTURES if not chosen.name or picture.name in chosen.name]
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="screenshots-") as scratch:
        pages = {
            case: Path(folder) / "report.html" for case, _, folder in (each.partition("=") for each in chosen.given)
        }
        browser = Browser(program, Path(scratch) / "profile")
        try:
            for picture in wanted:
                if picture.case not in pages:
                    pages[picture.case] = run(picture, Path(scratch))
                take(browser, picture, pages[picture.case])
        finally:
            browser.close()
    return 0


def run(picture: Picture, scratch: Path) -> Path:
    """Runs the program until it has failed; its page."""
    folder = scratch / picture.case
    program = ROOT / "zoo" / "cases" / picture.case
    command = [sys.executable, "-m", "rankscope", "run", "--nproc-per-node", str(picture.ranks), "--on-hang", "stop"]
    command += ["--stall-after", "10", "--run-dir", str(folder), "train.py"]
    subprocess.run(command, cwd=program, stdin=subprocess.DEVNULL, check=False, timeout=300)
    return folder / "report.html"


def take(browser: Browser, picture: Picture, file: Path) -> None:
    page = Page(browser, file, picture.width, dark=picture.dark)
    if picture.section:
        box = page.value(
            f"(() => {{ const r = document.getElementById('{picture.section}').getBoundingClientRect();"
            "return [r.x, r.y + scrollY, r.width, r.height]; })()"
        )
        x, y, width, height = box
        clip = {"x": max(0, x - 28), "y": y - 20, "width": width + 56, "height": height + 40, "scale": 1}
    else:
        clip = {"x": 0, "y": 0, "width": picture.width, "height": picture.height, "scale": 1}
    target = IMAGES / f"{picture.name}.png"
    target.write_bytes(page.picture(clip))
    page.close()
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size // 1000} kB")


if __name__ == "__main__":
    sys.exit(main())
