"""Notices the first loss, gradient or parameter that is not finite, without waiting for a GPU and at next to no cost.

Every step: the loss that is handed to backward(), and one gradient near the model's input, or what shows of it, taken
before it is reduced with other ranks. Whatever goes wrong deeper in a backward pass flows on to there. All gradients
are looked at in samples, as a fixed share of the time allows. Only when one of these is bad the rest is searched:
inputs, parameters, and every gradient by name; where parameters turn out to be bad, also the inputs of the step before,
which are kept for that. What an optimizer never applies (a scaler that skips the step, a program that does) is no
incident.
"""

from __future__ import annotations

import math
import sys
import time
import weakref
from collections.abc import Callable
from types import CodeType, FrameType, ModuleType
from typing import Any

from rankscope.probe import parameters, replicas
from rankscope.probe.arrivals import Arrivals, accumulator_of
from rankscope.probe.batches import Batches
from rankscope.probe.beat import has_shortcuts
from rankscope.probe.device_clock import DeviceClock
from rankscope.probe.late_values import LateValues
from rankscope.probe.page import COUNTERS_WORD, Page
from rankscope.probe.phases import PhaseClock
from rankscope.probe.replicas import CHECKSUM_EVERY, Replica
from rankscope.probe.shortcuts import quick
from rankscope.probe.sites import is_user_file, user_frames
from rankscope.probe.suspicion import About, Frames, LateChecksum, Suspicion, of_inputs

_SHARE = 0.0003
"""Of the time, for looking at all gradients."""
_GPU_PAUSE_S = 2.0
_MOST_SEARCHES = 8
"""A program may live with losses that are not finite; searching each time would slow it down."""

_STEPS_WORD = COUNTERS_WORD + 1
_LATE_ORDER = ("parameter", "loss", "gradient", "gradients")


class FiniteChecks:
    """The hooks; each keeps its own faults to itself."""

    def __init__(self, page: Page, clock: PhaseClock) -> None:
        self._page = page
        self._clock = clock
        self._beat = clock.beat
        self._torch: Any = None
        self.tensor: Any = None
        self.looking = False
        """From the import of torch until a note was left (what follows is its consequence) or a hook failed."""
        self._late: LateValues | None = None
        self.batches = Batches(self._beat)
        self.suspicion: Suspicion | None = None
        self._searches = 0
        self.optimizers: dict[int, weakref.ref[Any]] = {}
        """By their identity, those that made a step."""
        self._sentinel: weakref.ref[Any] | None = None
        self._arrivals: Arrivals | None = None
        """Of a model without replicas, until a backward pass has told which gradient comes last."""
        self.replicas: list[Replica] = []
        self.scattered = False
        """Gradients are a rank's own only before they are reduced, where they are looked at by somebody else."""
        self._step_frames: Frames = ()
        self._sample_at = 0.0
        self._backwards = 0
        self._frames: Frames = ()
        self._places: dict[tuple[CodeType, int], Frames] = {}

    def start(self, torch: ModuleType) -> None:
        self._torch = torch
        self.looking = True
        self.tensor = torch.Tensor
        self.batches.torch = torch
        self._beat.watch(torch)
        self._modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
        self._transformed: Callable[[], bool] = torch._C._are_functorch_transforms_active

    # What the hooks call.

    def fed(self, label: str, value: Any) -> None:
        """A batch came from a loader, or a model was called with these."""
        self.guarded(self.batches.note, self._page.steps, label, value)

    def model_fed(self, inputs: tuple[Any, ...]) -> None:
        """A model is about to be called with these, in a step that is watched in full."""
        self.guarded(self._note_inputs, inputs)

    def _note_inputs(self, inputs: tuple[Any, ...]) -> None:
        self.batches.note(self._page.steps, "input", inputs)
        self._beat.hold(self.batches.passes_to_keep(inputs) if self._beat.deferring else 0)

    def backward_begins(self, args: tuple[Any, ...]) -> None:
        if not self.looking:
            return
        self.guarded(self._look_at_losses, args)

    def backward_done(self) -> None:
        """After each pass without replicas, and where no own gradient came by since the loss was handed over."""
        self.backward_failed()
        if self.looking and not self.replicas and not self.scattered and self._sentinel is not None:
            self.guarded(self._look_at_own_gradient)

    @property
    def step(self) -> int:
        return self._page.steps

    def backward_failed(self) -> None:
        losses, self._beat.losses = self._beat.losses, None
        if losses is not None:
            self.guarded(self._look_at_losses, losses)

    def step_begins(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        # Of most fast steps of replicas on a CPU nothing is left to see: their own gradients were looked at.
        if self._beat.full:
            self.guarded(self._look_before_step, optimizer)

    def may_pass(self, optimizer: Any) -> bool:
        """Whether the next step of the optimizer needs to be looked at for no more than loss and own gradient."""
        return (
            self.looking
            and self._beat.deferring
            and self.suspicion is None
            and self._late is None
            and id(optimizer) in self.optimizers
        )

    def last_look(self) -> None:
        """The program ends its process group: what its last steps did to the parameters may not have been seen yet. A
        GPU is not waited for."""
        self.guarded(self._look_at_parameters)

    def replicated(self, module: Any) -> None:
        """A DistributedDataParallel was made."""
        self.guarded(self._add_replica, module)

    def guarded(self, action: Callable[..., None], *args: Any) -> None:
        if not self.looking:
            return
        try:
            # A mode of the program would see what we compute; inside of a transformation there are no values.
            if not (self._modes() or self._transformed()):
                action(*args)
        except Exception as error:  # noqa: BLE001  noted on the page and shown in the report
            self._give_up(error)

    def _end(self) -> None:
        self.looking = False
        self._beat.hold(0)

    def _give_up(self, error: Exception) -> None:
        self._end()
        self._page.error(f"watching for non-finite values ended: {type(error).__name__}: {error}")

    # Losses.

    def _look_at_losses(self, args: tuple[Any, ...]) -> None:
        losses = args[0] if args else ()
        self._backwards += 1
        if self.suspicion is not None and self._forgotten():
            self.suspicion = None
        for loss in losses if isinstance(losses, (list, tuple)) else (losses,):
            if not loss.is_floating_point() or loss.numel() != 1:
                continue
            if loss.is_cpu:
                value = loss.item()
                if not math.isfinite(value):
                    self._suspect_loss(value)
            elif loss.is_cuda and not self._torch.cuda.is_current_stream_capturing():
                self._frames = self._known_frames(sys._getframe(1))
                self._send(parameters.plain(loss), About("loss", self._page.steps, self._backwards, self._frames))
                sentinel = self._sentinel() if self._sentinel is not None else None
                if sentinel is not None and sentinel.is_cuda:
                    self._send_sum(sentinel, About("parameter", self._page.steps, self._backwards, self._step_frames))

    def _forgotten(self) -> bool:
        """The gradients that a suspicion was about have been thrown away."""
        sentinel = self._sentinel() if self._sentinel is not None else None
        if sentinel is None or sentinel.is_cuda:
            return sentinel is not None
        # Of several models any may be the one that it was about, and each has an optimizer that is yet to step.
        sentinels = parameters.alive(each.sentinel for each in self.replicas if each.sentinel is not None) or [sentinel]
        return not any(each.grad is not None and self._looks_bad(each.grad) for each in sentinels)

    def _known_frames(self, frame: FrameType) -> Frames:
        """The user's frames, put together once for each place."""
        inner: FrameType | None = frame
        while inner is not None and not is_user_file(inner.f_code.co_filename):
            inner = inner.f_back
        if inner is None:
            return ()
        key = (inner.f_code, inner.f_lineno)
        if key not in self._places:
            self._places[key] = tuple(user_frames(inner))
        return self._places[key]

    def _suspect_loss(self, value: float) -> None:
        self._page.bad_loss()
        self._beat.full = True
        if self.suspicion is not None or self._searches >= _MOST_SEARCHES:
            return
        self._searches += 1
        step, word = self._page.steps, parameters.word(value)
        frames = tuple(user_frames(sys._getframe(1)))
        names, count, bad = self._bad_parameters()
        if count:
            self._note_bad_step(step, bad, names, count, frames)
            return
        self.suspicion = self._of_input(step, frames) or Suspicion("loss", step, word, frames=frames)

    def _of_input(self, step: int, frames: Frames) -> Suspicion | None:
        return of_inputs(self.batches.bad(step, self._page.steps), frames)

    # Gradients.

    def _look_at_own_gradient(self) -> None:
        """After a backward pass that nobody reduces: the gradients are this rank's own."""
        sentinel = self._sentinel() if self._sentinel is not None else None
        gradient = sentinel.grad if sentinel is not None else None
        if gradient is not None:
            self.look_at_gradient(gradient)

    def look_at_gradient(self, gradient: Any) -> None:
        if self.suspicion is not None:
            return
        if gradient.is_cuda:
            if not self._torch.cuda.is_current_stream_capturing():
                self._send_sum(gradient, About("gradient", self._page.steps, self._backwards, self._frames))
        elif self._looks_bad(gradient):
            value = parameters.first_bad_value(self._torch, gradient)
            if value is not None:
                # On the CPU the engine runs in the thread that called it.
                frames = tuple(user_frames(sys._getframe(1)))
                self._suspect_gradient(value, frames)
                self._beat.full = True

    def _suspect_gradient(self, value: str, frames: Frames) -> None:
        step, found = self._page.steps, None
        if self._searches < _MOST_SEARCHES:
            self._searches += 1
            found = self._of_input(step, frames)
        self.suspicion = found or Suspicion("gradient", step, value, frames=frames)

    def _look_before_step(self, optimizer: Any) -> None:
        if id(optimizer) not in self.optimizers:
            self.optimizers[id(optimizer)] = weakref.ref(optimizer)
            self._step_frames = tuple(user_frames(sys._getframe(1)))
            if self._sentinel is None:
                trained = parameters.optimizer_parameters(optimizer)
                sentinel = parameters.sentinel_of(trained)
                self._sentinel = weakref.ref(sentinel) if sentinel is not None else None
                self._arrivals = Arrivals(self._torch, trained) if sentinel is not None else None
        self._choose_by_arrival()
        self._read_late()
        if not self.looking:
            return
        if self._page.steps % CHECKSUM_EVERY == 0 and self._page.steps:
            self._write_checksums()
        if getattr(optimizer, "found_inf", None) is not None:
            return  # a gradient scaler has looked, and the step itself is skipped where it must be
        if self.suspicion is not None or self._sampled_bad(optimizer) or self._applied_bad():
            self._confirm(optimizer)

    def _applied_bad(self) -> bool:
        """Of replicas each looks at its own gradient before the reduction; what that spreads needs no second look."""
        if self.replicas:
            return False
        sentinel = self._sentinel() if self._sentinel is not None else None
        gradient = sentinel.grad if sentinel is not None else None
        return gradient is not None and self._looks_bad(gradient)

    def _looks_bad(self, gradient: Any) -> bool:
        """A glance at a gradient on the CPU: a sum is finite unless a value is not, or the sum overflows."""
        if type(gradient) is not self._torch.Tensor:
            gradient = parameters.plain(gradient)
        if not gradient.is_cpu or gradient.is_sparse:
            return False
        if parameters.has_edges(gradient):
            gradient = parameters.edges(self._torch, gradient)
        return not math.isfinite(gradient.sum().item())

    def _sampled_bad(self, optimizer: Any) -> bool:
        begin = time.perf_counter()
        if begin < self._sample_at:
            return False
        torch = self._torch
        grads = [
            gradient.detach()
            for parameter in parameters.optimizer_parameters(optimizer)
            if (gradient := parameters.plain(parameter.grad)) is not None and parameters.readable(gradient)
        ]
        if not grads or (grads[0].is_cuda and torch.cuda.is_current_stream_capturing()):
            return False
        bad = False
        with torch.no_grad():
            largest = torch.stack([norm.float().to(grads[0].device) for norm in torch._foreach_norm(grads)]).sum()
        if largest.is_cpu:
            bad = not math.isfinite(float(largest))
            if not bad:
                self.batches.went_well(self._page.steps)
        else:
            self._send(largest, About("gradients", self._page.steps, self._backwards, self._step_frames))
        end = time.perf_counter()
        pause = (end - begin) / _SHARE
        self._sample_at = end + (pause if largest.is_cpu else max(pause, _GPU_PAUSE_S))
        return bad

    def _confirm(self, optimizer: Any) -> None:
        """The optimizer is about to apply these gradients."""
        looked_at = [(p, p.grad) for p in parameters.optimizer_parameters(optimizer) if p.grad is not None]
        names, count, value = parameters.bad_names(self._torch, looked_at, self._modules())
        suspicion = self.suspicion
        if count and suspicion is None:
            suspicion = self._of_input(self._page.steps, self._step_frames)
        if count == 0:
            if suspicion is not None and self._page.steps - suspicion.step >= len(self.optimizers) - 1:
                self.suspicion = None  # it never reached an optimizer
            return
        if suspicion is None:
            self._note("gradient", self._page.steps, value, names, count, local=False, frames=self._step_frames)
        else:
            self._note_suspicion(suspicion, names, count)

    # What a GPU tells late.

    def _send(self, number: Any, about: object) -> None:
        if self._late is None:
            self._late = LateValues(self._torch)
            self.batches.keep = True
        self._late.send(number, about)

    def _send_sum(self, tensor: Any, about: About) -> None:
        with self._torch.no_grad():
            self._send(parameters.plain(tensor).detach().sum(dtype=self._torch.float32), about)

    def _read_late(self) -> None:
        bad: list[tuple[float, About]] = []
        for value, about in self._late.arrived() if self._late is not None else ():
            if isinstance(about, LateChecksum):
                self._page.checksum(about.step, value, about.group, about.name)
            elif isinstance(about, About) and not math.isfinite(value):
                bad.append((value, about))
        if not bad:
            return
        if any(about.kind == "loss" for _, about in bad):
            self._page.bad_loss()
        if self._searches >= _MOST_SEARCHES:
            return
        self._searches += 1
        value, first = min(bad, key=lambda each: (each[1].step, _LATE_ORDER.index(each[1].kind)))
        word = parameters.word(value)
        names, count, _ = self._bad_parameters()
        if count and first.kind == "parameter":
            self._note_parameters(first.step, word, names, count, first.frames)
        elif count and first.kind == "gradients":
            self._note("gradient", first.step, word, names, count, local=False, frames=first.frames)
        elif first.kind in ("loss", "gradient"):
            suspicion = self._of_input(first.step, first.frames) or Suspicion(
                first.kind, first.step, word, frames=first.frames
            )
            if count:
                self._note_suspicion(suspicion, names, count)
            elif first.backward == self._backwards:
                # Not applied yet: the gradients of the step that begins now will tell.
                self.suspicion = suspicion

    # Parameters.

    def _modules(self) -> list[Any]:
        return parameters.alive(replica.module for replica in self.replicas)

    def _look_at_parameters(self) -> None:
        optimizers = parameters.alive(self.optimizers.values())
        if not self.looking or not all(p.is_cpu for each in optimizers for p in parameters.optimizer_parameters(each)):
            return
        names, count, value = self._bad_parameters()
        if count:
            self._note_bad_step(self._page.steps, value, names, count, self._step_frames)

    def _bad_parameters(self) -> tuple[list[str], int, str]:
        known: dict[int, Any] = {}
        for optimizer in parameters.alive(self.optimizers.values()):
            known.update((id(each), each) for each in parameters.optimizer_parameters(optimizer))
        for module in self._modules():
            known.update((id(each), each) for each in module.parameters())
        trained = [(each, each) for each in known.values() if each.requires_grad]
        return parameters.bad_names(self._torch, trained, self._modules())

    def _add_replica(self, module: Any) -> None:
        torch, replica = self._torch, Replica(module)
        self._beat.full = True
        self.replicas.append(replica)
        shared = parameters.alive(each for _, each in replica.shared)
        sentinel = parameters.sentinel_of(shared)
        if sentinel is None:
            return
        if sentinel.is_cuda:
            self._clock.device = DeviceClock(torch)
        self._watch_gradient(replica, sentinel)
        replica.arrivals = Arrivals(torch, shared)

    def _watch_gradient(self, replica: Replica, sentinel: Any) -> None:
        """Look at this parameter's gradient from now on, before it is reduced."""
        self._sentinel = replica.sentinel = weakref.ref(sentinel)
        replica.dense = type(sentinel) is self._torch.nn.Parameter and sentinel.is_cpu
        if replica.hook is not None:
            replica.hook.remove()
        accumulator = accumulator_of(self._torch, sentinel)
        replica.hook = accumulator.register_prehook(self._own_gradient_hook(replica))
        self._beat.deferring = all(each.dense for each in self.replicas)

    def _choose_by_arrival(self) -> None:
        """Parameters are declared in any order; a pass has shown which of them are nearest to the input."""
        for replica in self.replicas:
            order = replica.arrivals.last_first() if replica.arrivals is not None else []
            if not order:
                continue
            replica.arrivals = None
            sentinel = parameters.sentinel_of(order)
            if sentinel is not None and (replica.sentinel is None or sentinel is not replica.sentinel()):
                self._watch_gradient(replica, sentinel)
        if self._arrivals is not None and (order := self._arrivals.last_first()):
            self._arrivals = None
            sentinel = parameters.sentinel_of(order)
            self._sentinel = weakref.ref(sentinel) if sentinel is not None else self._sentinel

    def _own_gradient_hook(self, replica: Replica) -> Callable[[tuple[Any, ...]], None]:
        torch, page, clock, beat, modes = self._torch, self._page, self._clock, self._beat, self._modes
        native = has_shortcuts(beat)
        sentinel = replica.sentinel() if replica.sentinel is not None else None
        large, edges = sentinel is not None and parameters.has_edges(sentinel), parameters.edges

        def own_gradient(gradients: tuple[Any, ...]) -> None:
            args, beat.losses = beat.losses, None
            gradient = gradients[0]
            if not beat.full and args is not None:
                # The usual case with no other function of ours called: a small dense gradient on the CPU whose sum is
                # finite, and one loss that is.
                try:
                    losses = args[0]
                    if len(losses) == 1 and not modes():
                        shown = edges(torch, gradient) if large else gradient
                        total = shown.sum().item() + losses[0].item()
                        if total - total == 0.0:  # neither NaN nor infinite
                            if native:
                                beat.pass_over(page.steps)
                            elif beat.inputs:
                                beat.kept.append((page.words[_STEPS_WORD], beat.inputs))
                                beat.inputs = ()
                            return
                    beat.full = True
                except Exception:  # noqa: BLE001  a loss of several values, or stranger: looked at with more care below
                    beat.full = True
            elif beat.full:
                clock.own_gradients_done()
            if page.steps % CHECKSUM_EVERY == 0:
                module = replica.module()
                replica.unsynced = module is not None and not module.require_backward_grad_sync
            if args is not None:
                self.guarded(self._look_at_losses, args)
            if gradient is not None:
                self.guarded(self.look_at_gradient, gradient)
            beat.pass_over(page.steps)

        return quick.own_gradient(beat, own_gradient) if native else own_gradient

    def _write_checksums(self) -> None:
        step = self._page.steps
        for group, name, value in replicas.checksums(self._torch, self.replicas, step):
            if value.is_cpu:
                self._page.checksum(step, float(value), group, name)
            elif not self._torch.cuda.is_current_stream_capturing():
                self._send(value, LateChecksum(step, group, name))

    # Notes.

    def _note_bad_step(self, step: int, value: str, names: list[str], count: int, frames: Frames) -> None:
        """The step before this one spoiled parameters; this rank's own inputs of then tell whether it began here."""
        looked, found = self.batches.bad_before(step, max(1, len(self.optimizers)))
        came = of_inputs(found, frames)
        if came is not None:
            self._note_suspicion(came, names, count, "parameters that were not finite after it")
        detail = "what it was fed in the step before was finite" if looked and came is None else ""
        self._note_parameters(step, value, names, count, self._step_frames if step else frames, detail)

    def _note_parameters(
        self, step: int, value: str, names: list[str], count: int, frames: Frames, detail: str = ""
    ) -> None:
        """What an optimizer keeps of the gradients tells whether they were bad before the parameters were."""
        optimizers = parameters.alive(self.optimizers.values())
        kept = next((name for each in optimizers if (name := parameters.bad_momentum(self._torch, each))), None)
        if kept is None or step == 0:
            self._note("parameter", step, value, names, count, detail=detail, frames=frames)
        else:
            detail = "; ".join(filter(None, (f"the optimizer's {kept} holds it too", detail)))
            self._note("gradient", step - 1, value, names, count, detail=detail, frames=frames)

    def _note_suspicion(
        self, suspicion: Suspicion, names: list[str], count: int, what: str = "gradients that were not finite"
    ) -> None:
        tensors = list(suspicion.tensors) or names
        detail = suspicion.detail
        if suspicion.tensors and names:
            detail += f"; {what}: {', '.join(names[:3])}"
        self._note(
            suspicion.kind,
            suspicion.step,
            suspicion.value,
            tensors,
            len(suspicion.tensors) or count,
            local=True,
            detail=detail,
            frames=suspicion.frames,
        )

    def _note(
        self,
        kind: str,
        step: int,
        value: str,
        names: list[str],
        count: int,
        *,
        local: bool = False,
        detail: str = "",
        frames: Frames,
    ) -> None:
        self._end()
        self._page.non_finite(kind, step, value, names, count, local=local, detail=detail, frames=list(frames))
