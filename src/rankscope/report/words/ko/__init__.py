"""Facts → words, in Korean: a file here for each file of English words, with the same names in it.

A test compares the two: whatever one language can say, the other can.
"""

from __future__ import annotations

from functools import singledispatch

from rankscope.diagnosis.facts import Fact


@singledispatch
def sentence(fact: Fact) -> str:
    raise TypeError(f"no Korean words for {type(fact).__name__}")


@singledispatch
def headline(fact: Fact) -> str:
    return sentence(fact)


@singledispatch
def doing(fact: Fact) -> str:
    return sentence(fact)


# Each registers its words.
from rankscope.report.words.ko import calls as _calls  # noqa: E402, F401
from rankscope.report.words.ko import endings as _endings  # noqa: E402, F401
from rankscope.report.words.ko import endings_advice as _endings_advice  # noqa: E402, F401
from rankscope.report.words.ko import launched as _launched  # noqa: E402, F401
from rankscope.report.words.ko import logs as _logs  # noqa: E402, F401
from rankscope.report.words.ko import memory as _memory  # noqa: E402, F401
from rankscope.report.words.ko import nothing_found as _nothing_found  # noqa: E402, F401
from rankscope.report.words.ko import numbers as _numbers  # noqa: E402, F401
from rankscope.report.words.ko import recorded as _recorded  # noqa: E402, F401
from rankscope.report.words.ko import roots as _roots  # noqa: E402, F401
from rankscope.report.words.ko import run as _run  # noqa: E402, F401
from rankscope.report.words.ko import setup as _setup  # noqa: E402, F401
from rankscope.report.words.ko import standing as _standing  # noqa: E402, F401
