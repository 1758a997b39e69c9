"""Vast: a machine that was rented is always given back or named, and the job's exit code comes back."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from vast_place import PYTHON, Place
from vast_server import KEY, VastServer

from conftest import COMMAND, wait_until
from rankscope.clusters.command import launch_command
from rankscope.clusters.vast.plan import OfferLimits, VastPlan, offer_query
from rankscope.clusters.vast.session import Pace, Wanted, launch
from rankscope.errors import RankscopeError, UsageError


@pytest.fixture
def server() -> Iterator[VastServer]:
    made = VastServer()
    yield made
    made.close()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


class Launched:
    """One launch in this process against the server, with everything it said."""

    def __init__(self, place: Place, server: VastServer, plan: VastPlan, **wanted: object) -> None:
        pytest.importorskip("vastai", reason="the extra 'vast' is not installed")
        from rankscope.clusters.vast.account import Account

        self.said: list[str] = []
        self.code: int | None = None
        self.error: BaseException | None = None
        given = Wanted(place.results, "ssh-ed25519 AAAA me", place.key, **wanted)  # type: ignore[arg-type]
        pace = Pace(poll_s=0.02, lost_limit_s=30.0, destroy_tries=4)
        try:
            self.code = launch(plan, given, Account(server.url), self.said.append, pace)
        except (RankscopeError, KeyboardInterrupt) as error:
            self.error = error

    @property
    def text(self) -> str:
        return "\n".join([*self.said, str(self.error or "")])


@pytest.mark.parametrize("code", [0, 77])
def test_job_runs_on_a_rented_machine_and_its_exit_code_and_results_come_back(
    place: Place, server: VastServer, capfdbinary: pytest.CaptureFixture[bytes], code: int
) -> None:
    (place.work / "best.pt").write_text("weights")
    (place.folder / "unreachable").write_text("3")
    done = Launched(place, server, place.plan(code), fetch=("best.pt", "not there"), environment=b"TOKEN=hush\n")
    assert (done.code, done.error) == (code, None), done.text
    shown = capfdbinary.readouterr().out.decode()
    assert f"trainer: -m rankscope run --run-dir {place.machine}/run train.py\n" in shown
    success = "the job has completed successfully"
    assert (success in shown, success in done.text) == ((code == 0),) * 2
    assert (f"failed with exit code {code}" in done.text) == (code != 0)
    assert (place.results / "job.log").read_text() == shown
    assert (place.results / "run/verdict.json").exists()
    assert (place.results / "work/best.pt").read_text() == "weights"
    (entries,) = (place.machine / "own").glob("rankscope-*.dist-info/entry_points.txt")
    assert "train = rankscope.train.verbs:TRAIN" in entries.read_text(), "without it there is no verb 'train' there"
    assert not (place.machine / "work/.git").exists()
    assert not (place.machine / "work/runs").exists()
    assert server.instances == {}
    assert "instance 1011 was destroyed" in done.said
    search = server.asked("POST", "/api/v0/bundles/")[0]
    assert (search["num_gpus"], search["reliability"], search["disk_space"]) == (
        *({"eq": "2"}, {"gte": "0.98"}, {"gte": "64"}),
    )
    assert search["order"] == [["dph_total", "asc"]]
    rented = server.asked("PUT", "/api/v0/asks/11/")[0]
    assert (rented["label"], rented["disk"], rented["runtype"]) == ("rankscope-train-abc", 64.0, "ssh_direc ssh_proxy")
    assert server.asked("POST", "/api/v0/instances/1011/ssh/") == [{"ssh_key": "ssh-ed25519 AAAA me"}]
    secrets = [KEY, "hush"]
    calls = (place.folder / "ssh-calls").read_text()
    bodies = str([body for _, _, body, _ in server.requests])
    kept = [path.read_text() for path in place.results.rglob("*") if path.is_file()]
    for secret in secrets:
        assert all(secret not in text for text in [shown, done.text, calls, bodies, *kept])


def test_machine_is_kept_and_named_with_its_price_unless_asked(place: Place, server: VastServer) -> None:
    done = Launched(place, server, place.plan(77, auto_shutdown=False))
    assert done.code == 77
    assert list(server.instances) == [1011]
    assert "instance 1011 IS STILL RUNNING and costs $2.00 an hour" in done.text
    assert "vastai destroy instance 1011" in done.text
    assert server.asked("PUT", "/api/v0/asks/11/")[0]["onstart"] is None
    server.refused_offers = {11, 12}
    assert "instance 1011 of an earlier run, train-abc, is still there" in Launched(place, server, place.plan()).text


def test_offer_that_is_taken_makes_room_for_the_next(place: Place, server: VastServer) -> None:
    server.refused_offers = {11}
    done = Launched(place, server, place.plan())
    assert done.code == 0
    assert "the offer is taken" in done.text
    assert "rented as instance 1012" in done.text


def test_machine_whose_answer_was_lost_is_given_back(place: Place, server: VastServer) -> None:
    server.lost_answers = {11, 12}
    done = Launched(place, server, place.plan(auto_shutdown=False))
    assert "none of 2 offers could be rented" in str(done.error)
    assert server.instances == {}
    assert "instance 1011 was rented all the same" in done.said
    assert "instance 1012 was destroyed" in done.said


def test_machine_that_never_starts_is_given_back(place: Place, server: VastServer) -> None:
    server.states = ["loading", "exited"]
    done = Launched(place, server, place.plan())
    assert "instance 1011 is exited" in str(done.error)
    assert server.instances == {}
    server.states = ["loading"]
    done = Launched(place, server, place.plan(start_limit_s=0.2))
    assert "was not reachable within 0.2 s: loading pulling the image" in str(done.error)
    assert server.instances == {}


def test_destroying_is_tried_again_and_what_stays_is_said_without_the_key(place: Place, server: VastServer) -> None:
    server.fail_destroys = 2
    assert Launched(place, server, place.plan()).code == 0
    assert server.instances == {}
    server.fail_destroys = 1000
    shutil.rmtree(place.results)
    done = Launched(place, server, place.plan())
    assert done.code == 0
    assert "instance 1011 COULD NOT BE DESTROYED" in done.text
    assert KEY not in done.text
    assert "(key)" in done.text


def test_job_that_is_gone_without_an_exit_code_is_no_success(place: Place, server: VastServer) -> None:
    place.tool("python3", PYTHON.replace('exit "$(<code)"', "kill -9 $PPID"))
    done = Launched(place, server, place.plan())
    assert "gone without an exit code" in str(done.error)
    assert server.instances == {}
    assert (place.results / "run/verdict.json").exists()


def test_signal_gives_the_machine_back(place: Place, server: VastServer) -> None:
    (place.work / "wait").write_text("")

    def stop() -> None:
        assert wait_until((place.machine / "run/verdict.json").exists, 60.0)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop).start()
    done = Launched(place, server, place.plan())
    pid = int((place.machine / "pid").read_text())
    os.killpg(pid, signal.SIGKILL)
    assert isinstance(done.error, KeyboardInterrupt)
    assert server.instances == {}
    assert "instance 1011 was destroyed" in done.said


def test_mistakes_before_a_machine_is_rented(
    place: Place, server: VastServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.offers = []
    done = Launched(place, server, place.plan())
    assert "no offer of Vast fits now (num_gpus=2 reliability>=0.98 disk_space>=64)" in str(done.error)
    server.key = "another"
    done = Launched(place, server, place.plan())
    assert "Vast refused the key (401)" in str(done.error)
    assert KEY not in done.text
    monkeypatch.delenv("VAST_API_KEY")
    monkeypatch.chdir(place.work)
    with pytest.raises(UsageError, match="no key of Vast"):
        launch_command(["vast", "--num-gpus", "2", "--", "train.py"])
    monkeypatch.setitem(sys.modules, "vastai", None)
    with pytest.raises(UsageError, match=r"pip install 'rankscope\[vast\]'"):
        launch_command(["vast", "--num-gpus", "2", "--", "train.py"])
    assert launch_command(["vast", "--num-gpus", "2", "--dry-run", "--", "train.py"]) == 0
    capsys.readouterr()
    place.key.unlink()
    monkeypatch.undo()
    assert server.asked("PUT", "/api/v0/asks/11/") == []


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (["--num-gpus", "two", "--", "train.py"], "--num-gpus"),
        (["--num-gpus", "2"], "nothing to run"),
        (["--num-gpus", "0", "--", "train.py"], "give 1 or more"),
        (["--num-gpus", "2", "--config", "nothing.yaml"], "no such file"),
        (["--num-gpus", "2", "--config", "/etc/hostname"], "is not inside of --workdir"),
        (["--num-gpus", "2", "--max-price", "-1", "--", "train.py"], "above 0"),
        (["--num-gpus", "2", "--min-reliability", "98", "--", "train.py"], "from 0 to 1"),
        (["--num-gpus", "2", "--offer", "cheap", "--", "train.py"], "cuda_vers>=12.8"),
        (["--num-gpus", "2", "--fetch", "../x", "--", "train.py"], "inside of the work folder"),
        (["--num-gpus", "2", "--", "--run-dir", "x", "train.py"], "stands before the --"),
        (["--num-gpus", "2", "--workdir", "nowhere", "--", "train.py"], "is no folder"),
    ],
)
def test_mistake_is_one_line(place: Place, monkeypatch: pytest.MonkeyPatch, words: list[str], word: str) -> None:
    monkeypatch.chdir(place.work)
    with pytest.raises(UsageError, match=word):
        launch_command(["vast", *words])


def test_dry_run_prints_query_and_script_and_needs_neither_key_nor_package(place: Place) -> None:
    (place.work / "my.yaml").write_text("training: {batch_size: 4}\n")
    words = ["launch", "vast", "--config", "my.yaml", "--num-gpus", "2", "--gpu", "RTX_4090", "--max-price", "1.5"]
    told = subprocess.run(
        [
            *COMMAND,
            *words,
            "--offer",
            "cuda_vers>=12.8",
            "--setup",
            "pip install x\nmake",
            "--auto-shutdown",
            "--dry-run",
        ],
        cwd=place.work,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    query = "num_gpus=2 gpu_name=RTX_4090 dph_total<=1.5 reliability>=0.98 disk_space>=64 cuda_vers>=12.8"
    assert query in told
    assert (
        "\npython3 -m rankscope train --config my.yaml --nproc-per-node 2 --run-dir /workspace/rankscope/run "
        "-- --comm-debug\n" in told
    )
    assert "    pip install x\n    make\n" in told
    assert KEY not in told
    script = told[told.index("job.sh:\n") + 8 :]
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    limits = OfferLimits(2, "RTX 4090", 1.5, more=("cuda_vers>=12.8",))
    assert offer_query(limits) == query


def test_query_is_understood_by_vasts_own_package() -> None:
    pytest.importorskip("vastai", reason="the extra 'vast' is not installed")
    from vastai.api.query import offers_alias, offers_fields, offers_mult, parse_query

    limits = OfferLimits(4, "H100 SXM", 8.0, 0.99, 200.0, ("cuda_vers>=12.8", "inet_down>=500"))
    assert parse_query(offer_query(limits), {}, offers_fields, offers_alias, offers_mult) == {
        "num_gpus": {"eq": "4"},
        "gpu_name": {"eq": "H100 SXM"},
        "dph_total": {"lte": "8"},
        "reliability": {"gte": "0.99"},
        "disk_space": {"gte": "200"},
        "cuda_max_good": {"gte": "12.8"},
        "inet_down": {"gte": "500"},
    }
