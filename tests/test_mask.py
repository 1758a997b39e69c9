"""Secrets do not survive; what only looks like one to a careless rule does."""

from __future__ import annotations

import ast
import string
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.mask import (
    forget,
    is_secret_name,
    learn,
    mask_arguments,
    mask_code,
    mask_environment,
    mask_lines,
    mask_text,
)

# Long enough not to occur by accident in the text around it.
SECRETS = st.text(string.ascii_letters + string.digits + "/+=_.!$%&()[]{}@,;:|", min_size=10, max_size=40).map(
    lambda text: "Z9" + text
)
TOKENS = st.text(string.ascii_letters + string.digits, min_size=20, max_size=40).map(lambda text: "Z9" + text)
NAMES = st.sampled_from(
    [
        "WANDB_API_KEY",
        "HF_TOKEN",
        "MY_SECRET",
        "DB_PASSWORD",
        "PGPASSWORD",
        "MYSQL_PWD",
        "apiKey",
        "auth-token",
    ]
)
WORDS = st.text(string.ascii_letters + " .:/-_=", max_size=30)


@pytest.mark.parametrize(
    "name",
    [
        "WANDB_API_KEY",
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "PASSWORD",
        "GIT_PASSWD",
        "GOOGLE_CREDENTIALS",
        "SSH_AUTH_SOCK",
        "SESSION_COOKIE",
        "api-key",
        "api_key",
        "apiKey",
        "APIKEY",
        "key",
        "token",
        "PGPASSWORD",
        "DB_PASS",
    ],
)
def test_secret_names(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "TOKENIZERS_PARALLELISM",
        "KEYBOARD",
        "AUTHOR",
        "GIT_AUTHOR_NAME",
        "KeyError",
        "TokenError",
        "MAX_TOKENS",
        "NCCL_DEBUG",
        "PWD",
        "MONKEYS",
        "RANK",
        "PYTHONPATH",
    ],
)
def test_innocent_names(name: str) -> None:
    assert not is_secret_name(name)


@given(NAMES, SECRETS)
def test_a_secret_variable_is_masked(name: str, secret: str) -> None:
    assert mask_environment({name: secret, "RANK": "3"}) == {name: "***", "RANK": "3"}


@given(
    NAMES,
    SECRETS,
    WORDS,
    st.sampled_from(["{}={}", "--{}={}", "--{} {}", '{}="{}"', "{} = '{}'", "?x=1&{}={}"]),
)
def test_no_form_of_naming_it_lets_a_secret_through(name: str, secret: str, words: str, form: str) -> None:
    masked = mask_text(f"{words} {form.format(name, secret)} {words}")
    assert secret not in masked
    assert secret[:8] not in masked
    assert "***" in masked


@given(TOKENS, WORDS, st.sampled_from(["hf_{}", "sk-{}", "sk-proj-{}", "ghp_{}", "Bearer {}", "github_pat_{}"]))
def test_what_looks_like_a_token_is_masked_wherever_it_stands(token: str, words: str, form: str) -> None:
    assert token not in mask_text(f"{words} {form.format(token)}, {words}")


@given(SECRETS.filter(lambda text: "/" not in text))
def test_the_password_of_an_address_is_masked(secret: str) -> None:
    masked = mask_text(f"fetching https://someone:{secret}@example.org/data failed")
    assert secret not in masked
    assert masked == "fetching https://someone:***@example.org/data failed"


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=6), NAMES)
def test_the_value_of_a_secret_argument_is_masked_with_all_its_spaces(secret: str, name: str) -> None:
    if not secret.startswith("-"):
        assert mask_arguments(["train.py", f"--{name}", secret, "--lr", "1"]) == [
            "train.py",
            f"--{name}",
            "***",
            "--lr",
            "1",
        ]
    assert mask_arguments([f"--{name}={secret}"]) == [f"--{name}=***"]


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Authorization: Bearer abc.def", "Authorization: ***"),
        ("{'Authorization': 'Bearer abc'}", "{'Authorization': '***'}"),
        ("Cookie: a=b; c=d", "Cookie: ***"),
        ('{"api_key": "abc", "lr": 1}', '{"api_key": "***", "lr": 1}'),
        ("key AKIAABCDEFGHIJKLMNOP used", "key *** used"),
        ("password: hunter2", "password: ***"),
        ("password             = hunter2", "password             = ***"),
        ("https://example.org/?url=https://h/&token=abc", "https://example.org/?url=https://h/&token=***"),
    ],
)
def test_known_forms(text: str, masked: str) -> None:
    assert mask_text(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 'lm_head.weight'",
        "Timed out waiting for key: default_pg/0//cpu//0/rank_1",
        "RuntimeError: Unexpected key(s) in state_dict: fc.weight",
        "tokenizer = AutoTokenizer.from_pretrained('gpt2')",
        "from hf_transfer import download",
        "loss=0.3 step=12 tokens=4096",
        "connect to tcp://127.0.0.1:29500 failed",
        "python train.py --lr 0.1 --max-tokens 512",
        "HEAD is now at 9139506 Analysis (9139506cd1bb2b8a1a1d2c7d1e0f5a6b7c8d9e0f)",
        "sha256:4bf5122f344554c53bde2ebb8cd2b7e3d1600ad631c385a5d7cce23c7785459a",
        "tensor([[ 0.1234, -1.5e-05, nan], [1.0000, 2.0000, 3.0000]], device='cuda:0', dtype=torch.bfloat16)",
        "num_key_value_heads=8 pad_token_id=50256 eos_token_id: 2 max_token_length=512 bos_token='<s>'",
        "key_padding_mask=None, attn_mask=None, need_weights=False",
        "CUDA error: an illegal memory access was encountered at 0x7f43c0dead00",
        "step 1200 | loss 2.3112 | 41,233 tokens/s | token 7 of 9",
        "Traceback (most recent call last):",
        'File "/home/someone/train.py", line 88, in push_metrics',
        "the password for this host was not asked for",
        "secrets are kept elsewhere; see the basic authorization guide",
        "uuid 3f2504e0-4f89-11d3-9a0c-0305e82c3301 of node-7.cluster.local:29500",
        "s3://bucket/path/to/shard-00012-of-01024.parquet",
        "https://huggingface.co/meta-llama/Llama-3.1-8B/resolve/main/model-00001-of-00004.safetensors",
        "ssh://git@github.com/team/repo.git",
        "torch.Size([1, 2048, 4096]) vs torch.Size([1, 2048, 4095])",
        "base64 of a batch: iVBORw0KGgoAAAANSUhEUgAAAAUAAAAFCAYAAACNbyblAAAAHElEQVQI12P4",
    ],
)
def test_innocent_text_stays(text: str) -> None:
    assert mask_text(text) == text


def test_numbers_and_flags_of_options_stay() -> None:
    command = ["train.py", "--num-key-value-heads", "8", "--pad-token-id=0", "--token-limit", "4096", "-u", "train.py"]
    assert mask_arguments(command) == command


@pytest.fixture
def learnt() -> Iterator[None]:
    learn(["--api-key", "hunter2hunter2", "--pw=Tr0ub4dor"], {"MY_TOKEN": "correct-horse", "PIN_PASSWORD": "1234"})
    yield
    forget()


@pytest.mark.usefixtures("learnt")
def test_what_was_called_a_secret_once_is_one_everywhere() -> None:
    assert (
        mask_text("login of hunter2hunter2 (Tr0ub4dor) failed: 'correct-horse'") == "login of *** (***) failed: '***'"
    )
    assert mask_code('connect("correct-horse")') == 'connect("***")'
    assert mask_text("1234 steps; correct-horses") == "1234 steps; correct-horses"


BODY = [f"MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSj{number:024d}" for number in range(4)]
KEY = ["-----BEGIN PRIVATE KEY-----", *BODY, "q1==", "-----END PRIVATE KEY-----"]


@pytest.mark.parametrize(
    "lines",
    [
        KEY,
        ["R0: found:", *KEY, "R0: going on"],
        KEY[2:],
        KEY[:3],
        ["key = '" + "\\n".join(KEY) + "'"],
        [f"  {line}" for line in KEY],
    ],
    ids=["whole", "among others", "headless", "cut off", "escaped", "indented"],
)
def test_a_private_key_is_masked_over_all_its_lines(lines: list[str]) -> None:
    masked = mask_lines(lines)
    assert len(masked) == len(lines)
    assert not [line for line in BODY for text in masked if line in text]
    assert [line for line in masked if "going on" in line or "found" in line] == [
        line for line in lines if "going on" in line or "found" in line
    ]


@given(st.lists(WORDS))
def test_lines_stay_lines(lines: list[str]) -> None:
    assert len(mask_text("\n".join(lines)).split("\n")) == max(1, len(lines))


CODE = '''
import os
os.environ["WANDB_API_KEY"] = "0123456789abcdef"
os.environ.setdefault('HF_TOKEN', 'hunter2')
rows = sorted(rows, key=lambda row: row.loss)
best = max(scores, key=scores.get)
client = Client(token=f"{prefix}hunter2", key=load())
password = """hunter2"""
if key == wanted and token: pass
URL = "https://me:hunter2@example.org"
'''


def test_masked_code_still_parses_and_keeps_its_lines() -> None:
    masked = mask_code(CODE)
    ast.parse(masked)
    assert "hunter2" not in masked
    assert "0123456789abcdef" not in masked
    assert masked.count("\n") == CODE.count("\n")
    assert "key=lambda row: row.loss)" in masked
    assert "key=scores.get" in masked
    assert "if key == wanted and token: pass" in masked
