"""What to change where a rank stands, in words."""

from __future__ import annotations

from rankscope.report.words.advice import ADVICE

ADVICE.update(
    {
        # A process that cannot run.
        "continue-process": "let it run again: kill -CONT {pid}",
        "who-stops-it": "find who stops it: a debugger, Ctrl-Z, a scheduler that suspends jobs, `kill -STOP`",
        "look-at-device": "look at the device or file system behind it: `dmesg` for I/O errors, `df` for one that does "
        "not answer",
        "cannot-be-killed": "such a process cannot be killed until the kernel's call returns",
        "release-interpreter-lock": "release the interpreter lock around the blocking call: ctypes.CDLL instead of "
        "PyDLL, `Py_BEGIN_ALLOW_THREADS`, `py::call_guard<py::gil_scoped_release>`, `with nogil:`",
        "native-time-limit": "give the native call a time limit, or make it in a process of its own",
        # Something outside.
        "request-timeout": "give the request a timeout, so that a service that does not answer raises an error",
        "send-in-background": "send from a background thread, or only where nobody waits for this rank",
        "other-end-of-pipe": "look at the process at the other end of the pipe",
        "read-time-limit": "read with a time limit",
        "file-system-answers": "see whether the file system answers: `df`, `ls`, the server's state, `dmesg`",
        "copy-to-local-disk": "copy the data to a local disk before the job",
        "polling-time-limit": "see what the sleep waits for: a loop that polls needs a time limit and a word about it",
        "same-pause": "let all ranks take the same pause, or none",
        "who-makes-it-true": "see who should make `{test}` change, and why it does not happen",
        "open-pipe": "opening a named pipe waits for its other end: start that first, or open with O_NONBLOCK",
        "try-ls": "or the file system does not answer: try `ls` on it",
        "look-at-store": "see what the process on that port, usually rank 0, does",
        "no-keyboard": "a rank has no keyboard: remove input(), breakpoint() and pdb",
        "what-is-this-path": "see whether {path} is a pipe or a device, or on a network file system that does not "
        "answer",
        "await-time-limit": "give what is awaited a time limit: `asyncio.wait_for(..., timeout=...)`, `async with "
        "asyncio.timeout(...)`",
        "say-pending-tasks": "print `asyncio.all_tasks()` when the limit passes: it names the coroutine that waits",
        "service-answers": "see whether the service behind {label} answers, and give the call a time limit",
        # Children and queues.
        "child-timeout": "give the wait a timeout (`subprocess.run(..., timeout=...)`) and end the child when it "
        "passes",
        "full-pipe": "read the child's output while it runs: a full pipe stops it (use communicate())",
        "lost-task": "look for a worker that was killed (memory: `dmesg`): multiprocessing.Pool starts another one, "
        "and the task is lost; concurrent.futures raises BrokenProcessPool instead",
        "empty-queue": "take everything out of the queue before the other side joins or ends: what nobody reads blocks "
        "the one that put it there",
        "fill-queue": "see whether the process that should put something is alive; let it put a last word when it ends",
        "queue-time-limit": "put and get with `timeout=...`, and say what is missing when it passes",
        # Locks.
        "mend-holder": "end or mend the holder, process {pid}",
        "find-holder": "find the holder: `lslocks`, or `fuser -v {path}`",
        "lock-without-waiting": "take the lock without waiting (LOCK_NB) or with a time limit, and say what is waited "
        "for",
        "local-lock": "on a network file system locks may not work at all: keep the lock on a local disk",
        "left-lock-file": "if no process builds or downloads there now, {path} was left by one that was killed: delete "
        "it (for torch extensions, the `lock` file under ~/.cache/torch_extensions)",
        "lock-time-limit": "give the lock a time limit",
        "one-writer": "let one rank write to the database, or give each its own file; keep transactions short",
        "database-time-limit": "connect with a short `timeout=...`: sqlite3 then raises `database is locked`",
        "hand-over-exception": "let the thread hand its exception over to whoever waits for it: put it into the queue, "
        "or use a future",
        "release-lock": "see that every path out of the locked part releases the lock (`with lock:`), and that all "
        "threads take locks in one order",
        "lock-once": "do not take the lock twice: call a version of {function} that expects it to be held, or make it "
        "a threading.RLock()",
        "no-lock-across": "do not hold a lock across a collective, or across fork: the child inherits it without its "
        "holder",
        "wait-time-limit": "wait with a time limit",
        "logging-handler": "a log handler holds its lock while it writes: see where it writes to (a pipe, a socket, a "
        "network file system), or log through a QueueHandler",
        "full-queue": "see whether the thread that empties the queue is alive; put with a timeout",
        "empty-thread-queue": "see whether the thread that fills the queue is alive; let it put a last word when it "
        "ends",
        "future-time-limit": "give `result(timeout=...)` a limit, and see whether a worker of the executor is free: a "
        "task that waits for another one of the same executor waits for itself",
        # Threads.
        "thread-time-limit": "give what the thread does a time limit",
        "join-time-limit": "join with a timeout, and say which thread is still running",
        "end-the-thread": "end the thread before the program ends: set an event that its loop looks at, then join it",
        "daemon-thread": "or start it with daemon=True, so that it does not keep the process",
        "end-the-child": "tell the child to end and join it before the program ends, or terminate() it",
        "daemon-child": "or start it with daemon=True, so that it ends with its parent",
        "cancel-join-thread": "or call cancel_join_thread() on the queue, if what it still holds may be lost",
        # GPU.
        "take-gpu-out": "take this GPU out (drain the node, nvidia-smi -q, reset or reboot), and start the job without "
        "it",
        "look-xid-up": "look the Xid number up in NVIDIA's list; one that comes again needs the vendor",
        "name-the-kernel": "run again with CUDA_LAUNCH_BLOCKING=1 or under compute-sanitizer: the kernel that does it "
        "is then named",
        "wrong-index": "a wrong index (labels beyond the classes, token ids beyond the vocabulary) is the usual reason",
        # Data loader.
        "worker-time-limit": "make the worker's call end: give it a time limit",
        "loader-timeout": "DataLoader(timeout=...) turns such a wait into an error",
        "fork-safely": "do not start threads, open locks or use OpenMP, OpenCV or tokenizers before the workers are "
        "forked: cv2.setNumThreads(0), TOKENIZERS_PARALLELISM=false, or multiprocessing_context='spawn'",
        "dead-worker": "look for a worker that died: memory (`dmesg`), /dev/shm, a crash in native code",
        "lost-hand-over": "a hand-over can be lost when a worker is killed while it holds the queue: restart the job",
        # Work.
        "compile-first": "compile before the first collective with a time limit, or share the compile cache between "
        "ranks",
        "timeout-for-first-steps": "raise the process group's timeout for the first steps",
        "save-together": "save with all ranks (torch.distributed.checkpoint), or asynchronously",
        "timeout-above": "raise the process group's timeout above the time that {what} takes",
        "prepare-before": "prepare the data before the job, so that ranks only read it",
        "local-environment": "imports from a slow or shared file system: put the environment on a local disk",
        "let-it-work": "let it work: it is alive. Raise the process group's timeout if this phase is expected to be "
        "long",
        "split-the-work": "split the work among the ranks, or do it before the first collective",
        "bound-the-loop": "see why the loop at line {line} does not end; give it a bound, and raise when it is passed",
        "look-again": "look again in a minute (`py-spy dump`): variables and lines that do not change are an endless "
        "loop",
        # Stalled.
        "time-limit-there": "look at what this line calls, and give it a time limit",
        "native-stacks": "native stacks say more: py-spy dump --native --pid {pid}",
    }
)
