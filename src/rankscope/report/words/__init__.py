"""Facts → words, in English. A file here for each file of `diagnosis/facts`, and one for advice.

`sentence` says a fact as a reason ("rank 1 skipped the barrier at train.py:40"), `headline` as the first thing that a
person reads, `doing` as a few words about a culprit. A file of words registers what it knows:

    @sentence.register
    def _(fact: WaitsIn) -> str: ...
"""

from __future__ import annotations

from functools import singledispatch

from rankscope.diagnosis.facts import Fact


@singledispatch
def sentence(fact: Fact) -> str:
    raise TypeError(f"no words for {type(fact).__name__}")


@singledispatch
def headline(fact: Fact) -> str:
    """Without the full stop; what the victims do is added to it."""
    return sentence(fact)


@singledispatch
def doing(fact: Fact) -> str:
    """A few words about a culprit: `sleeping in wandb.init`."""
    return sentence(fact)


def has_words(fact: type[Fact]) -> bool:
    return sentence.dispatch(fact) is not sentence.dispatch(object)


# Each registers its words.
from rankscope.report.words import calls as _calls  # noqa: E402, F401
from rankscope.report.words import endings as _endings  # noqa: E402, F401
from rankscope.report.words import endings_advice as _endings_advice  # noqa: E402, F401
from rankscope.report.words import launched as _launched  # noqa: E402, F401
from rankscope.report.words import logs as _logs  # noqa: E402, F401
from rankscope.report.words import memory as _memory  # noqa: E402, F401
from rankscope.report.words import nothing_found as _nothing_found  # noqa: E402, F401
from rankscope.report.words import numbers as _numbers  # noqa: E402, F401
from rankscope.report.words import recorded as _recorded  # noqa: E402, F401
from rankscope.report.words import roots as _roots  # noqa: E402, F401
from rankscope.report.words import run as _run  # noqa: E402, F401
from rankscope.report.words import setup as _setup  # noqa: E402, F401
from rankscope.report.words import standing as _standing  # noqa: E402, F401
