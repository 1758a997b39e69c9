"""Our encoder gives the ids of the `tokenizers` library, whatever the text."""

from __future__ import annotations

from typing import Any

import pytest

np = pytest.importorskip("numpy")
tokenizers = pytest.importorskip("tokenizers")

from hypothesis import example, given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from rankscope.train.data import wordtable  # noqa: E402
from rankscope.train.data.encoding import WordEncoder, make_encoder  # noqa: E402
from rankscope.train.data.tokenizer import BYTES, from_content  # noqa: E402
from searching import searched  # noqa: E402

LEARNED_FROM = (
    "the quick brown fox's 1234 jumps\n\n    over the lazy dog, don't we'll they've I'm you'd we're it's\n"
    "def encode(self, text):\n        return 'system' + \"Éric\" + 'привет мир' # 日本語\t\r\n   x = {1: 22, 333: 4}\n"
) * 4


def _train(size: int = 400) -> Any:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([LEARNED_FROM], trainer)
    return tokenizer


TOKENIZER = _train()
ENCODER = make_encoder(from_content(TOKENIZER.to_str(), "test"))

# Every kind of character that the rule tells apart, and those on which tables of white space and letters differ.
CHARACTERS = st.one_of(
    st.sampled_from("aZsdtmrevl'' 019_-.,\t\n\r\x0b\x0c\x00\x1c\x1f\x7f"),
    st.sampled_from("\x85\xa0\u1680\u2003\u2028\u202f\u205f\u3000\u200b\ufeffÉßжשع字語٣²½́😀\U0001e900"),
    st.characters(exclude_categories=["Cs"]),
)
PIECES = st.sampled_from(
    [
        "'s",
        "'system",
        " 's",
        "''s",
        "'ll",
        "'l",
        "'re",
        "don't",
        "  ",
        " \n ",
        "\n",
        "\n\n",
        " é",
        "é ",
        "<|endoftext|>",
        "x" * 40,
    ]
)
TEXTS = st.one_of(st.text(CHARACTERS), st.lists(st.one_of(PIECES, st.text(CHARACTERS, max_size=3))).map("".join))


@searched(250)
@given(TEXTS)
@example("\n's")
@example("# \xa0Foreground")
@example("The Éric, Himself")
@example("a <|endoftext|>  <|endoftext|> b")
@example(" ")
@example("'")
@example("x 'r")
def test_ids_are_those_of_the_tokenizer(text: str) -> None:
    assert isinstance(ENCODER, WordEncoder)
    assert ENCODER(text.encode()).tolist() == TOKENIZER.encode(text, add_special_tokens=False).ids


def test_ids_of_a_long_text_are_those_of_the_tokenizer_across_blocks_and_a_full_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wordtable, "_MOST_WORDS", 300)
    rng = np.random.default_rng(0)
    words = ["".join(chr(c) for c in rng.integers(97, 123, rng.integers(1, 24))) for _ in range(2000)]
    text = " ".join(words[i] + ("\n" if i % 7 == 0 else "") for i in rng.zipf(1.3, 60_000) % 2000)
    assert len(text) > 300_000
    encoder = make_encoder(from_content(TOKENIZER.to_str(), "test"))
    assert encoder(text.encode()).tolist() == TOKENIZER.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(
    "change",
    [
        lambda t: setattr(t, "normalizer", tokenizers.normalizers.NFKC()),
        lambda t: setattr(t, "pre_tokenizer", tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)),
        lambda t: setattr(t, "pre_tokenizer", tokenizers.pre_tokenizers.Whitespace()),
        lambda t: t.enable_truncation(3),
        lambda t: t.enable_padding(length=64),
    ],
    ids=["normalizer", "prefix space", "other rule", "truncation", "padding"],
)
def test_a_tokenizer_that_works_otherwise_encodes_by_itself_and_keeps_all_of_a_text(change: Any) -> None:
    changed = _train()
    change(changed)
    text = "the ﬁne fox's 1234  jumps\nover the lazy dog " * 3
    encoder = make_encoder(from_content(changed.to_str(), "test"))
    changed.no_truncation()
    changed.no_padding()
    assert encoder(text.encode()).tolist() == changed.encode(text, add_special_tokens=False).ids


def test_the_bytes_tokenizer_takes_any_bytes_as_they_are() -> None:
    assert make_encoder(BYTES)(b"\xff\x00a").tolist() == [255, 0, 97]


def test_documents_end_with_the_tokenizers_own_mark_or_a_number_beyond_its_vocabulary() -> None:
    assert from_content(TOKENIZER.to_str(), "test").end_of_text == TOKENIZER.token_to_id("<|endoftext|>")
    bare = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, []))
    choice = from_content(bare.to_str(), "test")
    assert (choice.end_of_text, choice.vocab_size) == (2, 3)
