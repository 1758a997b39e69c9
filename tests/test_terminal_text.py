"""What text of a job may do to a terminal."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.terminal_text import harmless, harmless_bytes, without_escapes

RED, RESET = "\x1b[31m", "\x1b[0m"


@pytest.mark.parametrize(
    ("given_text", "shown"),
    [
        ("plain text, ünïcödé ████ 日本", "plain text, ünïcödé ████ 日本"),
        (f"{RED}red{RESET} and not", f"{RED}red{RESET} and not"),
        (f"{RED}left open", f"{RED}left open{RESET}"),
        ("\x1b[1;38;5;208mbold\x1b[m", "\x1b[1;38;5;208mbold\x1b[m"),
        ("\x1b[38:2::1:2:3mexact\x1b[0m", "\x1b[38:2::1:2:3mexact\x1b[0m"),
        ("a\tb", "a\tb"),
        ("\x1b[2J\x1b[Hgone", "gone"),
        ("\x1b[1A\x1b[2Kover the last line", "over the last line"),
        ("\x1b]0;a title\x07text", "text"),
        ("\x1b]52;c;ZXZpbA==\x1b\\text", "text"),
        ("\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPtmux;\x1b\x1b]52;c;ZXZpbA==\x07\x1b\\text", "tmux;text"),
        ("\x1b[?1049h\x1b[?25lmodes", "modes"),
        ("\x1b[>4;1mkeyboard", "keyboard"),
        ("\x1bc reset of the terminal", " reset of the terminal"),
        ("\x1b(0 other letters", " other letters"),
        ("\x9b2Jeight bits\x9d0;title\x9c", "eight bits"),
        ("\x9b31meight bits\x9b0m", f"{RED}eight bits{RESET}"),
        ("bell\x07 backspace\x08 nul\x00 return\r delete\x7f", "bell backspace nul return delete"),
        ("\x1b]0;a title without an end", "0;a title without an end"),
        ("\x1b[", ""),
        ("\x1b", ""),
        (f"{RED}one\ntwo", f"{RED}one{RESET}\ntwo"),
    ],
)
def test_colours_pass_and_nothing_else_does(given_text: str, shown: str) -> None:
    assert harmless(given_text) == shown
    if "\n" not in given_text:
        assert harmless_bytes(given_text.encode()) == shown.encode()


def test_bytes_that_are_no_text_pass_but_for_those_that_old_terminals_obey() -> None:
    assert harmless_bytes(b"bad \xff\xfe") == b"bad \xff\xfe"
    assert harmless_bytes(b"\x9b2J\xff") == b"2J\xff"


DANGEROUS = re.compile("[\x00-\x08\x0a-\x1a\x1c-\x1f\x7f-\x9f]|\x1b(?!\\[[0-9;:]*m)")


@given(
    st.lists(st.sampled_from(["\x1b", "[", "]", "P", "0", ";", "?", "m", "J", "\x07", "\\", "\x9b", "\x9c", "\r", "x"]))
)
def test_nothing_dangerous_is_left_and_a_second_pass_changes_nothing(pieces: list[str]) -> None:
    shown = harmless("".join(pieces))
    assert not DANGEROUS.search(shown), repr(shown)
    assert harmless(shown) == shown
    assert "\x1b" not in without_escapes("".join(pieces))


@pytest.mark.parametrize("piece", ["\x1b]", "\x9d", "\x1b[", "\x1b[1;", "\x1bP\x1b", "\x9b0"])
def test_no_line_takes_long(piece: str) -> None:
    begun = time.process_time()
    harmless(piece * 30_000)
    assert time.process_time() - begun < 2.0
