"""Notices: who is meant, what is said, and that nothing of it can harm."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.diagnosis.verdict import Culprit, Verdict, Where
from rankscope.mask import forget, mask_arguments, mask_text
from rankscope.report.notices.bodies import Notice, body
from rankscope.report.notices.otlp import headers_of
from rankscope.report.notices.places import github_line, leave_records
from rankscope.report.notices.targets import Shape, parse_target

HANG = Verdict(
    schema=2,
    outcome="hang",
    cause="collective-skipped",
    certainty="proven",
    culprits=(Culprit(1, "gpu-1", 4, "rank", Where("/home/user/repo/src/a,b.py", 88, "main"), "waits"),),
    victims=(0, 2),
    headline="rank 1 <!channel> @everyone [click](http://x) waits, 100% sure: token=abcdef1234567890abcd",
    because=("rank 0 entered all_reduce 7",),
    fix=("move the call\nout of the branch",),
    detected_after_s=1.8,
    world_size=3,
    retry="no",
)


@pytest.fixture(autouse=True)
def nothing_learnt() -> Iterator[None]:
    yield
    forget()


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("https://hooks.slack.com/services/T0/B0/xyz", "slack"),
        ("https://discord.com/api/webhooks/1/abc", "discord"),
        ("https://ptb.discord.com/api/v10/webhooks/1/abc", "discord"),
        ("https://contoso.webhook.office.com/webhookb2/1@2/IncomingWebhook/3/4", "teams"),
        ("https://prod-1.westeurope.logic.azure.com:443/workflows/1/triggers/manual/paths/invoke?sig=x", "teams"),
        ("slack+http://mattermost.example:8065/hooks/abc", "slack"),
        ("otlp+http://collector:4318", "otlp"),
        ("https://example.com/hooks.slack.com/services/", "json"),
        ("http://user:pass@example.com/x", "json"),
        ("sh -c 'exit 1'", "command"),
        ("cat > /dev/null", "command"),
        ("curl --data @- https://example.com", "command"),
    ],
)
def test_address_says_what_its_receiver_understands(
    text: str, shape: Shape, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "curl").write_text("")
    (tmp_path / "curl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert parse_target(text).shape == shape


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ftp://example.com/x", "must begin with https"),
        ("https://", "must begin with https"),
        ("http://example.com:notaport/", "must begin with https"),
        ("  ", "give an address or a command"),
        ("no-such-program-here --now", "no program 'no-such-program-here'"),
        ("cat 'unclosed", "cannot be read by a shell"),
    ],
)
def test_mistake_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=why):
        parse_target(text)


def test_path_of_an_address_is_a_secret() -> None:
    target = parse_target("https://alerts.example.com/in/9f8e7d6c5b4a")
    assert target.name == "https://alerts.example.com"
    assert "9f8e7d6c5b4a" not in " ".join(mask_arguments(["--notify", target.to])) + mask_text(f"POST {target.to}")
    teams = "https://contoso.webhook.office.com/webhookb2/1@2/IncomingWebhook/abc/4"
    forget()
    assert "IncomingWebhook/abc" not in mask_text(teams)


@pytest.mark.parametrize("shape", ["slack", "discord", "teams", "otlp", "json", "command"])
def test_no_secret_is_told_and_no_chat_acts_on_a_text_of_the_job(shape: Shape) -> None:
    content = json.loads(body(Notice(HANG, "ended", "gpu-1", "/runs/1"), shape))
    text = json.dumps(content)
    assert "abcdef1234567890abcd" not in text
    match shape:
        case "slack":
            assert "&lt;!channel&gt;" in content["text"]
            assert "<" not in content["text"]
            assert content["text"].startswith("*HANG, proven after 1.8 s: collective-skipped*\n")
        case "discord":
            assert content["allowed_mentions"] == {"parse": []}
            assert r"\[click\]\(http" in content["content"]
        case "teams":
            card = content["attachments"][0]["content"]
            assert (card["type"], card["body"][0]["weight"]) == ("AdaptiveCard", "Bolder")
            assert r"\[click\]\(http" in card["body"][1]["text"]
        case "otlp":
            record = content["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0]
            told = {each["key"]: each["value"] for each in record["attributes"]}
            assert (record["eventName"], record["severityText"]) == ("rankscope.verdict", "ERROR")
            assert told["rankscope.cause"] == {"stringValue": "collective-skipped"}
            assert told["rankscope.victims"] == {"arrayValue": {"values": [{"intValue": "0"}, {"intValue": "2"}]}}
            assert told["code.line.number"] == {"intValue": "88"}
        case _:
            assert (content["cause"], content["victims"]) == ("collective-skipped", [0, 2])


def test_collector_gets_log_records_at_their_place_with_the_headers_of_its_variables() -> None:
    assert parse_target("otlp+http://collector:4318").to == "http://collector:4318/v1/logs"
    assert parse_target("otlp+https://collector/custom/logs").to == "https://collector/custom/logs"
    assert headers_of({"OTEL_EXPORTER_OTLP_HEADERS": "api-key=a%20b,tenant = x"}) == {"api-key": "a b", "tenant": "x"}
    assert headers_of({}) == {}


def test_long_texts_keep_to_what_a_chat_takes() -> None:
    from msgspec.structs import replace

    long = replace(HANG, headline="x" * 9000, because=("y" * 9000,))
    content = json.loads(body(Notice(long, "detected", "gpu-1", ""), "discord"))["content"]
    assert len(content) <= 2000
    assert "(the job still runs)" in content


def test_annotation_names_the_file_as_the_repository_does() -> None:
    line = github_line(HANG, "/home/user/repo")
    assert line.startswith("::error file=src/a%2Cb.py,line=88,title=rankscope%3A HANG%2C proven after 1.8 s")
    assert line.count("\n") == 0
    assert "100%25 sure" in line
    assert line.endswith("%0Afix: move the call%0Aout of the branch")
    assert "file=/home/user/repo/src" in github_line(HANG, "")


def test_comment_of_the_user_stays(tmp_path: Path) -> None:
    scontrol, asked = tmp_path / "scontrol", tmp_path / "asked"
    scontrol.write_text(f'#!/bin/sh\necho "$1" >> {asked}\necho "JobId=9 Comment=sweep of Tuesday Nodes=2"\n')
    scontrol.chmod(0o755)
    leave_records(HANG, {"SLURM_JOB_ID": "9", "PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert asked.read_text() == "show\n"


def test_place_that_cannot_be_written_is_told_and_no_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave_records(HANG, {"RANKSCOPE_TERMINATION_LOG": str(tmp_path / "no" / "folder")})
    assert "cannot be written" in capsys.readouterr().err
