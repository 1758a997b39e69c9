"""The incident page as a file: what it may do, how large it is, and what each of its parts holds."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest
from msgspec.structs import replace
from recorded_incidents import TEN, incident, of_many, recorded

from rankscope.diagnosis.verdict import Verdict
from rankscope.evidence.model import Evidence
from rankscope.report.conclude import conclude
from rankscope.report.html.page import render_page
from rankscope.report.views.calls import CallDiff, call_diff
from rankscope.report.views.excerpts import Excerpt, excerpts
from rankscope.report.views.incident import incident_of
from rankscope.report.views.stacks import Branch, stack_tree
from rankscope.report.views.strips import clock, timings
from rankscope.report.views.tables import differing_variables, outputs, stage_rows
from rankscope.report.views.text import LONGEST_LINE, output_line, rank_ranges
from rankscope.report.views.waits import NODE_WIDTH, wait_picture

BRANCH, BLOCKED, PIPELINE, GROUPS = TEN[:4]


def page(name: str) -> str:
    return render_page(incident(name))


def marked(excerpt: Excerpt, mark: str) -> list[int]:
    return [line.number for line in excerpt.lines if line is not None and line.mark == mark]


def branches(tree: tuple[Branch, ...]) -> list[Branch]:
    return [each for branch in tree for each in (branch, *branches(branch.branches))]


def diff_of(name: str) -> CallDiff:
    found = call_diff(incident(name))
    assert found is not None
    return found


def test_page_may_load_nothing_and_run_only_its_own_script() -> None:
    text = page(BRANCH)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    assert "default-src &#39;none&#39;" in policy[1]
    assert "unsafe" not in policy[1]
    for element in ("style", "script"):
        content = re.search(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)
        assert content is not None
        assert base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode() in policy[1].replace(
            "&#43;", "+"
        )
    assert re.findall(r"(?:src|href)=\"(?!#)", text) == []
    assert " style=" not in text
    assert "http://" not in text
    assert "https://" not in text


@pytest.mark.parametrize("name", TEN)
def test_page_holds_no_address_of_the_template_language(name: str) -> None:
    text = page(name)
    assert "{{" not in text.replace("{{ 7", "")
    assert "{%" not in text


def test_culprits_line_and_the_condition_are_marked_in_the_source() -> None:
    began, others = excerpts(incident(BRANCH))
    assert (began.kind, began.ranks, marked(began, "here")) == ("culprit", (0,), [54])
    assert (others.kind, others.ranks, marked(others, "here")) == ("victim", (1, 2), [85])
    assert marked(others, "condition") == [81]
    assert others.conditions == ((81, "if rank == 0"),)
    first = next(line for line in began.lines if line is not None)
    assert first.text == "def evaluate(model, loader):", "lines of the function before it are left out"


def test_condition_far_from_both_lines_is_shown_with_the_culprits() -> None:
    evidence = recorded(BRANCH)
    verdict = conclude(evidence)
    far = [
        {**fact, "where": {**fact["where"], "line": 5}} if fact["kind"] == "condition" else fact
        for fact in verdict.facts
    ]
    began, others = excerpts(incident_of(replace(verdict, facts=tuple(far)), evidence))
    assert marked(began, "condition") == [5]
    assert None in began.lines, "a gap is shown between"
    assert marked(others, "condition") == []


def test_source_that_is_not_in_the_evidence_is_said_to_be_missing() -> None:
    evidence = replace(recorded(BRANCH), sources=())
    about = incident_of(conclude(evidence), evidence)
    assert all(not each.lines for each in excerpts(about))
    assert "does not hold this file" in render_page(about)


def test_secret_in_a_source_line_is_masked() -> None:
    evidence = recorded(BRANCH)
    text = evidence.sources[0].text.split("\n")
    text[53] = '    api_key = "hf_' + "a1B2" * 8 + '"'
    evidence = replace(evidence, sources=(replace(evidence.sources[0], text="\n".join(text)),))
    verdict = conclude(recorded(BRANCH))
    assert "hf_a1B2" not in render_page(incident_of(verdict, evidence))


def test_equal_frames_are_one_and_it_branches_where_ranks_part() -> None:
    tree = stack_tree(incident(BRANCH))
    (root,) = tree.branches
    assert root.label == "0-2"
    assert [run.frames[0].function for run in root.runs] == ["<module>"]
    guilty, waiting = root.branches
    assert (guilty.label, guilty.culprits) == ("0", (0,))
    assert (waiting.label, waiting.culprits) == ("1-2", ())
    assert [end.words for end in waiting.ends] == ["in barrier 82"]
    assert [run.frames[0].function for run in guilty.runs if run.user] == ["main", "evaluate"]
    assert all(
        "rankscope" not in frame.file for each in branches(tree.branches) for r in each.runs for frame in r.frames
    )


def test_rank_whose_program_spins_in_a_collective_has_not_moved() -> None:
    ends = [end for branch in branches(stack_tree(incident("nccl/snapshot")).branches) for end in branch.ends]
    assert {end.state for end in ends} == {"still"}


def test_ranks_without_a_stack_are_named_with_the_reason() -> None:
    evidence = recorded(BRANCH)
    ranks = tuple(
        replace(seen, stacks=(), progress=None, missing={"stacks": "not allowed"}) if seen.rank == 2 else seen
        for seen in evidence.ranks
    )
    tree = stack_tree(incident_of(conclude(evidence), replace(evidence, ranks=ranks)))
    assert [(end.ranks, end.words) for end in tree.unknown] == [((2,), "stacks: not allowed")]


def test_calls_stand_side_by_side_from_the_last_that_agree() -> None:
    found = diff_of(BRANCH)
    usual, odd = found.columns
    assert (usual.label, odd.label, odd.role) == ("1-2", "0", "culprit")
    at = found.first_difference
    assert [cell.op for cell in usual.cells[:at]] == [cell.op for cell in odd.cells[:at]]
    assert (odd.cells[at].op, odd.cells[at].mark, odd.cells[at].done) == ("broadcast", "extra", False)
    assert (usual.cells[at].op, usual.cells[at].note) == ("", "makes no such call")
    assert (usual.cells[at + 1].op, usual.cells[at + 1].number) == ("barrier", 82)


def test_rank_that_has_not_come_to_the_call_is_marked() -> None:
    found = diff_of(BLOCKED)
    culprit = next(column for column in found.columns if column.role == "culprit")
    assert [cell.mark for cell in culprit.cells if cell.mark] == ["absent"]


def test_where_most_ranks_are_to_blame_their_calls_are_the_edit() -> None:
    found = diff_of("nccl/snapshot")
    assert [(column.label, column.role) for column in found.columns] == [("0", "victim"), ("1-2", "culprit")]
    assert found.columns[0].cells[found.first_difference].mark == ""
    assert found.columns[1].cells[found.first_difference].mark == "skipped"
    assert found.columns[1].cells[found.first_difference + 1].op == "all_reduce"


def test_calls_of_a_rank_whose_recorder_is_lost_are_not_made_up() -> None:
    assert call_diff(incident("gloo/memory_budget")) is None


def test_extra_calls_stand_where_the_others_have_none() -> None:
    found = [diff for name in ALL_WITH_CALLS if (diff := call_diff(incident(name))) is not None]
    extra = [c for diff in found for column in diff.columns for c in column.cells if c.mark == "extra"]
    gaps = [c for diff in found for column in diff.columns for c in column.cells if c.note == "makes no such call"]
    assert extra
    assert gaps
    for diff in found:
        assert len({len(column.cells) for column in diff.columns}) == 1


ALL_WITH_CALLS = ("gloo/final_export", "gloo/preview_batch", "gloo/report_card", "nccl/page_reader")


def test_waits_are_one_node_per_class_of_ranks() -> None:
    picture = wait_picture(incident(BRANCH))
    assert picture is not None
    assert sorted(node.title for node in picture.nodes) == ["rank 0", "ranks 1-2"]
    assert len(picture.arrows) == 2
    assert not picture.device


def test_waits_of_gpus_are_told_from_those_of_programs() -> None:
    picture = wait_picture(incident("nccl/snapshot"))
    assert picture is not None
    assert picture.device
    assert not picture.program
    assert any(line.startswith("GPU in") for node in picture.nodes for line in node.lines)


@pytest.mark.parametrize("name", TEN)
def test_nodes_do_not_cover_each_other(name: str) -> None:
    picture = wait_picture(incident(name))
    for at, one in enumerate(picture.nodes if picture is not None else ()):
        for other in picture.nodes[:at] if picture is not None else ():
            beside = abs(one.x - other.x) >= NODE_WIDTH
            assert beside or one.y + one.height < other.y or other.y + other.height < one.y


def test_strips_show_who_waits_and_where_it_began() -> None:
    times = timings(incident(BLOCKED))
    assert times is not None
    whole = times.windows[0]
    assert whole.fault is not None
    last = {strip.ranks[0]: strip.pieces[-1].phase for strip in whole.strips}
    assert last == {0: "waiting", 1: "still", 2: "waiting"}
    assert all(0 <= piece.x <= 100 and piece.x + piece.width <= 100.01 for s in whole.strips for piece in s.pieces)


@pytest.mark.parametrize(("seconds", "text"), [(4.2, "4 s"), (65, "1:05"), (7385, "2:03:05")])
def test_times_since_the_start(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_64_ranks_are_a_small_page_of_few_classes() -> None:
    evidence = of_many(64)
    about = incident_of(conclude(evidence), evidence)
    text = render_page(about)
    assert len(text.encode()) < 1_000_000
    assert "1-63" in text
    times = timings(about)
    assert times is not None
    assert [strip.label for strip in times.windows[0].strips] == ["0", "1-63"]


def test_output_of_ranks_that_differ_in_numbers_is_shown_once() -> None:
    evidence = of_many(64)
    found, unshown = outputs(incident_of(conclude(evidence), evidence))
    assert "3-63" in [output.label for output in found]
    assert unshown == 0


def test_output_beyond_measure_is_counted_and_the_culprits_is_shown() -> None:
    evidence = of_many(64)
    words = ("alpha", "beta", "gamma", "delta", "eps", "zeta", "eta", "theta")
    ranks = tuple(
        replace(
            seen, output_tail=tuple(f"{words[seen.rank % 8]}{words[seen.rank // 8]} {'x' * 590}" for _ in range(40))
        )
        for seen in evidence.ranks
    )
    about = incident_of(_verdict(), replace(evidence, ranks=ranks))
    found, unshown = outputs(about)
    assert found[0].ranks == (0,)
    assert unshown == 64 - len(found) > 0
    text = render_page(about)
    assert f"The output of {unshown} more ranks is in the logs" in text
    assert len(text.encode()) < 1_000_000


def test_variables_that_differ_are_told_with_their_ranks_and_secrets_are_not() -> None:
    evidence = recorded(BRANCH)
    ranks = tuple(
        replace(
            seen, environment={**seen.environment, "NCCL_IB": str(seen.rank // 2), "MY_TOKEN": f"s{seen.rank // 2}"}
        )
        for seen in evidence.ranks
    )
    found = {
        each.name: each.values for each in differing_variables(incident_of(_verdict(), replace(evidence, ranks=ranks)))
    }
    assert found["NCCL_IB"] == (("0-1", "0"), ("2", "1"))
    assert {value for _, value in found["MY_TOKEN"]} == {"***"}
    assert "RANK" not in found


def test_stages_tell_how_long_they_took() -> None:
    rows = {row.label: row for row in stage_rows(incident(BRANCH))}
    assert rows["DistributedDataParallel.__init__"].typical == "8.1 s"


def test_line_of_megabytes_is_cut_and_says_how_much() -> None:
    shown = output_line("x" * 10_000_000)
    assert len(shown) < LONGEST_LINE + 60
    assert shown.endswith("… 9,999,400 more characters")


def test_progress_bar_shows_its_last_state() -> None:
    assert output_line("10%\r50%\r100%|####|\n") == "100%|####|"


def test_ranks_are_told_in_ranges() -> None:
    assert rank_ranges([0, 1, 2, 5]) == "0-2,5"
    assert rank_ranges(range(0, 80, 2), most=2) == "0,2 +38"


def test_page_of_a_verdict_without_evidence_is_made() -> None:
    nothing = Evidence(1, 10.0, 5.0, "end", 2, ranks=())
    assert _verdict().headline in render_page(incident_of(_verdict(), nothing)).replace("&#39;", "'")


def _verdict() -> Verdict:
    return conclude(recorded(BRANCH))
