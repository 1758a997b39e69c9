"""Known error texts of ranks that failed because of another: closed connections, timeouts, aborts."""

from __future__ import annotations

from rankscope.diagnosis.rules.crashes.known_error import KnownError, entry

_ADDRESS_FIX = ("check-master-address", "choose-interface")

VICTIMS: tuple[KnownError, ...] = (
    entry(
        "collective-timeout",
        r"Watchdog caught collective operation timeout|Timeout at NCCL work"
        r"|failure detected by watchdog at work sequence"
        r"|Received a dump signal due to a collective timeout|Some NCCL operations have failed or timed out"
        r"|we are taking the entire process down|\[NCCL\] Timeout in \w+ operation",
        "victim",
        waited=True,
    ),
    entry(
        "nccl-aborted",
        r"NCCL communicator was aborted|ncclRemoteError|remote process exiting prematurely",
        "victim",
    ),
    entry(
        "local-rank-died",
        r"Connection closed by localRank \d+",
        "victim",
        communication_only=True,
    ),
    entry(
        "monitored-barrier",
        r"failed to pass monitoredBarrier|successfully reached monitoredBarrier|timed out in monitoredBarrier"
        r"|No ranks successfully processed in monitoredBarrier",
        "victim",
        waited=True,
    ),
    entry(
        "name-not-resolved",
        r"(?:gai error|Name or service not known|Temporary failure in name resolution)",
        "culprit",
        "address-unreachable",
        *_ADDRESS_FIX,
        reference="pytorch/pytorch#121807",
        communication_only=True,
    ),
    entry(
        "master-does-not-answer",
        r"client socket has timed out after|client socket has failed to connect|Call to connect (?:timeout|failed)",
        "neutral",
        "address-unreachable",
        *_ADDRESS_FIX,
        reference="pytorch/pytorch#121807",
    ),
    entry(
        "connection-closed",
        r"Connection closed by (?:remote )?peer|Connection reset by peer|Broken pipe|Connection was likely closed"
        r"|Failed to (?:recv|send), (?:got|sent) 0 bytes|recvValue failed|sendValue failed"
        r"|Software caused connection abort"
        r"|[Cc]onnection closed by",
        "victim",
        communication_only=True,
    ),
    entry(
        "peer-timeout",
        r"Timed out waiting \d+ ?ms for (?:recv|send) operation|Timed out waiting \d+ms",
        "victim",
        waited=True,
    ),
    entry(
        "pair-closed",
        r"Application timeout caused pair closure",
        "victim",
    ),
    entry(
        "store-timeout",
        r"got error: Socket Timeout|Timeout waiting for key|wait timeout after \d+ ?ms"
        r"|store based barrier.*[Tt]imed out"
        r"|[Tt]imed out initializing process group in store based barrier|should dump\" flag on TCPStore",
        "victim",
        waited=True,
    ),
    entry(
        "socket-timeout",
        r"Socket Timeout",
        "victim",
        communication_only=True,
        waited=True,
    ),
    entry(
        "peers-unreachable",
        r"connectFullMesh failed|Connection refused",
        "culprit",
        "address-unreachable",
        *_ADDRESS_FIX,
        reference="pytorch/pytorch#15592",
        communication_only=True,
    ),
)
