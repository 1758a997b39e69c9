"""What Kubernetes, JobSet and SkyPilot accept, written down from their public API references.

Only the fields that a run could use are listed, each with its type. A manifest with any other field, without a required
one or with a value of the wrong kind is refused, as a server with strict field validation does.
Sources: Kubernetes API reference (batch/v1 Job, v1 Service, v1 PodSpec), JobSet v1alpha2, SkyPilot's YAML reference.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Check = Callable[[Any, str], list[str]]


@dataclass(frozen=True)
class Thing:
    """A mapping with known fields."""

    fields: dict[str, Check]
    required: frozenset[str] = field(default_factory=frozenset)

    def __call__(self, value: Any, where: str) -> list[str]:
        if not isinstance(value, dict):
            return [f"{where}: {value!r} is no mapping"]
        wrong = [f"{where}: the field {name!r} is unknown" for name in value if name not in self.fields]
        wrong += [f"{where}: the field {name!r} is missing" for name in self.required if name not in value]
        for name, check in self.fields.items():
            if name in value:
                wrong += check(value[name], f"{where}.{name}")
        return wrong


def needs(*names: str, **fields: Check) -> Thing:
    return Thing(fields, frozenset(names))


def listed(item: Check, at_least: int = 0) -> Check:
    def check(value: Any, where: str) -> list[str]:
        if not isinstance(value, list) or len(value) < at_least:
            return [f"{where}: {value!r} is no list of {at_least} or more"]
        return [line for number, entry in enumerate(value) for line in item(entry, f"{where}[{number}]")]

    return check


def mapped(item: Check) -> Check:
    def check(value: Any, where: str) -> list[str]:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            return [f"{where}: {value!r} is no mapping of texts"]
        return [line for key, entry in value.items() for line in item(entry, f"{where}.{key}")]

    return check


def text(pattern: str = r"(?s).+", most: int = 1 << 20) -> Check:
    def check(value: Any, where: str) -> list[str]:
        fits = isinstance(value, str) and len(value) <= most and re.fullmatch(pattern, value)
        return [] if fits else [f"{where}: {value!r} does not fit {pattern}"]

    return check


def number(least: int, most: int = 1 << 31) -> Check:
    def check(value: Any, where: str) -> list[str]:
        fits = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        return [] if fits else [f"{where}: {value!r} is no integer from {least}"]

    return check


def one_of(*values: Any) -> Check:
    return lambda value, where: [] if value in values else [f"{where}: {value!r} is none of {values}"]


def flag(value: Any, where: str) -> list[str]:
    return [] if isinstance(value, bool) else [f"{where}: {value!r} is neither true nor false"]


def quantity(value: Any, where: str) -> list[str]:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return []
    return text(r"[0-9]+(\.[0-9]+)?(m|[KMGTPE]i|[kMGTPE])?")(value, where)


LABEL_1035 = text(r"[a-z]([-a-z0-9]*[a-z0-9])?", 63)
LABEL_1123 = text(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", 63)
METADATA = needs("name", name=LABEL_1123, namespace=LABEL_1123, labels=mapped(text()), annotations=mapped(text()))
SERVICE_METADATA = needs("name", name=LABEL_1035, namespace=LABEL_1123, labels=mapped(text()))

CONTAINER = needs(
    *("name", "image"),
    name=LABEL_1123,
    image=text(r"\S+"),
    command=listed(text()),
    args=listed(text()),
    workingDir=text(),
    env=listed(needs("name", name=text(r"[-._a-zA-Z][-._a-zA-Z0-9]*"), value=text(r"(?s).*"))),
    resources=needs(limits=mapped(quantity), requests=mapped(quantity)),
    volumeMounts=listed(needs("name", "mountPath", name=LABEL_1123, mountPath=text(r"/[^:]*"), readOnly=flag)),
)
POD = needs(
    *("containers", "restartPolicy"),  # of a Job it may not be left to its default, Always
    containers=listed(CONTAINER, 1),
    restartPolicy=one_of("Never", "OnFailure"),
    subdomain=LABEL_1123,
    hostname=LABEL_1123,
    terminationGracePeriodSeconds=number(0),
    nodeSelector=mapped(text()),
    volumes=listed(
        needs("name", name=LABEL_1123, emptyDir=needs(medium=one_of("", "Memory"), sizeLimit=quantity)),
    ),
)
POD_FAILURE_RULE = needs(
    "action",
    action=one_of("FailJob", "FailIndex", "Ignore", "Count"),
    onExitCodes=needs(
        *("operator", "values"),
        containerName=LABEL_1123,
        operator=one_of("In", "NotIn"),
        values=listed(number(1, 255), 1),  # 0 is no failure, and is refused
    ),
    onPodConditions=listed(needs("type", type=text(r"\w+"), status=one_of("True", "False", "Unknown"))),
)
JOB_SPEC = needs(
    "template",
    template=needs("spec", metadata=needs(labels=mapped(text())), spec=POD),
    completionMode=one_of("Indexed", "NonIndexed"),
    completions=number(0),
    parallelism=number(0),
    backoffLimit=number(0),
    podFailurePolicy=needs("rules", rules=listed(POD_FAILURE_RULE, 1)),
    activeDeadlineSeconds=number(1),
    ttlSecondsAfterFinished=number(0),
)
JOB = needs(
    *("apiVersion", "kind", "metadata", "spec"),
    apiVersion=one_of("batch/v1"),
    kind=one_of("Job"),
    metadata=METADATA,
    spec=JOB_SPEC,
)
SERVICE = needs(
    *("apiVersion", "kind", "metadata", "spec"),
    apiVersion=one_of("v1"),
    kind=one_of("Service"),
    metadata=SERVICE_METADATA,
    spec=needs(
        clusterIP=text(r"None|[0-9a-f.:]+"),
        publishNotReadyAddresses=flag,
        selector=mapped(text(r"[a-zA-Z0-9]([-_.a-zA-Z0-9]*[a-zA-Z0-9])?", 63)),
        ports=listed(needs("port", name=LABEL_1123, port=number(1, 65535), targetPort=number(1, 65535))),
    ),
)
JOBSET = needs(
    *("apiVersion", "kind", "metadata", "spec"),
    apiVersion=one_of("jobset.x-k8s.io/v1alpha2"),
    kind=one_of("JobSet"),
    metadata=METADATA,
    spec=needs(
        replicatedJobs=listed(
            needs("name", "template", name=LABEL_1123, replicas=number(0), template=needs("spec", spec=JOB_SPEC)), 1
        ),
        network=needs(enableDNSHostnames=flag, subdomain=LABEL_1123, publishNotReadyAddresses=flag),
        failurePolicy=needs(
            maxRestarts=number(0),
            restartStrategy=one_of("Recreate", "BlockingRecreate"),
            rules=listed(
                needs(
                    *("name", "action"),
                    name=text(r"[A-Za-z]([A-Za-z0-9_,:-]*[A-Za-z0-9_])?", 128),
                    action=one_of("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"),
                    onJobFailureReasons=listed(
                        one_of(
                            *("BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes"),
                            *("MaxFailedIndexesExceeded", "PodFailurePolicy"),
                        )
                    ),
                    targetReplicatedJobs=listed(LABEL_1123),
                )
            ),
        ),
        successPolicy=needs("operator", operator=one_of("All", "Any"), targetReplicatedJobs=listed(LABEL_1123)),
        suspend=flag,
        ttlSecondsAfterFinished=number(0),
    ),
)
SKY_TASK = needs(
    name=text(),
    workdir=text(),
    num_nodes=number(1),
    resources=needs(
        accelerators=text(r"[A-Za-z0-9-]+(:[0-9.]+)?"),
        infra=text(),
        cpus=text(),
        memory=text(),
        use_spot=flag,
        disk_size=number(1),
        image_id=text(),
    ),
    envs=mapped(text()),
    file_mounts=mapped(text()),
    setup=text(),
    run=text(),
)


def faults(schema: Check, document: Any) -> list[str]:
    """Everything that is wrong with a document; empty where it would be accepted."""
    return schema(document, "manifest")
