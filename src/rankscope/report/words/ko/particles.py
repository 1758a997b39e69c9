"""Korean particles: which of two forms follows a word depends on the sound that the word ends with.

f"{Word('랭크 1'):이} {Word('all_reduce'):을} 기다린다"   →   랭크 1이 all_reduce를 기다린다
"""

from __future__ import annotations

import re

_PAIRS = {"이": "가", "은": "는", "을": "를", "과": "와", "으로": "로", "이다": "다", "이었다": "였다"}
"""After a final consonant → after a vowel."""
_ASIDE = re.compile(r"\s*(?:\([^()]*\)|\[[^\[\]]*\])$")
"""`push (train.py:88)` is read as `push`."""
_BLANKS = re.compile(r"[^0-9A-Za-z가-힣]+$")
_DIGITS = {"0": "ㅇ", "1": "ㄹ", "2": "", "3": "ㅁ", "4": "", "5": "", "6": "ㄱ", "7": "ㄹ", "8": "ㄹ", "9": ""}
"""영 일 이 삼 사 오 육 칠 팔 구."""
_LETTERS = {"L": "ㄹ", "M": "ㅁ", "N": "ㄴ", "R": "ㄹ"}
"""An abbreviation is spelt: NCCL ends with 엘, SIGTERM with 엠."""
_L_SOUND = re.compile(r"(?:l|le)$")
_CLOSED = re.compile(r"(?:[mn]|ng|[aeiou]ck|[aeiou]p|[aiou]me|[aio]ne)$")
"""English words that end with a consonant in Korean: 루프 does not, 스텝 (step), 락 (lock), 프레임 (frame) do."""
_OPEN = re.compile(r"(?:oo|ee|ea|oa)p$")
_FIRST, _FINALS, _L = 0xAC00, 28, 8


class Word(str):
    """A piece of a sentence that takes the particle named behind the colon."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        if spec not in _PAIRS:
            return format(str(self), spec)
        return f"{self}{particle(self, spec)}"


def particle(word: str, wanted: str) -> str:
    """`wanted` is the form after a final consonant; `로` follows also a final ㄹ."""
    final = _final(word)
    if wanted == "으로" and final == "ㄹ":
        return "로"
    return wanted if final else _PAIRS[wanted]


def _final(word: str) -> str:
    """The consonant that the word ends with; empty after a vowel."""
    while (shorter := _ASIDE.sub("", word)) != word and shorter.strip():
        word = shorter
    word = _BLANKS.sub("", word)
    if not word:
        return ""
    last = word[-1]
    if "가" <= last <= "힣":
        number = (ord(last) - _FIRST) % _FINALS
        return "ㄹ" if number == _L else "ㅇ" if number else ""
    if last.isdigit():
        # Tens, hundreds and thousands end with 십, 백, 천; ten thousand with 만.
        return _DIGITS[last]
    tail = re.search(r"[A-Za-z]+$", word)
    letters = tail.group() if tail is not None else last
    if letters.isupper():
        return _LETTERS.get(letters[-1], "")
    if _L_SOUND.search(letters):
        return "ㄹ"
    return "ㅁ" if _CLOSED.search(letters) and not _OPEN.search(letters) else ""
