"""What to change, in Korean; the keys and what stands in braces are those of the English words."""

from __future__ import annotations

from rankscope.diagnosis.advice import Advice
from rankscope.report.words.advice import Wordings
from rankscope.report.words.ko.particles import Word

ADVICE = Wordings()
_ABOUT = {
    "the lock file": "그 잠금 파일",
    "what it tests": "확인하는 그 파일",
    "the loop's condition": "루프의 조건",
    "a save": "저장",
    "the preparation": "준비",
}
"""What rules fill in where there is no name: words, which are said in Korean too."""


def advise(advice: Advice) -> str:
    about = {name: Word(_ABOUT.get(str(value), value)) for name, value in advice.about}
    return ADVICE[advice.key].format(**about)
