"""The user's source around a line: branches, ways past it, loops."""

from __future__ import annotations

import textwrap

import factories as make
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.diagnosis.source.reader import Branch, CodeReader
from rankscope.evidence.model import Frame
from searching import searched

TEXT = textwrap.dedent(
    """\
    def evaluate(model, rank, batch):
        if rank != 0:
            return
        if batch is None:
            log("empty")
        dist.all_reduce(batch)
        if is_main_process():
            dist.barrier()
        else:
            dist.broadcast(batch, 0)
        for name in names:
            if name in skipped:
                continue
            while waiting:
                dist.all_gather(name)
        dist.barrier()
    """
)


def at(line: int, function: str = "evaluate") -> Frame:
    return make.frame("train.py", line, function)


@pytest.fixture
def code() -> CodeReader:
    return CodeReader(make.evidence(source={"train.py": TEXT}))


def test_an_early_return_leads_past_all_later_lines(code: CodeReader) -> None:
    for line in (6, 8, 15, 16):
        found = code.way_past([at(line)])
        assert found is not None
        assert (found[1].line, found[1].test, found[1].on_rank, found[1].side) == (2, "rank != 0", True, "return")
    assert code.way_past([at(3)]) is None


def test_an_if_that_goes_on_is_no_way_past(code: CodeReader) -> None:
    assert [branch.line for branch in code.around(at(6)).passes] == [2]


def test_a_continue_leads_past_the_rest_of_its_loop_only(code: CodeReader) -> None:
    assert [(b.line, b.side) for b in code.around(at(15)).passes] == [(12, "continue"), (2, "return")]
    assert [(b.line, b.side) for b in code.around(at(16)).passes] == [(2, "return")]


def test_the_two_branches_of_one_condition_are_opposite(code: CodeReader) -> None:
    found = code.opposite_branches((at(8),), (at(10),))
    assert found is not None
    assert (found.line, found.on_rank) == (7, True)
    assert code.opposite_branches((at(8),), (at(16),)) is None
    assert code.opposite_branches((at(8),), ()) is None


def test_a_guard_on_the_rank_counts_in_any_frame_and_another_only_in_the_innermost(code: CodeReader) -> None:
    assert code.guard([at(6), at(8)]) == code.guard([at(8)])
    inner = code.guard([at(13)])
    assert inner is not None
    assert (inner[1].test, inner[1].on_rank) == ("name in skipped", False)
    assert code.guard([at(6), at(13)]) is None


def test_loops_are_told_innermost_first(code: CodeReader) -> None:
    assert code.around(at(15)).loops == ((14, 15), (11, 15))
    assert code.left_loop((at(15),), (at(16),)) == (at(15), 14)
    assert code.left_loop((at(12),), (at(15),)) is None
    assert code.left_loop((at(16),), (at(15),)) is None


@pytest.mark.parametrize(
    ("test", "on_rank"),
    [
        ("rank == 0", True), ("self.local_rank < 1", True), ("dist.get_rank() % 2", True), ("is_main_process", True),
        ("trainer.is_global_zero", True), ("args.rank0", True), ("accelerator.is_main", True), ("ranking > 3", False),
        ("frank", False), ("batch.damaged", False), ("step % 10 == 0", False), ("masterpiece", False),
    ],
)  # fmt: skip
def test_which_tests_speak_of_the_rank(test: str, on_rank: bool) -> None:
    text = f"if {test}:\n    dist.barrier()\n"
    found = CodeReader(make.evidence(source={"train.py": text})).guard([at(2, "<module>")])
    assert found is not None
    assert found[1].on_rank is on_rank


def test_a_missing_or_broken_source_tells_nothing() -> None:
    for source in (None, {"train.py": "def broken(:\n"}, {"other.py": TEXT}):
        code = CodeReader(make.evidence(source=source))
        assert code.guard([at(8)]) is None
        assert code.way_past([at(16)]) is None
        assert code.around(None).loops == ()


@searched(100)
@given(st.text(max_size=200), st.integers(-1, 20))
def test_any_text_and_line_can_be_read(text: str, line: int) -> None:
    code = CodeReader(make.evidence(source={"train.py": text}))
    code.guard([at(line)])
    code.way_past([at(line)])
    code.left_loop((at(line),), (at(1),))


@pytest.mark.parametrize(
    "assigned",
    [
        "r = dist.get_rank()",
        "r, w = dist.get_rank(), dist.get_world_size()",
        "r = int(os.environ['RANK'])",
        "r: int = int(os.environ.get('LOCAL_RANK', 0))",
        "r = accelerator.process_index",
        "r = dist.get_rank() == 0",
    ],
)
def test_a_variable_that_holds_the_rank_is_one_whatever_its_name(assigned: str) -> None:
    code = CodeReader(make.evidence(source={"train.py": f"{assigned}\nif r and step == 3:\n    dist.barrier()\n"}))
    found = code.guard([make.frame("train.py", 3, "<module>")])
    assert found is not None
    assert found[1].on_rank


@pytest.mark.parametrize("assigned", ["r = data[dist.get_rank()::4]", "r = loss.item()", "r = os.environ['STEPS']"])
def test_a_variable_that_only_depends_on_the_rank_is_none(assigned: str) -> None:
    code = CodeReader(make.evidence(source={"train.py": f"{assigned}\nif r and step == 3:\n    dist.barrier()\n"}))
    found = code.guard([make.frame("train.py", 3, "<module>")])
    assert found is not None
    assert not found[1].on_rank


def reader(text: str, **others: str) -> CodeReader:
    sources = {
        "train.py": textwrap.dedent(text),
        **{f"{name}.py": textwrap.dedent(each) for name, each in others.items()},
    }
    return CodeReader(make.evidence(source=sources))


def marked(text: str, function: str = "step") -> Frame:
    """A frame at the line that ends with `# here`."""
    lines = textwrap.dedent(text).splitlines()
    return make.frame("train.py", next(at for at, line in enumerate(lines, 1) if line.endswith("# here")), function)


def guard_of(text: str, *outer: Frame, function: str = "step") -> Branch | None:
    found = reader(text).guard([marked(text, function), *outer])
    return None if found is None else found[1]


def way_past(text: str) -> Branch | None:
    found = reader(text).way_past([marked(text)])
    return None if found is None else found[1]


@pytest.mark.parametrize(
    ("line", "kind", "test", "holds", "quote"),
    [
        ("rank == 0 and dist.barrier()", "and", "rank == 0", True, "rank == 0 and …"),
        ("ready and rank == 0 and dist.barrier()", "and", "ready and rank == 0", True, "ready and rank == 0 and …"),
        ("rank or dist.barrier()", "or", "rank", False, "rank or …"),
        ("x = dist.barrier() if rank == 0 else None", "ternary", "rank == 0", True, "… if rank == 0 else …"),
        ("x = None if rank == 0 else dist.barrier()", "ternary", "rank == 0", False, "… if rank == 0 else …"),
        ("x = [dist.all_reduce(t) for t in ts if rank == 0]", "if", "rank == 0", True, "if rank == 0"),
        ("x = {t: gather(t) for t in ts if rank == 0}", "if", "rank == 0", True, "if rank == 0"),
        ("return rank == 0 and self.log('loss', loss, sync_dist=True)", "and", "rank == 0", True, "rank == 0 and …"),
        ("x = self.global_mean if rank == 0 else 0", "ternary", "rank == 0", True, "… if rank == 0 else …"),
    ],
)
def test_a_condition_inside_the_line_is_found(line: str, kind: str, test: str, holds: bool, quote: str) -> None:
    branch = guard_of(f"def step(self, rank, loss):\n    {line}  # here\n")
    assert branch is not None
    assert (branch.kind, branch.test, branch.holds, branch.quote) == (kind, test, holds, quote)
    assert branch.on_rank


@pytest.mark.parametrize(
    "line",
    [
        "x = dist.all_reduce(loss) and rank == 0",  # it is asked first
        "dist.all_reduce(a if rank == 0 else b)",
        "dist.all_reduce(rank == 0 and scale(loss))",
        "x = [dist.all_reduce(t) for t in ts]",
        "save(lambda: rank == 0 and dist.barrier())",  # not now
        "while True: dist.barrier()",
    ],
)
def test_a_condition_beside_the_call_is_no_guard(line: str) -> None:
    assert guard_of(f"def step(rank, loss):\n    {line}  # here\n") is None


def test_the_called_function_tells_which_of_several_calls_on_a_line_is_meant() -> None:
    text = """\
        def step(rank, x):
            prepare(x) if rank == 0 else finish(x)  # here
        def finish(x):
            dist.barrier()
        def prepare(x):
            dist.barrier()
    """
    code = reader(text)
    holds = []
    for inner in (make.frame("train.py", 6, "prepare"), make.frame("train.py", 4, "finish")):
        found = code.guard([inner, marked(text)])
        assert found is not None
        holds.append(found[1].holds)
    assert holds == [True, False]
    assert code.guard([marked(text)]) is None  # either may be meant


def test_a_property_that_hides_a_collective_is_a_call() -> None:
    text = """\
        class Meter:
            @property
            def global_mean(self):
                return self.sync(self.total)
            def report(self):
                if self.count and self.rank == 0 and self.global_mean > 3:  # here
                    self.alarm(self.count)
    """
    found = reader(text).guard([make.frame("train.py", 4, "global_mean"), marked(text, "report")])
    assert found is not None
    assert (found[0].function, found[1].test, found[1].kind) == ("report", "self.count and self.rank == 0", "and")


def test_the_body_of_a_lambda_depends_on_its_own_condition_only() -> None:
    text = "def main(rank):\n    if debug:\n        atexit.register(lambda: rank == 0 and dist.barrier())  # here\n"
    branch = guard_of(text, function="<lambda>")
    assert branch is not None
    assert branch.quote == "rank == 0 and …"
    branch = guard_of(text, function="main")
    assert branch is not None
    assert branch.quote == "if debug"


@pytest.mark.parametrize(
    "decorator",
    [
        "rank_zero_only", "utilities.rank_zero_only", "main_process_only", "on_main", "accelerator.on_main_process",
        "accelerator.on_process(process_index=2)", "master_only", "rank0_only", "run_on_rank_zero", "only_on_rank(0)",
    ],
)  # fmt: skip
def test_a_decorator_whose_name_speaks_of_some_ranks_guards_the_function(decorator: str) -> None:
    branch = guard_of(f"@torch.no_grad()\n@{decorator}\ndef step(model):\n    dist.barrier()  # here\n")
    assert branch is not None
    assert (branch.kind, branch.quote, branch.line, branch.on_rank) == ("decorator", f"@{decorator}", 2, True)


@pytest.mark.parametrize("decorator", ["torch.no_grad()", "property", "on_zero_grad", "retry(3)", "app.on_event('x')"])
def test_another_decorator_guards_nothing(decorator: str) -> None:
    assert guard_of(f"@{decorator}\ndef step(model):\n    dist.barrier()  # here\n") is None


def test_a_decorator_guards_by_its_own_body_wherever_it_is_written() -> None:
    tools = """\
        def careful(function):
            @functools.wraps(function)
            def call(*args):
                if dist.get_rank() == 0:
                    return function(*args)
            return call
        def twice(function):
            def call(*args):
                function(*args)
                return function(*args)
            return call
        class Lonely:
            def __call__(self, *args):
                return self.function(*args) if self.rank == 0 else None
    """
    text = "from tools import *\n@{}\ndef step(model):\n    dist.barrier()\n"
    found = {}
    for name in ("careful", "twice", "Lonely"):
        found[name] = reader(text.format(name), tools=tools).guard([make.frame("train.py", 4, "step")])
    assert found["twice"] is None
    for name in ("careful", "Lonely"):
        guard = found[name]
        assert guard is not None
        assert (guard[1].quote, guard[1].on_rank) == (f"@{name}", True)


def test_the_condition_of_a_while_loop_is_what_its_calls_depend_on_least() -> None:
    text = """\
        def step(loss):
            while loss > 1:
                if loss.isfinite():
                    dist.all_reduce(loss)
                dist.barrier()  # here
    """
    branch = guard_of(text)
    assert branch is not None
    assert (branch.kind, branch.quote, branch.line) == ("while", "while loss > 1", 2)
    inner = reader(text).guard([make.frame("train.py", 4, "step")])
    assert inner is not None
    assert inner[1].kind == "if"


def test_cases_of_one_match_are_opposite() -> None:
    text = """\
        def step(rank):
            match rank:
                case 0:
                    dist.broadcast(x, 0)
                case 1 | 2 if ready:
                    dist.barrier()  # here
                case _:
                    return
            dist.all_reduce(x)
    """
    code = reader(text)
    branch = guard_of(text)
    assert branch is not None
    assert (branch.kind, branch.line, branch.on_rank) == ("case", 5, True)
    assert branch.quote == "match rank: case 1 | 2 if ready"
    assert code.opposite_branches((make.frame("train.py", 4, "step"),), (marked(text),)) is not None
    past = code.way_past([make.frame("train.py", 9, "step")])
    assert past is not None
    assert (past[1].quote, past[1].on_rank, past[1].side) == ("match rank: case _: return", True, "return")


def test_a_call_in_a_handler_depends_on_the_exception() -> None:
    branch = guard_of("def step():\n    try:\n        load()\n    except OSError:\n        dist.barrier()  # here\n")
    assert branch is not None
    assert (branch.kind, branch.quote, branch.line) == ("except", "except OSError", 4)


@pytest.mark.parametrize(
    ("before", "quote", "line"),
    [
        ("if rank == 1:\n    log()\n    return", "if rank == 1: return", 2),
        ("if rank == 0:\n    log()\nelse:\n    return", "if not (rank == 0): return", 2),
        ("if debug:\n    if rank == 1:\n        return", "if rank == 1: return", 3),
        ("for x in xs:\n    if rank == 1:\n        return", "if rank == 1: return", 3),
        ("with open(p):\n    if rank == 1:\n        return", "if rank == 1: return", 3),
        ("try:\n    load()\nexcept OSError:\n    return", "except OSError: return", 4),
        ("try:\n    load()\nexcept:\n    return None", "except: return", 4),
    ],
)
def test_an_early_return_leads_past_a_call_however_deep_it_is(before: str, quote: str, line: int) -> None:
    branch = way_past("def step(rank):\n" + textwrap.indent(before, "    ") + "\n    dist.barrier()  # here\n")
    assert branch is not None
    assert (branch.quote, branch.line, branch.side) == (quote, line, "return")


@pytest.mark.parametrize(
    "before",
    [
        "for x in xs:\n    if rank == 1:\n        break",  # of the other loop
        "while xs:\n    if rank == 1:\n        continue",
        "def inner():\n    if rank == 1:\n        return",
        "try:\n    load()\nexcept OSError:\n    raise",
        "try:\n    x = next(it)\nexcept StopIteration:\n    return",  # the data's end, not a failure
        "try:\n    load()\nexcept OSError:\n    sys.exit(1)",
        "try:\n    load()\nexcept OSError:\n    log()",
        "if rank == 1:\n    log()",
        "assert rank == 0",  # it fails, and nobody goes on
    ],
)
def test_what_comes_back_or_ends_the_program_leads_past_nothing(before: str) -> None:
    assert way_past("def step(rank):\n" + textwrap.indent(before, "    ") + "\n    dist.barrier()  # here\n") is None


@pytest.mark.parametrize(
    ("kind", "body", "quote"),
    [
        ("continue", "if not valid(x):\n    continue", "if not valid(x): continue"),
        ("break", "if not valid(x):\n    break", "if not valid(x): break"),
        ("except", "try:\n    load(x)\nexcept ValueError:\n    continue", "except ValueError: continue"),
    ],
)
def test_a_loop_may_leave_out_the_rest_of_its_body(kind: str, body: str, quote: str) -> None:
    text = "def step(xs):\n    for x in xs:\n" + textwrap.indent(body, " " * 8) + "\n        dist.barrier()  # here\n"
    branch = way_past(text)
    assert branch is not None
    assert (branch.kind, branch.quote) == (kind, quote)


@pytest.mark.parametrize(
    ("first", "quote"),
    [
        ("assert x.isfinite()", "assert x.isfinite()"),
        ("if not x.isfinite(): raise ValueError", "if not x.isfinite(): raise"),
        ("x = load(x)", "except Exception"),
    ],
)
def test_a_failure_that_is_swallowed_leads_past_the_rest_of_the_try(first: str, quote: str) -> None:
    text = f"""\
        def step(xs):
            for x in xs:
                try:
                    {first}
                    dist.all_reduce(x)  # here
                except Exception as error:
                    log(error)
    """
    passes = [branch.quote for branch in reader(text).around(marked(text)).passes]
    assert quote in passes
    assert "except Exception" in passes
    first_in_try = text.replace(f"                    {first}\n", "")
    assert reader(first_in_try).way_past([marked(first_in_try)]) is None


def test_suppress_swallows_too() -> None:
    branch = way_past(
        "def step():\n    with contextlib.suppress(OSError):\n        load()\n        dist.barrier()  # here\n"
    )
    assert branch is not None
    assert (branch.kind, branch.quote, branch.line) == ("suppress", "with contextlib.suppress(OSError)", 2)


def test_a_callers_loop_that_swallows_failures_leads_past_what_it_calls() -> None:
    text = """\
        def step(x):
            y = load(x)
            dist.all_reduce(y)  # here
        def main(xs):
            for x in xs:
                try:
                    step(x)
                except ValueError:
                    continue
    """
    code = reader(text)
    found = code.way_past([marked(text), make.frame("train.py", 7, "main")])
    assert found is not None
    assert (found[0].function, found[1].quote) == ("main", "except ValueError: continue")
    once = text.replace("for x in xs", "if True").replace("continue", "pass")
    assert reader(once).way_past([marked(once), make.frame("train.py", 7, "main")]) is None


def test_a_condition_counts_before_a_handler_and_the_rank_before_both() -> None:
    text = """\
        def step(x, rank):
            if x is None:
                return
            try:
                load(x)
                dist.all_reduce(x)  # here
            except ValueError:
                pass
        def main(rank):
            if rank > 3:
                return
            step(1, rank)
    """
    inner = way_past(text)
    assert inner is not None
    assert inner.quote == "if x is None: return"
    found = reader(text).way_past([marked(text), make.frame("train.py", 12, "main")])
    assert found is not None
    assert found[1].quote == "if rank > 3: return"


def test_an_early_return_of_a_callback_that_a_library_calls_counts() -> None:
    text = """\
        class Save(Callback):
            def on_validation_end(self, trainer, model):
                if not trainer.is_global_zero:
                    return
                self.write(model)
            def write(self, model):
                dist.barrier()  # here
        trainer.fit(model)
    """
    site = [
        marked(text, "write"),
        make.frame("train.py", 5, "on_validation_end"),
        make.frame("train.py", 8, "<module>"),
    ]
    found = reader(text).way_past(site)
    assert found is not None
    assert (found[0].function, found[1].quote, found[1].on_rank) == (
        "on_validation_end",
        "if not trainer.is_global_zero: return",
        True,
    )


@pytest.mark.parametrize(
    ("prepared", "test"),
    [
        ("first = r == 0\nr = dist.get_rank()", "first"),
        ("class T:\n    def __init__(self, rank):\n        self.writes = rank == 0", "self.writes"),
        ("class T:\n    def __init__(self, rank):\n        self.writes = rank == 0", "trainer.writes"),
        ("def should_log():\n    return not dist.is_initialized() or dist.get_rank() == 0", "should_log()"),
        ("def should_log():\n    if dist.get_rank() != 0:\n        return False\n    return True", "should_log()"),
        ("class T:\n    @property\n    def writes(self):\n        return self.rank == 0", "self.writes"),
        ("def should_log():\n    return number() % 8 == 0\ndef number():\n    return dist.get_rank()", "should_log()"),
        ("should_log = lambda: dist.get_rank() == 0", "should_log()"),
        ("number = dist.get_rank() if dist.is_initialized() else 0", "number < 1"),
        ("odd = dist.get_rank() % 2", "odd"),
        ("alone = 0 == dist.get_rank()", "not alone"),
        ("name = 'main' if dist.get_rank() == 0 else 'worker'", "name == 'main'"),
    ],
)
def test_the_rank_is_known_under_other_names(prepared: str, test: str) -> None:
    found = reader(f"{prepared}\nif {test}:\n    dist.barrier()  # here\n").guard(
        [marked(f"{prepared}\nif {test}:\n    dist.barrier()  # here\n")]
    )
    assert found is not None
    assert found[1].on_rank


def test_a_parameter_that_is_given_the_rank_speaks_of_it_in_its_function_only() -> None:
    text = """\
        def save(model, first):
            if first:
                dist.barrier()  # here
        def other(first):
            if first:
                dist.barrier()
        save(model, first=dist.get_rank() == 0)
    """
    branch = guard_of(text)
    assert branch is not None
    assert branch.on_rank
    found = reader(text).guard([make.frame("train.py", 6, "other")])
    assert found is not None
    assert not found[1].on_rank


@pytest.mark.parametrize(
    ("prepared", "test"),
    [
        ("def f():\n    r = dist.get_rank()", "r"),  # of another function
        ("def should_log(step):\n    return step % 10 == 0", "should_log(step)"),
        ("def count():\n    return sizes[dist.get_rank()]", "count() > 2"),
        (
            "class T:\n    def a(self):\n        self.index = self.rank\n    def b(self, n):\n        self.index = n",
            "x.index",
        ),
    ],
)
def test_other_names_do_not_speak_of_the_rank(prepared: str, test: str) -> None:
    text = f"{prepared}\nif {test}:\n    dist.barrier()  # here\n"
    branch = guard_of(text, function="<module>")
    assert branch is not None
    assert not branch.on_rank


def test_a_while_loop_that_others_have_left_is_one_that_was_left_by_its_end() -> None:
    text = "def step():\n    while more():\n        dist.all_reduce(x)  # here\n    dist.barrier()\n"
    code = reader(text)
    assert code.left_loop((marked(text),), (make.frame("train.py", 4, "step"),)) == (marked(text), 2)


def test_an_expression_deeper_than_python_can_follow_tells_nothing() -> None:
    text = (
        "def step(rank):\n    x = "
        + " + ".join(["a()"] * 2000)
        + "\n    if rank == 0:\n        dist.barrier()  # here\n"
    )
    assert reader(text).around(marked(text)).loops == ()


def test_sources_with_doubtful_strings_are_read_in_silence() -> None:
    branch = guard_of("p = '\\d'\nif rank:\n    dist.barrier()  # here\n")
    assert branch is not None
