"""Records the zoo: runs cases and keeps the evidence of each as it was when its verdict was due.

python zoo/record.py                 every case that is not recorded yet
python zoo/record.py NAME... --again some, anew
python zoo/record.py --nccl          the cases for NCCL, on a machine with a GPU

A case is recorded only when its verdict was right. The recordings lie in zoo/recorded, a file a case; paths, host and
scratch folders of the machine are masked. `tests/test_corpus.py` diagnoses all of them again.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from corpus import Recording, load_recording, looks_of, recording_path, save_recording
from expectation import CASES, NCCL_CASES, STRANGERS, case_names
from run import explain, run_and_judge
from several import run_several

_RECORDER = (sys.executable, str(Path(__file__).resolve().parent / "recorder.py"))


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Record the evidence of zoo cases.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="cases to record; all when none is given")
    parser.add_argument("--again", action="store_true", help="also those that are recorded already")
    parser.add_argument("--into", type=Path, metavar="DIR", help="another folder for the recordings")
    parser.add_argument("--keep-wrong", action="store_true", help="record also a case whose verdict was not right")
    parser.add_argument("--ranks", type=int, metavar="N", help="run on so many ranks, whatever the case asks for")
    parser.add_argument("--at-once", type=int, metavar="N", help="cases that run beside one another")
    parser.add_argument("--root", type=Path, default=CASES, help="the folder of the cases")
    parser.add_argument("--nccl", dest="root", action="store_const", const=NCCL_CASES, help="the cases for NCCL")
    parser.add_argument("--strangers", dest="root", action="store_const", const=STRANGERS, help="strangers' programs")
    arguments = parser.parse_args(argv)
    unknown = sorted(set(arguments.names) - set(case_names(arguments.root)))
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    names = arguments.names or case_names(arguments.root)
    places = {name: recording_path(name, arguments.root, arguments.into) for name in names}
    if not arguments.again:
        names = [name for name in names if not places[name].exists()]
    base = Path(tempfile.mkdtemp(prefix="rankscope-record-"))
    wrong = 0
    at_once = arguments.at_once
    with run_several(names, base, arguments.root, command=_RECORDER, ranks=arguments.ranks, at_once=at_once) as runs:
        for name in names:
            result = runs[name].result()
            if not result.judgement.right and not arguments.keep_wrong:
                # Once more, with nothing beside it.
                folder = base / f"{name}-again"
                result = run_and_judge(name, folder, arguments.root, command=_RECORDER, ranks=arguments.ranks)
            if not result.judgement.right:
                wrong += 1
                print(f"{name}: wrong\n{explain(result)}", flush=True)
                if not arguments.keep_wrong:
                    continue
            save_recording(Recording(case=name, looks=looks_of(result.case, result.folder)), places[name])
            size = places[name].stat().st_size
            seconds = "" if result.judgement.seconds is None else f", told after {result.judgement.seconds:.1f} s"
            print(f"{name}: {len(load_recording(places[name]).looks)} looks, {size / 1024:.0f} KB{seconds}", flush=True)
    shutil.rmtree(base)
    print(f"{len(names) - wrong} recorded, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
