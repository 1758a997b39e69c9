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
        "accesstoken",
        "hftoken",
        "wandbkey",
        "DBPASS",
        "SSHPASS",
        "LDAP_BINDPW",
        "MYSQLPWD",
        "HF_TOKEN2",
        "SIGNING_KEY_BASE64",
        "IMAGE_REGISTRY_TOKEN",
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
        "OLDPWD",
        "monkey",
        "keyboard",
        "compass",
        "bypass",
        "forward_pass",
        "primary_key",
        "cache_key",
        "pad_token",
        "padtoken",
        "num_tokens",
        "tokenizer",
        "model.token_embedding.weight",
        "token_type_ids",
        "time_to_first_token",
        "conv_pw",
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
        ("Authorization: ApiKey abc", "Authorization: ***"),
        ("authorization: Negotiate abc= was refused", "authorization: *** was refused"),
        ("Authorization: AWS4 Credential=a/b, Signature=c", "Authorization: ***"),
        ('Authorization: Token token="abc" refused', "Authorization: *** refused"),
        ("curl -H 'Authorization: ApiKey abc' host", "curl -H 'Authorization: ***' host"),
        ("{b'Authorization': b'Bearer abc'}", "{b'Authorization': b'***'}"),
        (r'{"a": "{\"api_key\": \"abc\", \"lr\": 1}"}', r'{"a": "{\"api_key\": \"***\", \"lr\": 1}"}'),
        (r"{\"password\": \"a\\\"b\"} x", r"{\"password\": \"***\"} x"),
        (r"'a=1\ntoken=abc'", r"'a=1\ntoken=***"),
        ("secret key: abc", "secret key: ***"),
        ("API key: abc", "API key: ***"),
        ("\x1b[36mapi_key\x1b[0m=\x1b[35mabc\x1b[0m", "api_key=***"),
        (r'{"m": "\u001b[36mapi_key\u001b[0m=abc x"}', '{"m": "api_key=*** x"}'),
        ('"password": {"value": "abc"}, "lr": 1', '"password": ***, "lr": 1'),
        ("auth=HTTPBasicAuth('me', 'abc') x", "auth=*** x"),
        ("<password>abc</password>", "<password>***</password>"),
        ("'password' => 'abc'", "'password' => '***'"),
        ("machine host login me password abc", "machine host login me password ***"),
        ("Pwd=abc;Server=db", "Pwd=***;Server=db"),
        ("POST https://api.telegram.org/bot12345678:AAHabc/send", "POST https://api.telegram.org/bot***/send"),
        ('{"name": "HF_TOKEN", "value": "abc"}', '{"name": "HF_TOKEN", "value": "***"}'),
        ("run --api-keys Zq77xK7mPw4RtY9s Zq78xK7mPw4RtY9s --lr 1", "run --api-keys *** *** --lr 1"),
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
        "key=value, sorted(rows, key=lambda row: row.loss), key=(3, 4), cache_key=(3, 4)",
        'KeyError: "no such entry (key=model.layers.0.weight)"',
        '{"key": "train/loss", "value": 0.3}',
        "c10d store key default_pg/0//cuda//0 not found",
        "monkey=3 compass=north bypass=yes primary_key=id forward_pass: 12ms padtoken=x",
        "model.token_embedding.weight: torch.Size([32000, 4096])",
        "encoder.layer.0.attention.self.key: Linear(in_features=768)",
        "python train.py --pad-token '<pad>' --bypass yes",
        "the token is expired; the password is wrong; password was not given",
        "if token == '<pad>' or key == 'weight':",
        "\x1b[32mINFO\x1b[0m \x1b[36mepoch\x1b[0m=3",
        "WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000)",
        "torch.Size([1, 2048, 4096]) vs torch.Size([1, 2048, 4095])",
        "base64 of a batch: iVBORw0KGgoAAAANSUhEUgAAAAUAAAAFCAYAAACNbyblAAAAHElEQVQI12P4",
    ],
)
def test_innocent_text_stays(text: str) -> None:
    assert mask_text(text) == text


def test_numbers_and_flags_of_options_stay() -> None:
    command = ["train.py", "--num-key-value-heads", "8", "--pad-token-id=0", "--token-limit", "4096", "-u", "train.py"]
    assert mask_arguments(command) == command


def test_every_value_of_a_secret_option_is_masked() -> None:
    assert mask_arguments(["--api-keys", "a", "b", "--lr", "1"]) == ["--api-keys", "***", "***", "--lr", "1"]
    assert mask_arguments(["--api-key", "a", "train.py"]) == ["--api-key", "***", "train.py"]


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
        ["pem = '" + "\\\\n".join(KEY) + "'"],
        [f"  {line}" for line in KEY],
        [f"2024-01-01 12:00:00 INFO {line}" for line in KEY],
        [f"[default0]:{line}" for line in KEY],
        [f"\x1b[32mINFO\x1b[0m {line}\x1b[0m" for line in KEY],
        [f'"{line}\\n"' for line in KEY],
        [f"[default0]:{line}" for line in KEY[2:]],
    ],
    ids=[
        *(
            "whole",
            "among others",
            "headless",
            "cut off",
            "escaped",
            "escaped twice",
            "indented",
            "logged",
            "of a rank",
        ),
        *("coloured", "in source code", "headless, of a rank"),
    ],
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


SECRET_CODE = """
class Config:
    api_key: str = "hunter2"
    token: Secret = field(repr=False, default="hunter2")

def connect(password="hunter2", *, api_key=b"hunter2"):
    if password == "hunter2" or "hunter2" != password:
        secret = ("hunter2"
                  f"hunter2{password}")
    password += "hunter2"
    parser.add_argument("--token", help="the token", default="hunter2")
    login(dict(auth=(
        "me",
        "hunter2",
    )), token=os.environ.get(
        "HF_TOKEN",
        "hunter2",
    ))
    credentials = {
        "user": "é", "value":
            \'\'\'hunter2
            hunter2\'\'\',
    }
"""


def test_code_loses_what_its_syntax_gives_to_a_secret_name() -> None:
    masked = mask_code(SECRET_CODE)
    ast.parse(masked)
    assert "hunter2" not in masked
    assert masked.count("\n") == SECRET_CODE.count("\n")
    assert all(kept in masked for kept in ('help="the token"', '"HF_TOKEN"', '"user"'))


@pytest.mark.parametrize(
    "line",
    [
        '    api_key: str = "hunter2"',
        '    token: Optional[str] = field(repr=False, default="hunter2")',
        '    if password == "hunter2":',
        '    secret = ("hunter2"',
        '    p.add_argument("--token", "-t", help="the token", default="hunter2")',
        '    elif (token := "hunter2"):',
    ],
)
def test_a_line_of_code_alone_loses_its_secret(line: str) -> None:
    assert "hunter2" not in mask_code(line)
    assert mask_code(line).count("***") == 1


def test_innocent_code_stays() -> None:
    code = """
if token == "<pad>" or key in ("q", "k"):
    key = f"layers.{index}.weight"
token = os.environ["HF_TOKEN"]
auth = open("auth.json").read()
tokenizer.add_special_tokens({"pad_token": "<pad>"})
parser.add_argument("--max-tokens", default="512")
parser.add_argument("-u", "--user", default="me")
entry = entries.get("key", "value")
"""
    assert mask_code(code) == code
    assert [mask_code(line) for line in code.split("\n")] == code.split("\n")
