"""One call of whatever is judged, timed past torch.

On one stream: inputs and outputs become NaN, the GPU is kept busy, the inputs come, what is in L2
goes, an event, the launch, an event, the outputs are copied.  So work of another stream, of a
thread or of a later moment finds NaN or comes too late.
"""

from __future__ import annotations

import ctypes
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile

from fa_tune.core.errors import DriverError
from fa_tune.core.judged import FLIPPED, KEY, NAN, Call, Calls, Case, Contents, Fault
from fa_tune.core.workload import Workload
from fa_tune.gpu.integrity import Stillness
from fa_tune.operations.base import Problem
from fa_tune.operations.torch_side import outputs_of, torch_side_of

if TYPE_CHECKING:  # it loads CuPy, which a CPU does not need
    from fa_tune.gpu.runners import Runner

MEAN = 0.25  # off zero, so that a row that is lost or counted twice shows
BUSY_CYCLES = 2_000_000  # about 1 ms of a spinning kernel: what is enqueued meanwhile is timed
MAX_BUSY_CYCLES = 20_000_000
FLUSH_TIMES = 2  # the size of L2
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Tensors = dict[str, torch.Tensor]


def drawn(case: Case, contents: Contents, device: str) -> Tensors:
    """The inputs of a call."""
    w = Workload.from_key(case.workload)
    found = torch_side_of(w).inputs(
        *(w, case.inputs),
        seed=contents.seed,
        mean=MEAN,
        extra_heads=case.extra_heads,
        device=device,
    )
    values = bits(found["v"])
    if contents.edit == KEY:
        values[:, values.shape[1] // 3] = values[:, -1].clone()
    elif contents.edit == FLIPPED:
        values.copy_(values.flip(1))
    elif contents.edit == NAN:
        found["q"][0, -1, 0] = torch.nan
    return dict(found)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers."""
    return tensor.view(_INTEGERS[tensor.element_size()])


def _poison(tensors: Mapping[str, torch.Tensor]) -> None:
    """Make floating-point tensors NaN; where sequences begin stays, so that nobody reads beyond."""
    for tensor in tensors.values():
        if tensor.is_floating_point():
            bits(tensor).fill_(255 if tensor.element_size() == 1 else -1)


class HostClock:
    """The time between two moments of this process."""

    def __init__(self) -> None:
        self._now, self._times = time.perf_counter, [0.0, 0.0]

    def hold(self) -> None:
        """Nothing to keep busy."""

    def wait(self) -> None:
        """Nothing to wait for."""

    def start(self) -> None:
        """The first moment."""
        self._times[0] = self._now()

    def stop(self) -> None:
        """The second."""
        self._times[1] = self._now()

    def seconds(self) -> float:
        """Between them."""
        return self._times[1] - self._times[0]


class EventClock:
    """The time between two events of the driver on a stream that it makes torch's current one."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._stream, self._set = torch.cuda.Stream(), torch.cuda.set_stream
        self._handle = ctypes.c_void_p(self._stream.cuda_stream)
        self._sleep, self._busy = torch.cuda._sleep, [BUSY_CYCLES]
        self._set(self._stream)
        l2 = torch.cuda.get_device_properties().L2_cache_size
        self._flushed = torch.empty(FLUSH_TIMES * l2, dtype=torch.uint8, device="cuda")
        self._events = [ctypes.c_void_p() for _ in range(2)]
        for event in self._events:
            self._do("cuEventCreate", ctypes.byref(event), 0)

    def hold(self) -> None:
        """Keep the GPU busy while what follows is enqueued."""
        self._set(self._stream)
        self._sleep(self._busy[0])

    def wait(self) -> None:
        """Until everything that is enqueued is done."""
        self._do("cuStreamSynchronize", self._handle)

    def start(self) -> None:
        """Empty L2; the first event."""
        self._flushed.zero_()
        self._do("cuEventRecord", self._events[0], self._handle)

    def stop(self) -> None:
        """The second event.  If the GPU was not kept busy until here, it is for longer from now
        on."""
        self._do("cuEventRecord", self._events[1], self._handle)
        self._set(self._stream)
        if self._driver.cuEventQuery(self._events[0]) == 0:
            self._busy[0] = min(2 * self._busy[0], MAX_BUSY_CYCLES)

    def seconds(self) -> float:
        """Between them, once the second has come."""
        self._do("cuEventSynchronize", self._events[1])
        found = ctypes.c_float()
        self._do("cuEventElapsedTime", ctypes.byref(found), *self._events)
        return found.value / 1e3

    def _do(self, function: str, *arguments: Any) -> None:
        if status := getattr(self._driver, function)(*arguments):
            raise DriverError(f"{function} gave {status}")


class Bound:
    """A runner with the tensors of a case, whose contents differ from call to call."""

    def __init__(
        self, runner: Runner, request: Calls, device: str, clock: HostClock | EventClock
    ) -> None:
        self._case, self._device, self._clock = request.case, device, clock
        self._profile, self._still = profile, Stillness()
        w = Workload.from_key(request.case.workload)
        self._inputs = drawn(request.case, Contents(request.bound), device)
        self._rooms = outputs_of(w, device=device)
        # Tensors of its own: what it makes of them leaves ours.
        given = (
            {name: tensor.view_as(tensor) for name, tensor in tensors.items()}
            for tensors in (self._inputs, self._rooms)
        )
        self.runner = runner
        self._launch = runner.bind(Problem(w, *given))

    def call(
        self, contents: Contents, *, repeats: int = 1, traced: bool = False
    ) -> tuple[Call, Tensors]:
        """Call it with these inputs: seconds and faults, and copies of its outputs."""
        fresh = drawn(self._case, contents, self._device)
        ran: dict[str, int] = {}
        outputs: Tensors = {}
        _poison(self._inputs)
        _poison(self._rooms)
        self._clock.hold()
        for name, tensor in self._inputs.items():
            tensor.copy_(fresh[name])
        if traced:
            given, ran = self._watched()
        else:
            self._clock.start()
            for _ in range(repeats):
                given = self._launch()
        with self._still as left:
            self._clock.stop()
            if left:
                faults = [Fault("patched", f"it left {', '.join(left)}")]
            else:
                outputs, faults = self._taken(given)
        for name, tensor in self._inputs.items():
            if not left and not bool((bits(tensor) == bits(fresh[name])).all()):
                faults.append(Fault("inputs", f"it changed its input {name}"))
        return Call(0.0 if traced else self._clock.seconds(), tuple(faults), ran), outputs

    def _watched(self) -> tuple[Any, dict[str, int]]:
        """What a launch gives, and what torch ran in it: operators, and kernels on a GPU."""
        kinds = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * (self._device != "cpu")]
        self._clock.wait()  # nothing from before is seen
        with self._profile(activities=kinds) as found:
            given = self._launch()
        names = [
            event.name
            for event in found.events()
            if "::" in event.name or event.device_type != torch.autograd.DeviceType.CPU
        ]
        return given, dict(Counter(names))

    def _taken(self, given: Any) -> tuple[Tensors, list[Fault]]:
        """Copies of the outputs, and what is wrong with their form."""
        faults, found = [], dict(self._rooms)
        if given is not None and type(given) is not dict:  # another mapping may compute when asked
            faults.append(
                Fault("form", f"a launch gave {type(given).__name__}, not a dict of tensors")
            )
            given = None
        # A tensor may have methods of its own: those of the class are called.
        storage, detach = torch.Tensor.untyped_storage, torch.Tensor.detach
        memory = {storage(t).data_ptr(): name for name, t in self._inputs.items()}
        for name, tensor in (given or {}).items():
            if wrong := self._wrong_form(name, tensor):
                faults.append(Fault("form", wrong))
            elif (of := memory.get(storage(tensor).data_ptr())) is not None:
                faults.append(Fault("aliased", f"output {name} is memory of its input {of}"))
            else:
                found[name] = detach(tensor)
        return {name: tensor.clone() for name, tensor in found.items()}, faults

    def _wrong_form(self, name: str, tensor: Any) -> str:
        room = self._rooms.get(name)
        if room is None:
            return f"there is no output {name!r}"
        if type(tensor) is not torch.Tensor:
            return f"{name} is {type(tensor).__name__}, not a plain tensor"
        for what in ("dtype", "shape", "device", "layout"):
            found, wanted = getattr(tensor, what), getattr(room, what)
            if found != wanted:
                return f"the {what} of {name} is {found}, not {wanted}"
        if any(
            n > 1 and step == 0
            for n, step in zip(tensor.shape, torch.Tensor.stride(tensor), strict=True)
        ):
            return f"elements of {name} are the same memory"
        return ""
