"""SkyPilot tasks and Kubernetes manifests: valid YAML that says what the run needs, and lines that do what they say."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schemas import JOB, JOBSET, SERVICE, SKY_TASK, faults

from rankscope.clusters.command import launch_command
from rankscope.clusters.yaml_text import to_yaml
from rankscope.errors import UsageError
from rankscope.launch.exit_code import BAD_NUMBERS, ELSEWHERE, FAILS_AGAIN, HANG

yaml: Any = pytest.importorskip("yaml", reason="PyYAML reads what was written")

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=12)
KEYS = st.text("abcdefgh", min_size=2, max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=4))
def test_yaml_reads_back_as_it_was(value: dict[str, Any]) -> None:
    assert yaml.safe_load(to_yaml(value)) == value


NAMES = ["train.py", "7b_Run.py", "___.py", "a" * 80 + ".py", "x-.py"]


@pytest.fixture(autouse=True)
def folder_with_the_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        (tmp_path / name).touch()


def produced(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert launch_command(list(words)) == 0
    return capsys.readouterr().out


def run_line(tmp_path: Path, line: str, code: int, **environment: str) -> list[str]:
    """The line for real, with a `rankscope` of our own on the path that tells its arguments."""
    program = tmp_path / "rankscope"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@"\nexit {code}\n')
    program.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", **environment}
    ended = subprocess.run(["bash", "-c", line], env=env, capture_output=True, text=True, check=False, timeout=30)
    assert ended.returncode == code, ended.stderr
    return ended.stdout.splitlines()


def test_kubernetes_job_has_one_pod_a_node_that_finds_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["k8s", "--nodes", "2", "--gpus", "8", "--image", "me/train:1", "--", "My_train.py", "--name", "a b"]
    service, job = yaml.safe_load_all(produced(capsys, *words))
    assert (service["kind"], service["spec"]["clusterIP"], job["kind"], job["apiVersion"]) == (
        *("Service", "None", "Job"),
        "batch/v1",
    )
    name = job["metadata"]["name"]
    assert name == service["metadata"]["name"] == "my-train"
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    pod = spec["template"]["spec"]
    assert (pod["subdomain"], pod["restartPolicy"]) == (name, "Never")
    container = pod["containers"][0]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert pod["volumes"][0]["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
    given_words = run_line(tmp_path, container["command"][2], 77, JOB_COMPLETION_INDEX="1")
    assert given_words == [
        *("run", "--retry-codes", "--nnodes", "2", "--node-rank", "1", "--master-addr", "my-train-0.my-train"),
        *("--master-port", "29500", "--nproc-per-node", "8", "My_train.py", "--name", "a b"),
    ]


def test_sky_task_reads_skypilots_variables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sky", "--nodes", "2", "--gpus", "4", "--gpu", "H100", "--", "train.py"]
    task = yaml.safe_load(produced(capsys, *words))
    assert (task["num_nodes"], task["resources"]) == (2, {"accelerators": "H100:4"})
    variables = {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_GPUS_PER_NODE": "4"}
    given_words = run_line(tmp_path, task["run"], 0, SKYPILOT_NODE_IPS="10.0.0.7\n10.0.0.8", **variables)
    assert given_words == [
        *("run", "--nnodes", "2", "--node-rank", "1", "--master-addr", "10.0.0.7", "--master-port", "29500"),
        *("--nproc-per-node", "4", "train.py"),
    ]


@pytest.mark.parametrize("script", NAMES)
@pytest.mark.parametrize("gpus", ["0", "8"])
def test_manifests_fit_the_schemas(capsys: pytest.CaptureFixture[str], script: str, gpus: str) -> None:
    words = ["--nodes", "3", "--gpus", gpus]
    service, job = yaml.safe_load_all(produced(capsys, "k8s", *words, "--image", "a/b:1", "--", script))
    assert faults(SERVICE, service) + faults(JOB, job) == []
    more = ["--jobset", "--max-restarts", "2", "--shm", "500Mi", "--image", "a/b:1"]
    jobset = yaml.safe_load(produced(capsys, "k8s", *words, *more, "--", script))
    assert faults(JOBSET, jobset) == []
    name, group = jobset["metadata"]["name"], jobset["spec"]["replicatedJobs"][0]["name"]
    assert len(f"{name}-{group}-0-999") <= 63
    task = yaml.safe_load(produced(capsys, "sky", *words, *(("--gpu", "H100") if gpus != "0" else ()), "--", script))
    assert faults(SKY_TASK, task) == []


def test_schemas_refuse_what_a_server_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    _, job = yaml.safe_load_all(produced(capsys, "k8s", "--image", "x", "--", "train.py"))
    for change, word in (
        ({"completion": 2}, "unknown"),
        ({"backoffLimit": "0"}, "no integer"),
        ({"template": {"spec": {"containers": []}}}, "no list"),
        ({"template": {"spec": {"containers": [{"name": "A b", "image": "x"}]}}}, "restartPolicy"),
    ):
        assert any(word in line for line in faults(JOB, {**job, "spec": {**job["spec"], **change}}))
    assert faults(SERVICE, job) != []


def test_pods_of_a_jobset_find_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["k8s", "--nodes", "2", "--gpus", "4", "--image", "me/train:1", "--jobset", "--", "train.py"]
    spec = yaml.safe_load(produced(capsys, *words))["spec"]
    assert spec["network"]["enableDNSHostnames"] is True
    assert spec["failurePolicy"]["maxRestarts"] == 0
    (rule,) = spec["failurePolicy"]["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    job = spec["replicatedJobs"][0]["template"]["spec"]
    assert (job["completions"], job["parallelism"], job["backoffLimit"]) == (2, 2, 0)
    line = job["template"]["spec"]["containers"][0]["command"][2]
    assert run_line(tmp_path, line, 77, JOB_COMPLETION_INDEX="1") == [
        *("run", "--retry-codes", "--nnodes", "2", "--node-rank", "1", "--master-addr", "train-node-0-0.train"),
        *("--master-port", "29500", "--nproc-per-node", "4", "train.py"),
    ]


def test_what_would_fail_again_is_not_restarted(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["k8s", "--nodes", "2", "--image", "me/train:1", "--max-restarts", "3", "--", "train.py"]
    _, job = yaml.safe_load_all(produced(capsys, *words))
    assert job["spec"]["backoffLimit"] == 6
    fails, evicted = job["spec"]["podFailurePolicy"]["rules"]
    assert (fails["action"], fails["onExitCodes"]["operator"]) == ("FailJob", "In")
    assert {2, BAD_NUMBERS, FAILS_AGAIN} < set(fails["onExitCodes"]["values"])
    assert not {0, 1, HANG, ELSEWHERE} & set(fails["onExitCodes"]["values"])
    assert fails["onExitCodes"]["containerName"] == job["spec"]["template"]["spec"]["containers"][0]["name"]
    assert evicted["action"] == "Ignore"


def test_own_number_of_ranks_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    text = produced(capsys, "k8s", "--image", "x", "--", "--nproc_per_node=3", "train.py")
    assert text.count("nproc") == 1


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (["k8s", "train.py"], "--image"),
        (["sky"], "nothing to run"),
        (["sky", "--gpus", "8", "train.py"], "--gpu H100"),
        (["k8s", "--image", "x", "--nodes", "0", "train.py"], "at least 1"),
        (["k8s", "--image", "x", "--shm", "16 GB", "train.py"], "16Gi"),
        (["k8s", "--image", "x", "--max-restarts", "-1", "train.py"], "at least 0"),
        (["sky", "--output", "/proc/none/x", "train.py"], "cannot be written"),
    ],
)
def test_mistake_is_one_line(words: list[str], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        launch_command(words)
