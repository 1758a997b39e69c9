"""Among the ranks that ended: who began it, who only failed as a consequence, who left too early."""

from __future__ import annotations

from typing import Any

import factories as make
import pytest
from ended_ranks import ALL_REDUCE, CLOSED, MISMATCH, RESET, STORE, TIMED_OUT, WATCHDOG, failed, origin, victim
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rankscope.diagnosis.facts.endings import FailedAsConsequence, MemoryKiller
from rankscope.diagnosis.rules.crashes.endings import explain_endings, explain_exception, explain_left
from rankscope.evidence.model import EarlierException, HostEvidence, NamedPath, RaisedException, RankEvidence
from rankscope.evidence.tracebacks import find_tracebacks
from rankscope.report.words import doing, headline, sentence
from rankscope.report.words.advice import advise

HEAD = "Traceback (most recent call last):"


def test_the_rank_that_raised_is_the_origin_and_broken_connections_are_victims() -> None:
    culprit = failed(
        1, "KeyError", "'Returns'", make.frame("data.py", 22, "to_tensors"), make.frame("train.py", 61, "train")
    )
    # The victims' clocks may be ahead: their words tell, not the time.
    endings = explain_endings(make.evidence(victim(0, at=make.NOW - 3), culprit, victim(2, RESET)))
    assert endings.victims == (0, 2)
    finding = endings.origin
    assert finding is not None
    assert (finding.outcome, finding.cause, finding.certainty) == ("crash", "exception", "proven")
    [named] = finding.culprits
    assert named.rank == 1
    assert named.where is not None
    assert (named.where.line, named.where.function) == (22, "to_tensors")
    assert headline(finding.summary) == "rank 1 raised KeyError in to_tensors (data.py:22): 'Returns'"
    assert FailedAsConsequence((0, 2)) in finding.because


def test_only_victims_have_no_origin() -> None:
    endings = explain_endings(make.evidence(victim(0, TIMED_OUT), make.rank(1)))
    assert (endings.origin, endings.victims, endings.left) == (None, (0,), ())


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("ConnectionResetError", "[Errno 104] Connection reset by peer"),
        ("BrokenPipeError", "[Errno 32] Broken pipe"),
        ("requests.exceptions.ConnectionError", "HTTPConnectionPool: Name or service not known"),
    ],
)
def test_a_broken_connection_of_the_users_own_is_no_consequence(kind: str, message: str) -> None:
    finding = origin(failed(0, kind, message), victim(1))
    assert (finding.cause, finding.culprits[0].rank) == ("exception", 0)


def test_an_unreachable_master_is_the_cause_only_where_rank_0_fails_alike() -> None:
    text = "The client socket has timed out after 6000ms while trying to connect to (no-such-host, 29710)."
    lost = [failed(n, "torch.distributed.DistNetworkError", text, STORE) for n in range(2)]
    finding = origin(*lost)
    assert finding.cause == "address-unreachable"
    assert [culprit.rank for culprit in finding.culprits] == [0, 1]
    endings = explain_endings(make.evidence(make.rank(0, exit=make.ended(0, make.NOW - 9)), lost[1]))
    assert (endings.origin, endings.victims, endings.left) == (None, (1,), (0,))


def test_a_taken_port_on_rank_0_makes_the_others_victims() -> None:
    taken = failed(0, "torch.distributed.DistNetworkError", "code: -98, name: EADDRINUSE", STORE)
    lost = failed(
        1, "torch.distributed.DistNetworkError", "The client socket has timed out after 6s while trying", STORE, at=1.0
    )
    endings = explain_endings(make.evidence(taken, lost))
    assert endings.victims == (1,)
    assert endings.origin is not None
    assert endings.origin.cause == "port-in-use"


def test_a_folder_made_twice_is_a_race_only_when_somebody_won() -> None:
    frames = (make.lib("os.py", "makedirs"), make.frame("train.py", 8, "prepare"))
    lost = [failed(n, "FileExistsError", "[Errno 17] File exists: '/out'", *frames) for n in range(2)]
    finding = origin(lost[1], victim(0))
    assert (finding.cause, finding.certainty, finding.culprits[0].rank) == ("path-race", "likely", 1)
    assert origin(*lost).cause == "exception"
    by_line = failed(1, "FileExistsError", "[Errno 17] File exists: '/out'", make.frame("train.py", 1, "prepare"))
    assert origin(by_line, victim(0), source={"train.py": "os.mkdir(out)\n"}).cause == "path-race"
    assert origin(by_line, victim(0), source={"train.py": "open(out, 'x')\n"}).cause == "exception"


def test_a_missing_file_is_a_race_only_when_another_rank_speaks_of_it() -> None:
    missing = failed(1, "FileNotFoundError", "[Errno 2] No such file or directory: '/cache/index.npy'")
    assert origin(missing, make.rank(0)).cause == "exception"
    assert origin(missing, make.rank(0, output_tail=("building /cache/index.npy",))).cause == "path-race"


def test_an_assertion_on_the_device_is_the_programs_error_though_a_thread_of_torch_ended_the_process() -> None:
    said = (
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        "  what():  [Rank 1] Process group watchdog thread terminated with exception: CUDA error: device-side assert",
    )
    ended = make.rank(1, exit=make.ended(-6), error_tail=said)
    finding = origin(ended, make.rank(0))
    assert (finding.outcome, finding.cause, [culprit.rank for culprit in finding.culprits]) == (
        "crash",
        "exception",
        [1],
    )
    elsewhere = make.rank(1, exit=make.ended(-6), error_tail=("saw a device-side assert yesterday", said[0]))
    assert origin(elsewhere, make.rank(0)).cause == "native-crash"


def test_who_gathers_the_errors_of_others_only_repeats_them() -> None:
    """As torch's checkpoints raise on every rank what some of them met, with a text that may have been cut."""
    text = 'CheckpointException ranks:dict_keys([2])\nTraceback (most recent call last): (RANK 2)\n  File "/x.py", line'
    ranks = [failed(n, "CheckpointException", text, make.frame("train.py", 30, "checkpoint")) for n in range(3)]
    endings = explain_endings(make.evidence(*ranks))
    assert endings.origin is not None
    assert ([culprit.rank for culprit in endings.origin.culprits], endings.victims) == ([2], (0, 1))


def test_a_loader_without_memory_is_memory() -> None:
    said = ("cannot allocate memory for thread-local data: ABORT",)
    finding = origin(make.rank(1, exit=make.ended(127), error_tail=said), make.rank(0))
    assert (finding.outcome, finding.cause) == ("crash", "out-of-memory-host")
    assert origin(make.rank(1, exit=make.ended(3), error_tail=said), make.rank(0)).cause == "exit-code"


def with_path(rank: RankEvidence, path: NamedPath) -> RankEvidence:
    return replace(rank, exceptions=tuple(replace(each, paths=(path,)) for each in rank.exceptions))


def test_a_path_that_came_into_being_after_the_error_was_raced_for() -> None:
    lost = failed(1, "OSError", "Repo id must be in the form 'name': '/out/base'", make.frame("train.py", 6, "main"))
    later = NamedPath("/out/base", exists=True, changed_at=make.NOW)
    assert origin(with_path(lost, later), victim(0)).cause == "path-race"
    earlier = NamedPath("/out/base", exists=True, changed_at=make.NOW - 60)
    assert origin(with_path(lost, earlier), victim(0)).cause == "exception"
    other = failed(1, "ValueError", "loss is bad, see '/out/base'", make.frame("train.py", 6, "main"))
    assert origin(with_path(other, later), victim(0)).cause == "exception"


SOURCE = """def main():
    rank = dist.get_rank()
    if rank == 0:
        convert(path)
    log(rank)
    model = load(path)
"""


@pytest.mark.parametrize(("line", "cause"), [(4, "path-race"), (5, "exception")])
def test_a_path_that_another_rank_has_yet_to_make(line: int, cause: str) -> None:
    """It must stand in a branch of its own, ahead of the line that failed."""
    lost = failed(1, "OSError", "cannot load '/out/base'", make.frame("train.py", 6, "main"))
    lost = with_path(lost, NamedPath("/out/base", exists=False))
    busy = make.rank(0, make.stack("train.py", line, "main"), exit=None)
    assert origin(lost, busy, source={"train.py": SOURCE}).cause == cause


def test_the_error_of_a_loader_worker_is_placed_in_the_dataset() -> None:
    message = (
        "Caught KeyError in DataLoader worker process 1.\nOriginal Traceback (most recent call last):\n"
        f'  File "{make.SITE}torch/utils/data/_utils/worker.py", line 374, in _worker_loop\n'
        "    data = fetcher.fetch(index)\n"
        f'  File "{make.USER}data.py", line 22, in to_tensors\n'
        "    label = LABELS[name]\n"
        "KeyError: 'Returns'\n"
    )
    rank = failed(0, "KeyError", message, make.lib("torch/_utils.py", "reraise"), make.frame("train.py", 61, "train"))
    finding = origin(rank)
    assert finding.cause == "exception"
    assert finding.culprits[0].where is not None
    assert (finding.culprits[0].where.line, finding.culprits[0].where.function) == (22, "to_tensors")
    assert "data-loading worker 1" in doing(finding.culprits[0].doing)


def test_the_own_error_behind_a_consequence_in_finally_is_found() -> None:
    own = make.raised("ValueError", "3 observations", make.frame("train.py", 5, "loss"), at=None, source="output")
    cover = make.raised(
        "RuntimeError", CLOSED, ALL_REDUCE, make.frame("train.py", 9, "close"), source="output", at=None
    )
    hooked = make.raised("RuntimeError", CLOSED, ALL_REDUCE, make.frame("train.py", 9, "close"))
    first = (HEAD, f'  File "{make.USER}train.py", line 5, in loss', "ValueError: 3 observations", "")
    mark = ("During handling of the above exception, another exception occurred:", "")
    second = (HEAD, f'  File "{make.USER}train.py", line 9, in close', f"RuntimeError: {CLOSED}")
    rank = make.rank(1, exit=make.ended(1), exceptions=(own, cover, hooked), error_tail=(*first, *mark, *second))
    finding = origin(rank, victim(0))
    assert finding.culprits[0].where is not None
    assert (finding.culprits[0].rank, finding.culprits[0].where.function) == (1, "loss")
    # Without the link the earlier traceback may have been handled long before.
    apart = make.rank(1, exit=make.ended(1), exceptions=(own, cover, hooked), error_tail=(*first, *second))
    assert explain_endings(make.evidence(apart, victim(0))).origin is None


def test_an_error_raised_because_of_a_consequence_is_one_too() -> None:
    tail = (
        *(HEAD, f'  File "{make.USER}train.py", line 5, in step', f"RuntimeError: {CLOSED}", ""),
        *("The above exception was the direct cause of the following exception:", ""),
        *(HEAD, f'  File "{make.USER}train.py", line 7, in run', "TrainingFailed: step failed"),
    )
    rank = make.rank(0, exit=make.ended(1), exceptions=find_tracebacks(tail), error_tail=tail)
    assert explain_endings(make.evidence(rank, make.rank(1))).victims == (0,)


def killed(number: int, code: int, **fields: Any) -> RankEvidence:
    return make.rank(number, exit=make.ended(code), **fields)


@pytest.mark.parametrize("code", [-11, -7, -8, -4, -6])
def test_a_fatal_signal_is_a_native_crash_at_the_dumped_line(code: int) -> None:
    stack = (make.lib("ctypes/__init__.py", "memmove"), make.frame("decoder.py", 30, "decode"))
    finding = origin(victim(0), killed(1, code, crash_stack=stack))
    assert (finding.cause, finding.certainty, finding.culprits[0].rank) == ("native-crash", "proven", 1)
    assert finding.culprits[0].where is not None
    assert finding.culprits[0].where.line == 30


def test_an_abort_after_the_program_ended_says_so() -> None:
    words = ("terminate called without an active exception",)
    finding = origin(killed(1, -6, progress=make.progress(steps=20, finalizing=True), error_tail=words))
    assert (finding.cause, finding.culprits[0].rank, finding.culprits[0].where) == ("native-crash", 1, None)
    assert headline(finding.summary) == "rank 1 crashed with SIGABRT on its way out, after its program had ended"
    assert "destroy_process_group" in advise(finding.fix[0])
    in_the_program = origin(killed(1, -6, progress=make.progress(steps=20), error_tail=words))
    assert headline(in_the_program.summary) == "rank 1 crashed with SIGABRT"


@pytest.mark.parametrize("code", [-9, -15, -2, -1])
def test_a_signal_from_outside_is_a_kill(code: int) -> None:
    finding = origin(victim(0), killed(1, code))
    assert (finding.cause, finding.certainty, finding.culprits[0].rank) == ("killed", "proven", 1)


def test_the_memory_killer_is_told_by_the_host() -> None:
    by_count = origin(killed(1, -9), hosts=(HostEvidence("node-1", oom_kills=1),))
    log = ("Out of memory: Killed process 4001 (python) total-vm:9kB",)
    by_log = origin(killed(1, -9), hosts=(HostEvidence("node-1", kernel_log=log),))
    elsewhere = origin(killed(1, -9), hosts=(HostEvidence("node-2", oom_kills=3),))
    assert [(each.cause, each.certainty) for each in (by_count, by_log)] == [("out-of-memory-host", "likely")] * 2
    assert MemoryKiller(log[0]) in by_log.because
    assert elsewhere.cause == "killed"


def test_the_last_words_of_an_abort_decide() -> None:
    bad_alloc = ("terminate called after throwing an instance of 'std::bad_alloc'",)
    assert origin(killed(0, -6, error_tail=bad_alloc)).cause == "out-of-memory-host"
    mismatch = explain_endings(make.evidence(killed(0, -6, error_tail=MISMATCH), victim(1, RESET)))
    assert mismatch.origin is not None
    assert (mismatch.origin.cause, mismatch.victims) == ("collective-mismatch", (1,))
    shm = (
        "ERROR: Unexpected bus error encountered. It is possible that dataloader's workers are out of shared memory.",
    )
    assert origin(killed(0, -7, error_tail=shm)).cause == "shm-exhausted"
    watchdog = explain_endings(make.evidence(killed(0, -6, error_tail=(WATCHDOG,)), make.rank(1)))
    assert (watchdog.origin, watchdog.victims) == (None, (0,))


def test_a_warning_in_the_output_does_not_excuse_an_own_exception() -> None:
    rank = failed(0, "ValueError", "bad", error_tail=(f"[W] {CLOSED}",))
    assert origin(rank).culprits[0].rank == 0


def test_a_shell_around_the_rank_reports_the_signal_as_its_code() -> None:
    finding = origin(killed(0, 139))
    assert (finding.cause, finding.certainty) == ("native-crash", "likely")
    chosen = make.progress(exit_site=(make.frame("checks.py", 4, "check"),), exit_note="sys.exit(139)")
    assert origin(killed(0, 139, progress=chosen)).cause == "exit-code"


def test_a_code_of_the_programs_own_is_placed_at_its_exit() -> None:
    own = make.progress(exit_site=(make.frame("checks.py", 14, "check"),), exit_note="sys.exit(3)")
    finding = origin(killed(0, 3, progress=own), victim(1), victim(2))
    assert (finding.cause, finding.certainty) == ("exit-code", "proven")
    assert finding.culprits[0].where is not None
    assert finding.culprits[0].where.line == 14
    assert origin(killed(0, 3)).culprits[0].where is None


def test_an_error_that_was_caught_and_printed_does_not_hide_what_it_is() -> None:
    site = make.progress(exit_site=(make.frame("train.py", 99, "main"),), exit_note="sys.exit(1)")
    lost = make.raised("RuntimeError", CLOSED, ALL_REDUCE, source="output", at=None)
    full = make.raised(
        "OSError", "[Errno 28] No space left on device", make.frame("train.py", 5, "save"), source="output", at=None
    )
    plain = make.raised("ValueError", "x", make.frame("train.py", 5, "save"), source="output", at=None)
    assert explain_endings(make.evidence(killed(0, 1, progress=site, exceptions=lost))).victims == (0,)
    assert origin(killed(0, 1, progress=site, exceptions=full)).cause == "disk-full"
    finding = origin(killed(0, 1, progress=site, exceptions=plain))
    assert (finding.cause, [each.cause for each in finding.alternatives]) == ("exit-code", ["exception"])


def test_the_earliest_decides_and_later_ones_become_victims() -> None:
    early, late = failed(2, "ValueError", "x", at=5.0), failed(0, "KeyError", "y", at=9.0)
    endings = explain_endings(make.evidence(late, early))
    assert endings.origin is not None
    assert [culprit.rank for culprit in endings.origin.culprits] == [2]
    assert endings.victims == (0,)


def test_ranks_that_fail_alike_are_culprits_together() -> None:
    frames = (make.frame("train.py", 3, "read_config"),)
    endings = explain_endings(make.evidence(*(failed(n, "ValueError", "x", *frames, at=5.0 + n) for n in range(3))))
    assert endings.origin is not None
    assert [culprit.rank for culprit in endings.origin.culprits] == [0, 1, 2]
    assert headline(endings.origin.summary) == "ranks 0-2 failed with ValueError in read_config (train.py:3)"
    assert endings.victims == ()


def test_an_exception_beats_an_exit_code_of_about_the_same_time() -> None:
    coded = make.rank(0, exit=make.ended(1, 10.0))
    assert origin(coded, failed(1, "ValueError", "x", at=12.0)).culprits[0].rank == 1
    assert origin(coded, failed(1, "ValueError", "x", at=60.0)).culprits[0].rank == 0


@pytest.mark.parametrize(
    ("text", "hosts", "cause"),
    [
        (
            "is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.",
            0,
            "shm-exhausted",
        ),
        ("is killed by signal: Killed. ", 0, "killed"),
        ("is killed by signal: Killed. ", 1, "out-of-memory-host"),
        ("is killed by signal: Segmentation fault. ", 0, "native-crash"),
        ("is killed by signal: Aborted. ", 0, "native-crash"),
        ("exited unexpectedly with exit code 3. Details are lost due to multiprocessing.", 0, "exit-code"),
    ],
)
def test_a_dead_loader_worker_is_the_culprit_process(text: str, hosts: int, cause: str) -> None:
    first = make.raised("RuntimeError", f"DataLoader worker (pid 77) {text}", source="output", at=None)
    final = make.raised(
        "RuntimeError", "DataLoader worker (pid(s) 77) exited unexpectedly",
        make.lib("torch/utils/data/dataloader.py", "_try_get_data"), make.frame("train.py", 61, "train"),
    )  # fmt: skip
    rank = make.rank(1, exit=make.ended(1), exceptions=(first, final))
    finding = origin(rank, victim(0), hosts=(HostEvidence("node-1", oom_kills=hosts),))
    [culprit] = finding.culprits
    assert (finding.cause, culprit.process, culprit.pid, culprit.rank) == (cause, "dataloader-worker", 77, 1)
    assert culprit.where is not None
    assert culprit.where.line == 61


def test_a_pending_exception_is_no_ending_but_can_be_explained() -> None:
    pending = make.raised("ValueError", "3 observations", make.frame("train.py", 5, "loss"), source="pending", at=None)
    rank = make.rank(1, exceptions=pending)
    seen = make.evidence(rank, make.rank(0))
    assert explain_endings(seen).origin is None
    finding = explain_exception(rank, pending, seen)
    assert (finding.cause, finding.certainty) == ("exception", "proven")
    assert "is being handled" in sentence(finding.because[0])


def test_a_rank_that_left_while_others_wait_or_failed_is_listed() -> None:
    gone = make.rank(1, exit=make.ended(0, make.NOW - 5))
    assert explain_endings(make.evidence(gone, victim(0))).left == (1,)
    assert explain_endings(make.evidence(gone, make.rank(0))).left == (1,)
    assert explain_endings(make.evidence(gone, make.rank(0, exit=make.ended(0)))).left == ()
    assert explain_endings(make.evidence(make.rank(1, exit=make.ended(0, by_launcher=True)), make.rank(0))).left == ()
    # A rank that ended after the victim had given up was still there.
    assert explain_endings(make.evidence(make.rank(1, exit=make.ended(0, make.NOW + 9)), victim(0))).left == ()


def test_leaving_is_placed_at_sys_exit_or_at_the_last_call() -> None:
    calls = (
        make.call(0, "all_reduce", make.frame("train.py", 40, "step")),
        make.call(1, "barrier", make.frame("train.py", 50, "end")),
    )
    silent = make.rank(1, exit=make.ended(0), progress=make.progress(*calls, steps=7))
    finding = explain_left(silent, make.evidence(silent, make.rank(0)), (0,))
    assert (finding.outcome, finding.cause, finding.certainty) == ("hang", "rank-left", "proven")
    assert doing(finding.culprits[0].doing) == "exited with code 0 after 7 steps"
    assert finding.culprits[0].where is not None
    assert finding.culprits[0].where.line == 50
    said = make.rank(
        1, exit=make.ended(0), progress=make.progress(*calls, exit_site=(make.frame("train.py", 77, "stop"),))
    )
    finding = explain_left(said, make.evidence(said, victim(0)), (0,))
    assert finding.outcome == "crash"
    assert finding.culprits[0].where is not None
    assert finding.culprits[0].where.line == 77


@pytest.mark.parametrize(
    ("theirs", "cause", "certainty"),
    [
        (make.loader(40), "uneven-data", "proven"),
        (make.loader(32, in_next=True), "uneven-data", "likely"),
        (make.loader(32, exhausted=True), "rank-left", "proven"),
        (make.loader(40, number=1), "rank-left", "proven"),
        (make.loader(10), "rank-left", "proven"),
    ],
)
def test_leaving_for_want_of_data_is_told_by_the_loaders(theirs: Any, cause: str, certainty: str) -> None:
    gone = make.rank(1, exit=make.ended(0), progress=make.progress(loader=make.loader(32, exhausted=True)))
    other = make.rank(0, progress=make.progress(loader=theirs))
    finding = explain_left(gone, make.evidence(other, gone), (0,))
    assert (finding.cause, finding.certainty) == (cause, certainty)


def test_leaving_without_having_joined_is_a_missing_rank() -> None:
    gone = make.rank(1, exit=make.ended(0), progress=make.progress(world=0))
    joined = make.rank(0, progress=make.progress(world=2))
    assert explain_left(gone, make.evidence(joined, gone), (0,)).cause == "rank-missing"


KINDS = st.sampled_from(
    [
        "ValueError",
        "MemoryError",
        "KeyboardInterrupt",
        "FileExistsError",
        "FileNotFoundError",
        "a.b.DistNetworkError",
        "",
    ]
)
TEXTS = st.sampled_from(
    [
        CLOSED, TIMED_OUT, "", "x", "'/p'", MISMATCH[1], "Original Traceback (most recent call last):\n", "[Errno 24]",
        "DataLoader worker (pid(s) 1, 2) exited unexpectedly", "DataLoader worker (pid 5) is killed by signal: Odd.",
        "The client socket has timed out after 1s", "DataLoader timed out after 5 seconds",
    ]
) | st.text(max_size=20)  # fmt: skip
EARLIER = st.builds(
    EarlierException,
    KINDS,
    TEXTS,
    st.sampled_from([(), (make.frame("t.py", 1, "f"),), (ALL_REDUCE, make.native("n"))]),
    st.sampled_from(["cause", "context", "suppressed", "group"]),
)
EXCEPTIONS = st.builds(
    RaisedException,
    KINDS,
    TEXTS,
    st.none() | st.floats(0, 100),
    st.sampled_from([(), (make.frame("t.py", 1, "f"),), (ALL_REDUCE, make.native("n"))]),
    st.sampled_from(["hook", "pending", "output", "error-file", "exit", "thread"]),
    st.sampled_from(["MainThread", "Thread-1"]),
    st.lists(EARLIER, max_size=3).map(tuple),
)
EXITS = st.none() | st.builds(
    make.ended,
    st.sampled_from([0, 1, 3, 139, 255, 300, -6, -7, -9, -11, -15, -99]),
    st.floats(0, 100),
    by_launcher=st.booleans(),
)
LOADERS = st.none() | st.builds(make.loader, st.integers(0, 2), exhausted=st.booleans())
PROGRESS = st.none() | st.builds(make.progress, world=st.integers(0, 2), loader=LOADERS)
FIELDS = st.fixed_dictionaries(
    {
        "exit": EXITS,
        "exceptions": st.lists(EXCEPTIONS, max_size=3).map(tuple),
        "error_tail": st.lists(TEXTS, max_size=3).map(tuple),
        "progress": PROGRESS,
    }
)  # fmt: skip


@given(st.lists(FIELDS, max_size=4))
def test_any_endings_can_be_explained_and_stopped_ranks_are_never_blamed(all_fields: list[dict[str, Any]]) -> None:
    seen = make.evidence(*(make.rank(number, **fields) for number, fields in enumerate(all_fields)))
    stopped = {each.rank for each in seen.ranks if each.exit is not None and each.exit.by_launcher}
    endings = explain_endings(seen)
    blamed = {culprit.rank for culprit in endings.origin.culprits} if endings.origin is not None else set()
    if endings.origin is not None:
        assert headline(endings.origin.summary)
        assert all(map(sentence, endings.origin.because))
        assert all(map(advise, endings.origin.fix))
    assert not stopped & (blamed | set(endings.left) | set(endings.victims))
    assert not blamed & set(endings.victims)
    for each in seen.ranks:
        left = explain_left(each, seen, (0,))
        assert left.culprits[0].rank == each.rank
        assert all(map(sentence, left.because))
        for exception in each.exceptions:
            assert headline(explain_exception(each, exception, seen).summary)


RAISED_EXITS = "def check(v):\n    if v:\n        raise SystemExit(3)\n\ndef main():\n    raise SystemExit({other})\n"


@pytest.mark.parametrize(
    ("code", "other", "line"),
    [(3, "4", 3), (4, "4", 6), (7, "status", 6), (1, "'no data'", 6), (5, "4", None), (3, "3", None), (3, "status", 3)],
)
def test_the_line_of_raise_system_exit_is_known_where_one_alone_gives_the_code(
    code: int, other: str, line: int | None
) -> None:
    ended = make.rank(1, exit=make.ended(code, make.NOW - 1))
    finding = origin(make.rank(0), ended, source={"train.py": RAISED_EXITS.format(other=other)})
    at = finding.culprits[0].where
    assert finding.cause == "exit-code"
    assert (None if at is None else at.line) == line


@pytest.mark.parametrize(
    ("kind", "after", "in_collective", "culprits"),
    [
        ("TypeError", 0.01, False, {0, 1}),
        ("TypeError", 3.0, False, {0}),
        ("TypeError", 0.01, True, {0}),
        ("FileNotFoundError", 0.01, False, {0}),
    ],
)
def test_errors_of_different_kinds_at_one_moment_are_no_consequences_of_each_other(
    kind: str, after: float, in_collective: bool, culprits: set[int]
) -> None:
    at = make.frame("train.py", 40, "step")
    made = replace(make.call(0, "all_reduce", at, seq=1), failed=in_collective)
    first = failed(0, "ValueError", "a", at=make.NOW - 5, progress=make.progress(world=2))
    other = failed(1, kind, "b", at=make.NOW - 5 + after, progress=make.progress(made, world=2))
    finding = origin(first, other)
    assert {culprit.rank for culprit in finding.culprits} == culprits


def test_of_own_errors_within_a_second_the_first_began_it_though_the_types_are_the_same() -> None:
    first = failed(2, "ValueError", "bad sample 17", make.frame("data.py", 8, "read"), at=make.NOW - 5.0)
    later = failed(0, "ValueError", "peer 2 has no metrics", make.frame("train.py", 50, "log"), at=make.NOW - 4.4)
    endings = explain_endings(make.evidence(later, make.rank(1), first))
    assert endings.origin is not None
    assert [culprit.rank for culprit in endings.origin.culprits] == [2]
    assert endings.victims == (0,)
    same = failed(0, "ValueError", "bad sample 4", make.frame("other.py", 9, "read"), at=make.NOW - 4.4)
    assert [culprit.rank for culprit in origin(first, same).culprits] == [2, 0]


def test_an_error_right_after_a_broken_collective_waits_for_those_that_had_none() -> None:
    broken = replace(make.call(0, "all_reduce", make.frame("train.py", 61, "step"), seq=1), failed=True)
    reacting = failed(
        0, "TypeError", "no result", make.frame("train.py", 70, "log"), at=make.NOW - 5.0,
        progress=make.progress(broken, world=2),
    )  # fmt: skip
    own = failed(1, "KeyError", "'x'", at=make.NOW - 4.6, progress=make.progress(world=2))
    assert [culprit.rank for culprit in origin(reacting, own).culprits] == [1]


def test_a_killed_rank_is_noticed_a_little_late() -> None:
    killed_first = killed(1, -9)
    reacting = failed(0, "ValueError", "peer is silent", at=make.NOW - 0.1, exit=make.ended(1, make.NOW + 1))
    assert [culprit.rank for culprit in origin(reacting, killed_first).culprits] == [1]


def test_clocks_of_two_hosts_do_not_prove_who_was_first() -> None:
    first = failed(0, "ValueError", "x", at=make.NOW - 5.0)
    far = failed(1, "KeyError", "y", at=make.NOW - 4.5, host="node-2")
    assert origin(first, far).certainty == "likely"
    assert origin(first, replace(far, host="node-1")).certainty == "proven"
