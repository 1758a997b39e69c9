"""`--page`: the job in a browser. Read only, for whoever has the address; it ends with the launcher."""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections import deque

from rankscope.errors import UsageError
from rankscope.held_folders import inside
from rankscope.launch.board import JobGlances, program_name
from rankscope.launch.job import Job
from rankscope.launch.small_server import Answer, SmallServer
from rankscope.mask import mask_text
from rankscope.private_files import write_private
from rankscope.report import live
from rankscope.report.board import Board, Look
from rankscope.report.html import live as page
from rankscope.report.html.page import FILE_NAME
from rankscope.report.metrics import CONTENT_TYPE, metrics
from rankscope.report.plain_text import plain, short_path
from rankscope.report.words.languages import language

ADDRESS_FILE = "page.url"
_FRESH_S = 0.4
"""However many look, the ranks are looked at no more often than that."""
_WATCHED_S = 5.0
"""Somebody looked within that time: the last page is waited for."""
_GRACE_S = 3.0
_OTHERS_S = 1.2
"""Beyond the first that has the last page: every open page asks once a second."""
_MOST_TOLD = 8
_MOST_OUTPUTS = 16
_OUTPUT_LINES = 8
_LINE = 500
_HTML = "text/html; charset=utf-8"


class LivePage:
    """Answers once it is entered. It is left when the run is over: whoever is looking then gets the report."""

    def __init__(self, job: Job, program: str, bind: tuple[str, int]) -> None:
        """`bind`: host and port, 0 for any that is free. Raises UsageError where it cannot listen there."""
        self._job = job
        self._program = program_name(program)
        self._glances = JobGlances(job)
        self._board = Board(self._program, job.lang)
        self._turn = threading.Lock()
        self._look: Look | None = None
        self._looked_at = 0.0
        self._trouble: live.Detected | live.Ending | live.Noticed | None = None
        self._told: deque[tuple[str, str]] = deque(maxlen=_MOST_TOLD)
        self._token = secrets.token_urlsafe(16)
        self._asked_at = 0.0
        self._last: bytes | None = None
        self._last_shown = threading.Event()
        try:
            self._server = SmallServer(bind, self._answered, self._sent)
        except OSError as error:
            host, port = bind
            raise UsageError(f"--page {port}: cannot listen on {host}:{port}: {error.strerror}") from error
        host, port = self._server.address
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{port}/{self._token}/"

    def __enter__(self) -> LivePage:
        live.say(language(self._job.lang).label("page: {address}", address=self.address))
        self._server.start()
        try:
            write_private(self._job.folder / ADDRESS_FILE, f"{self.address}\n".encode())
        except OSError as error:
            self._job.note_problem(f"{ADDRESS_FILE}: {error.strerror}")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tell(self, line: live.Line) -> None:
        """Said on the terminal and here."""
        live.tell(line, self._job.lang)
        self._told.appendleft((time.strftime("%H:%M:%S"), live.words(line, self._job.lang)))
        match line:
            case live.Detected() | live.Ending() | live.Noticed():
                self._trouble = line
            case live.GoesOn():
                self._trouble = None

    def close(self) -> None:
        """Whoever is looking gets the report, within seconds; then nobody listens any more."""
        try:
            self._last = inside(self._job.folder / FILE_NAME).read_bytes()
        except OSError:
            self._last = None  # why there is none, the verdict says
        watched = self._last is not None and time.monotonic() - self._asked_at < _WATCHED_S
        if watched and self._last_shown.wait(_GRACE_S):
            time.sleep(_OTHERS_S)
        self._server.close()
        inside(self._job.folder / ADDRESS_FILE).unlink(missing_ok=True)

    def _answered(self, path: str) -> Answer | None:
        try:
            return self._answer(path)
        except Exception as error:
            self._job.note_problem(f"the live page failed: {type(error).__name__}: {error}")
            raise

    def _answer(self, path: str) -> Answer | None:
        """None: there is no such thing."""
        _, token, *rest = path.split("/", 2)
        if not hmac.compare_digest(token.encode(), self._token.encode()) or not rest:
            return None
        if rest[0] == "metrics":
            return Answer(CONTENT_TYPE, self._metrics().encode())
        if rest[0] not in ("", "board"):
            return None
        self._asked_at = time.monotonic()
        last = self._last
        if last is not None:
            return Answer(_HTML, last) if rest[0] == "" else Answer(_HTML, b"", (("Rankscope-Ended", "1"),))
        view = self._view()
        if rest[0] == "board":
            return Answer(_HTML, page.render_board(view).encode("utf-8", "replace"))
        policy = ("Content-Security-Policy", f"{page.live_policy()}; frame-ancestors 'none'")
        return Answer(_HTML, page.render_live(view).encode("utf-8", "replace"), (policy,))

    def _sent(self, answer: Answer) -> None:
        """All of it has left."""
        if self._last is not None and answer.body is self._last:
            self._last_shown.set()

    def _now(self) -> Look:
        with self._turn:
            now = time.time()
            if self._look is None or not 0 <= now - self._looked_at < _FRESH_S:
                self._look = self._board.look(self._glances.take(), now)
                self._looked_at = now
            return self._look

    def _still(self) -> dict[int, float]:
        now = time.time()
        return {process.rank: max(0.0, now - process.life_at) for process in self._job.living()}

    def _metrics(self) -> str:
        trouble = self._trouble
        return metrics(self._now(), self._still(), trouble.verdict if trouble is not None else None)

    def _view(self) -> page.LiveView:
        look, trouble = self._now(), self._trouble
        verdict = trouble.verdict if trouble is not None else None
        words = language(self._job.lang)
        tags = (words.label(verdict.certainty), verdict.cause or "") if verdict is not None else ()
        return page.LiveView(
            program=self._program,
            folder=short_path(str(self._job.folder)),
            headline=plain(mask_text(verdict.headline)) if verdict is not None else look.head,
            trouble=verdict.outcome.upper() if verdict is not None else "",
            tags=(*filter(None, tags), *((look.head,) if verdict is not None else ())),
            look=look if look.ranks else None,
            still=tuple(self._still().items()),
            told=tuple(self._told),
            outputs=tuple(self._outputs()),
            words=words,
        )

    def _outputs(self) -> list[tuple[int, tuple[str, ...]]]:
        found = []
        for process in self._job.ranks[:_MOST_OUTPUTS]:
            lines = [
                plain(mask_text(line[:_LINE]))
                for stream in ("stdout", "stderr")
                for line in self._job.pump.tail((process.local_rank, stream), _OUTPUT_LINES)
            ]
            if lines:
                found.append((process.rank, tuple(lines)))
        return found
