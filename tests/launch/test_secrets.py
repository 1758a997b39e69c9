"""Secrets in every place where one can sit: none is in the run's folder, nor in what we ourselves say."""

from __future__ import annotations

import json
import stat
import subprocess
from pathlib import Path

import pytest

from conftest import COMMAND, Rankscope

KEY_LINES = [f"MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSj{number:024d}" for number in range(6)]
LOGGED_KEY_LINES = [f"MIIEpAIBAAKCAQEAx7Vn0kq3yLh5rJ8sWb2mTd{number:024d}" for number in range(3)]


def value(number: int, length: int = 24) -> str:
    """Looks like nothing in particular, and like no other."""
    return (f"Zq{number:02d}" + "xK7mPw4RtY9sDf2GhJ6bNc3VvL8" * 3)[:length]


ARGUMENTS = {
    "equals": [f"--api-key={value(1)}"],
    "next": ["--password", value(2)],
    "spaces": ["--passphrase", f"{value(3)} and {value(4)}"],
    "hydra": [f"tracker.api_key={value(5)}"],
    "short": ["--pw", value(6)],
    "url": [f"--db=postgresql://trainer:{value(7)}@db.internal/runs"],
    "shape": [f"--hub=hf_{value(8)}"],
    "header": ["--header", f"Authorization: Bearer {value(9)}"],
    "curl": ["-u", f"someone:{value(10)}"],
    "signed": [f"--data=https://store.blob.core.windows.net/a?sv=1&sig={value(11)}%3D"],
    "in one word": ["--accesstoken", value(47)],
    "several": ["--api-keys", value(48), value(49)],
}
VARIABLES = {
    "WANDB_API_KEY": value(12, 40),
    "HF_TOKEN": f"hf_{value(13)}",
    "SLURM_JWT": f"eyJ{value(14)}.{value(15)}.{value(16)}",
    "AWS_SECRET_ACCESS_KEY": value(17, 40),
    "NCCL_PROXY_PASSWORD": value(18),
    "SENTRY_DSN": f"https://{value(19)}@sentry.example/1",
    "TORCH_MIRROR": f"https://me:{value(20)}@mirror.example/simple",
}
PRINTED = {
    "github": f"pushing with ghp_{value(21)}",
    "fine grained": f"pushing with github_pat_{value(22)}",
    "slack": f"posting as xoxb-12345-{value(23)}",
    "hook": f"posting to https://hooks.slack.com/services/T000/B000/{value(24)}",
    "openai": f"asking with sk-proj-{value(25)}",
    "google": f"asking with AIza{value(26, 35)}",
    "aws": "signing with AKIAZQ27XK7MPW4RTY9S",
    "gitlab": f"cloning with glpat-{value(28)}",
    "connection": f"Server=db;User Id=sa;Pwd={value(29)};",
    "account": f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={value(30)}==;",
    "cookie": f"Set-Cookie: session={value(31)}; Path=/",
    "basic": f"Authorization: Basic {value(32)}=",
    "json": f'{{"client_secret": "{value(33)}", "lr": 0.1}}',
    "login": f"$ wandb login {value(34, 40)}",
    "vault": f"using hvs.{value(35)}",
    "key block": "-----BEGIN RSA PRIVATE KEY-----\n" + "\n".join(KEY_LINES) + "\n-----END RSA PRIVATE KEY-----",
    "scheme": f"Authorization: ApiKey {value(50)}",
    "signed header": f"Authorization: AWS4-HMAC-SHA256 Credential=someone/2, SignedHeaders=host, Signature={value(51)}",
    "JSON in JSON": json.dumps({"body": json.dumps({"api_key": value(52)})}),
    "two words": f"secret key: {value(53)}",
    "bytes": str({b"Authorization": f"Bearer {value(54)}".encode()}),
    "colours": f"\x1b[36mapi_key\x1b[0m=\x1b[35m{value(55)}\x1b[0m",
    "logged key block": "\n".join(
        f"INFO {line}" for line in ("-----BEGIN PRIVATE KEY-----", *LOGGED_KEY_LINES, "-----END PRIVATE KEY-----")
    ),
}
SOURCE = {
    "literal": f'DB_PASSWORD = "{value(37)}"',
    "comment": f"# token: {value(38)}",
    "argument": f'FLAGS = ["--secret={value(39)}"]',
    "header": f'HEADERS = {{"Authorization": "Bearer {value(40)}"}}',
    "string": f'DSN = "Server=db;Password={value(41)};"',
    "annotated": f'def connect():\n    api_key: str = "{value(56)}"',
    "two lines": f'SECRET = ("{value(57)}"\n          "{value(58)}")',
    "dataclass": f'class Config:\n    api_key: str = "{value(59)}"\n    token: str = field(default="{value(60)}")',
    "compared": f'def check(password):\n    return password == "{value(61)}"',
    "parser": f'argparse.ArgumentParser().add_argument("--token", default="{value(62)}")',
}
RAISED = [value(42), value(43), value(44), value(45)]
OF_CHILD = value(63)
SECRETS = [
    *(value(number) for number in range(1, 64) if number not in (27, 36, 46)),
    "AKIAZQ27XK7MPW4RTY9S",
    *KEY_LINES,
    *LOGGED_KEY_LINES,
]

PROGRAM = """
import argparse, os, subprocess, sys
from dataclasses import field
import torch.distributed as dist
import rankscope
{source}
SAID = open(sys.argv[-1]).read().split(",")

def fail():
    # The values that options and variables call secret turn up without their names, too.
    raise RuntimeError("login failed for %s with %s (token=%s), redis://:%s@cache/0, api_key: %s" % (
        sys.argv[1].partition("=")[2], os.environ["AWS_SECRET_ACCESS_KEY"], *SAID[:3]))

dist.init_process_group("gloo")
with rankscope.stage("connecting to https://me:" + SAID[3] + "@host/"):
    pass
if dist.get_rank() == 1:
    print(open(sys.argv[-2]).read(), flush=True)
    print(open(sys.argv[-2]).read(), file=sys.stderr, flush=True)
    waiting = [sys.executable, "-c", "import sys; sys.stdin.read()", "--hftoken", SAID[4]]
    child = subprocess.Popen(waiting, stdin=subprocess.PIPE)
    fail()
dist.barrier()
"""


@pytest.mark.slow
def test_no_secret_reaches_the_folder_of_a_run_or_our_part_of_the_screen(rankscope: Rankscope, tmp_path: Path) -> None:
    printed = tmp_path / "printed"
    printed.write_text("\n".join(PRINTED.values()) + "\n")
    script = rankscope.script(PROGRAM.format(source="\n".join(SOURCE.values())))
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    remote = f"https://oauth2:{value(46)}@git.example/team/repo.git"
    subprocess.run(["git", "remote", "add", "origin", remote], cwd=tmp_path, check=True)
    arguments = [word for words in ARGUMENTS.values() for word in words]

    said = tmp_path / "said"  # by the rank alone: no argument and no variable tells the launcher
    said.write_text(",".join((*RAISED, OF_CHILD)))
    notice = tmp_path / "notice"
    told = ["--notify", f"cat > {notice}"]
    ended = rankscope.run("--stages", "on", "--json", *told, script, *arguments, printed, said, env=VARIABLES)

    assert ended.verdict["outcome"] == "crash", ended.err.decode()
    found = secrets_below(ended.run_dir, but=("logs",))
    ours = [line for line in ended.lines() if not line.startswith(("R0:", "R1:"))]
    found |= {f"screen: {secret}" for secret in (*SECRETS, value(46)) for line in ours if secret in line}
    assert found == set()
    # It is the program's own output, and stays whole.
    assert value(21).encode() in ended.log(1, "stdout")
    assert value(21).encode() in ended.out

    assert "login failed" in notice.read_text()
    assert [secret for secret in SECRETS if secret in notice.read_text()] == []
    forms = [["diagnose"], *(["report", "--output", "-", "--format", form] for form in ("html", "md", "json", "trace"))]
    for form in forms:
        again = subprocess.run(
            [*COMMAND, *form, str(ended.run_dir)], capture_output=True, text=True, check=False, timeout=60
        )
        assert again.stdout, form
        assert "login failed" in again.stdout or form[-1] == "trace"
        assert [secret for secret in SECRETS if secret in again.stdout + again.stderr] == [], form


@pytest.mark.slow
def test_what_a_run_writes_is_readable_by_its_owner_only(rankscope: Rankscope) -> None:
    script = rankscope.script("import sys; print('hello'); sys.exit(3)")
    ended = rankscope.run(script, nproc=1)
    assert ended.code == 3
    modes = {path.relative_to(ended.run_dir): stat.S_IMODE(path.lstat().st_mode) for path in ended.run_dir.rglob("*")}
    modes[Path()] = stat.S_IMODE(ended.run_dir.stat().st_mode)
    wide = {str(path): oct(mode) for path, mode in modes.items() if mode & 0o077}
    assert wide == {}
    assert {Path("run.json"), Path("verdict.json"), Path("evidence/attempt_0/evidence.json")} <= set(modes)


def secrets_below(folder: Path, but: tuple[str, ...]) -> set[str]:
    found = set()
    for path in folder.rglob("*"):
        if path.is_file() and path.relative_to(folder).parts[0] not in but:
            text = path.read_bytes().decode(errors="replace")
            found |= {f"{path.relative_to(folder)}: {secret}" for secret in (*SECRETS, value(46)) if secret in text}
    return found
