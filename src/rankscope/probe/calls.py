"""Records every call into torch.distributed on the page: what, in which group, from which line, since when."""

from __future__ import annotations

import _thread
import functools
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

from rankscope.probe.exchanges import EXCHANGES, Exchanges
from rankscope.probe.fingerprints import Fingerprints
from rankscope.probe.page import Page
from rankscope.probe.shortcuts import quick
from rankscope.probe.sites import OWN_CODE, Sites

F = TypeVar("F", bound=Callable[..., Any])
Reader = Callable[[tuple[Any, ...], dict[str, Any]], tuple[str, int, Any, str]]
"""Takes a call's arguments; gives group name, peer, first tensor and a note."""
Token = tuple[int, int]
"""Number of the call, thread."""
OnError = Callable[[Exception, tuple[Any, ...], dict[str, Any]], None]

DEFAULT_GROUP = "0"
_NOTHING_READ: tuple[str, int, Any, str] = ("", -1, None, "")

POINT_TO_POINT = frozenset(
    {"send", "recv", "isend", "irecv", "send_object_list", "recv_object_list", "batch_isend_irecv"}
)
SET_UP = frozenset(
    {
        "init_process_group",
        "new_group",
        "split_group",
        "shrink_group",
        "destroy_process_group",
        "_store_based_barrier",
    }
)
BY_PLACE = frozenset({"all_reduce", "reduce"})
"""Elements are put together by their place in memory, whatever the shape."""
_MOST_LAYOUTS = 1000
WAITS = frozenset({"Work.wait", "Store.wait", "Store.get"})
BACKWARD = "backward"
"""Computes; only a part of it waits for others."""


class Depths:
    """In how many recorded calls each thread is. Where there are shortcuts, theirs stands for it."""

    def __init__(self) -> None:
        self._depths: dict[int, int] = {}

    def deeper(self) -> int:
        """Into one more: in how many this thread was before."""
        # The number of the system: Python's own name of a thread is given to the next one after its end.
        thread = _thread.get_native_id()
        depth = self._depths.get(thread, 0)
        self._depths[thread] = depth + 1
        return depth

    def shallower(self) -> int:
        """Out of one: in how many this thread still is."""
        thread = _thread.get_native_id()
        # A process that was made by fork within a call leaves what it never entered under its own number.
        depth = self._depths[thread] = max(0, self._depths.get(thread, 0) - 1)
        return depth


class CallRecorder:
    """Wraps functions so that entering and leaving them is written to the page."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._sites = Sites(page)
        self.depths: Depths = Depths() if quick is None else quick.Depths()
        self._sequence: dict[str, int] = {}
        self._dtypes: dict[Any, int] = {}
        self._dtype_names: dict[int, str] = {}
        self._layouts: dict[tuple[str, tuple[int, ...]], str] = {}
        self._fingerprints = Fingerprints(page, self._dtype_names)
        self._exchanges = Exchanges(page)
        self.told_before: dict[str, tuple[Callable[[tuple[Any, ...], dict[str, Any]], None], ...]] = {}
        self.told_after: dict[str, tuple[Callable[[bool], None], ...]] = {}
        self.backward_heard = False
        """Somebody listens to backward passes."""
        self.on_left: Callable[[str, float, int], None] | None = None
        """Told of each outermost call that was left, other than backward passes, and of those that a backward pass
        makes, as FSDP's do: name, seconds, thread."""
        self._in_call: set[int] = set()
        """Threads that are inside of a call other than a backward pass."""
        self.enabled = True

    def before(self, op: str, first: Callable[[tuple[Any, ...], dict[str, Any]], None]) -> None:
        """Call `first` with the arguments whenever `op` is about to be called."""
        self.told_before[op] = (*self.told_before.get(op, ()), first)
        self._listeners_changed()

    def after(self, op: str, then: Callable[[bool], None]) -> None:
        """Call `then` whenever `op` has been called, with whether it failed."""
        self.told_after[op] = (*self.told_after.get(op, ()), then)
        self._listeners_changed()

    def forget(self, op: str, *listeners: Callable[..., None]) -> None:
        """These are called no more; others that listen to `op` are."""
        self.told_before[op] = tuple(each for each in self.told_before.get(op, ()) if each not in listeners)
        self.told_after[op] = tuple(each for each in self.told_after.get(op, ()) if each not in listeners)
        self._listeners_changed()

    def _listeners_changed(self) -> None:
        self.backward_heard = bool(self.told_before.get(BACKWARD) or self.told_after.get(BACKWARD))

    def sites(self) -> Sites:
        return self._sites

    def group_made(self, name: str) -> None:
        """A process group has this name from now on."""
        self._fingerprints.group_made(name)

    def begin(self, op: str, read: Reader | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Token | None:
        """Records the call as entered; None where that failed, which must never fail the call itself."""
        try:
            for first in self.told_before.get(op, ()):
                first(args, kwargs)
            group, peer, tensor, note = read(args, kwargs) if read is not None else _NOTHING_READ
            thread = _thread.get_native_id()
            depth = self.depths.deeper()
            if depth == 0 and op is not BACKWARD:
                self._in_call.add(thread)
            seq = 0
            if depth == 0 and group and op not in POINT_TO_POINT:
                seq = self._sequence.get(group, 0) + 1
                self._sequence[group] = seq
            numel, dtype = -1, 0
            if tensor is not None:
                numel, dtype = self._describe(tensor)
                if note and op in BY_PLACE and getattr(tensor, "ndim", 0) > 1:
                    note = self._laid_out(note, tensor)
            page = self._page
            known = page.texts
            site = self._sites.number(sys._getframe(1))
            if seq:
                self._fingerprints.note(group, seq, op, numel, dtype, peer, site, note)
                if op in EXCHANGES:
                    self._exchanges.note(group, seq, op, args, kwargs)
            index = page.enter(
                known.get(op) or page.text(op),
                (known.get(group) or page.text(group)) if group else 0,
                seq,
                site,
                thread,
                depth,
                peer,
                numel,
                dtype,
                page.text(note) if note else 0,
            )
            return index, thread
        except Exception as error:  # noqa: BLE001  noted on the page and shown in the report
            self.give_up(op, error)
            return None

    def end(self, op: str, token: Token | None, failed: bool) -> None:
        """Records the call as left."""
        if token is None:
            return
        try:
            index, thread = token
            depth = self.depths.shallower()
            seconds = self._page.leave(index, failed)
            inside = depth == 1 and thread not in self._in_call
            if depth == 0:
                self._in_call.discard(thread)
            if (inside or (depth == 0 and op is not BACKWARD)) and self.on_left is not None:
                self.on_left(op, seconds, thread)
            for then in self.told_after.get(op, ()):
                then(failed)
        except Exception as error:  # noqa: BLE001  noted on the page and shown in the report
            self.give_up(op, error)

    def mark(self, op: str, note: str) -> None:
        """Records a moment: whatever the program calls next does not lie within it."""
        if self.enabled:
            self.end(op, self.begin(op, lambda _args, _kwargs: ("", -1, None, note), (), {}), False)

    def give_up(self, op: str, error: Exception) -> None:
        self.enabled = False
        self._page.error(f"recording of {op} failed, calls are no longer recorded: {type(error).__name__}: {error}")

    def _describe(self, tensor: Any) -> tuple[int, int]:
        if isinstance(tensor, (list, tuple)) and tensor:
            tensor = tensor[0]
        dtype = getattr(tensor, "dtype", None)
        if dtype is None:
            return -1, 0
        number = self._dtypes.get(dtype)
        if number is None:
            name = str(dtype).removeprefix("torch.")
            number = self._dtypes[dtype] = self._page.text(name)
            self._dtype_names[number] = name
        return tensor.numel(), number

    def _laid_out(self, reduces: str, tensor: Any) -> str:
        """`SUM 64x32`: with the shape, where elements would lie elsewhere if it were the other way round."""
        shape = tuple(tensor.shape)
        if not tensor.is_contiguous():
            return reduces
        known = self._layouts.get((reduces, shape))
        if known is None:
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()
            lengths = [length for length in shape if length != 1]
            known = f"{reduces} {'x'.join(map(str, lengths))}" if len(set(lengths)) > 1 else reduces
            self._layouts[reduces, shape] = known
        return known

    def wrap(self, function: F, *, like: CodeType | None = None, on_error: OnError | None = None) -> F:
        """`function`, recorded. `like` is the code of torch's own wrapper that this one stands for: tracebacks and
        the compiler then see torch's file and line, as without us."""
        op = function.__name__
        read = _argument_reader(function)

        def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Token | None:
            return self.begin(op, read, args, kwargs) if self.enabled else None

        def failed(token: Token | None, error: BaseException, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.end(op, token, True)
            if on_error is not None and isinstance(error, Exception):
                on_error(error, args, kwargs)

        def end(token: Token | None) -> None:
            self.end(op, token, False)

        return build_wrapper(function, begin, failed, end, like)  # type: ignore[no-any-return]

    def wrap_method(self, owner: type, name: str, note: Callable[..., str]) -> None:
        """Replaces `owner.name`, a method of a C++ class, by a recorded one."""
        setattr(owner, name, self.wrap_plain(getattr(owner, name), f"{owner.__name__}.{name}", note))

    def wrap_plain(self, function: Callable[..., Any], op: str, note: Callable[..., str] | None = None) -> Any:
        """A function whose arguments tell nothing of groups and peers, recorded under the name `op`."""

        def read_note(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, int, Any, str]:
            return "", -1, None, "" if note is None else note(*args, **kwargs)

        read = read_note if note is not None else None

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            token = self.begin(op, read, args, kwargs) if self.enabled else None
            try:
                return function(*args, **kwargs)
            except BaseException:
                self.end(op, token, True)
                token = None
                raise
            finally:
                self.end(op, token, False)

        return wrapper


# The call stands at the same columns as in torch's wrapper, so that the carets of a traceback agree too.
_WRAPPER = """\
def make(func, begin, failed, end, wraps):
    @wraps(func)
    def wrapper(*args, **kwargs):
        token = begin(args, kwargs)
        try:
            return func(*args, **kwargs)
        except BaseException as error:
            token = failed(token, error, args, kwargs)
            raise
        finally:
            end(token)
    return wrapper
"""
_CALL_LINE = 6


def build_wrapper(function: Any, begin: Any, failed: Any, end: Any, like: CodeType | None = None) -> Any:
    """`function` between `begin` and `end`, which is given what `begin` returned, or `failed` where it raised."""
    file, line = OWN_CODE, _CALL_LINE  # no file: tracebacks would show a line of it that has nothing to do with it
    if like is not None:
        # A decorator, the def, `try:` and the call: torch's wrapper has been these four lines since it exists.
        file, line = like.co_filename, max(_CALL_LINE, like.co_firstlineno + 3)
    scope: dict[str, Any] = {}
    exec(compile("\n" * (line - _CALL_LINE) + _WRAPPER, file, "exec"), scope)
    return scope["make"](function, begin, failed, end, functools.wraps)


def _global_rank(group: Any, within: Any) -> int:
    """The rank in the world of a member that was named by its number in the group; -1 where that is not known."""
    if not isinstance(within, int):
        return -1
    if group is None:
        return within
    from torch.distributed.distributed_c10d import get_global_rank

    try:
        return get_global_rank(group, within)
    except ValueError:
        return -1


def _argument_reader(function: Callable[..., Any]) -> Reader:
    """Reads group, peer and first tensor out of a call, by the function's own parameter names."""
    inner: Any = function
    while hasattr(inner, "__wrapped__"):
        inner = inner.__wrapped__
    code: CodeType = inner.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    grouped = "group" in names and function.__name__ not in SET_UP
    group_at = names.index("group") if grouped else -1
    peer_name = next((name for name in ("dst", "src") if name in names), "")
    peer_at = names.index(peer_name) if peer_name else -1
    reduces_at = names.index("op") if "op" in names else -1
    within_name = f"group_{peer_name}"
    within_at = names.index(within_name) if within_name in names else len(names)

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, int, Any, str]:
        group_name, group = "", None
        if grouped:
            group = args[group_at] if len(args) > group_at else kwargs.get("group")
            # A rank that is no member gets an object without a name, and the call returns at once.
            group_name = DEFAULT_GROUP if group is None else getattr(group, "group_name", "")
        peer = -1
        if peer_at >= 0:
            value = args[peer_at] if len(args) > peer_at else kwargs.get(peer_name)
            if isinstance(value, int):
                peer = value
            elif within_name in kwargs or len(args) > within_at:
                peer = _global_rank(group, args[within_at] if len(args) > within_at else kwargs[within_name])
        note = ""
        if reduces_at >= 0:
            reduces = args[reduces_at] if len(args) > reduces_at else kwargs.get("op")
            # One that carries a factor has no name, and says nothing.
            note = "SUM" if reduces is None else getattr(reduces, "name", "")
        return group_name, peer, args[0] if args else next(iter(kwargs.values()), None), note

    return read
