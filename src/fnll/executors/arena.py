"""Objects between processes: one flat memory with each of their tensors once, and the small pickles that name them.

A `Packer` lays objects out, an `Arena` is the memory as an anonymous shared file, `unpack` makes objects of it again.
The file has no name, so there is nothing to unlink and nothing to leak: the kernel frees it with the last process that
holds it, however that process ends. One file descriptor carries any number of tensors.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 64  # bytes: a cache line, and enough for every dtype and vector instruction


class Ticket(NamedTuple):
    """Where an object's pickle lies in the flat memory."""

    start: int
    stop: int


class Slot(NamedTuple):
    """Where a tensor's values lie, and how to read them."""

    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: str
    requires_grad: bool


class Packer:
    """Lays objects out in one flat memory; tensors that several of them refer to are written once.

    Dense tensors keep their strides (kernels, and so rounding, may depend on them); others, such as expanded or sliced
    ones, arrive dense. Nothing is read before `parts`, so the objects must not change until then.
    """

    def __init__(self) -> None:
        self.size = 0
        self._pickles: list[tuple[int, bytes]] = []
        self._entries: dict[tuple[Any, ...], tuple[Slot, Tensor]] = {}  # holding the tensors keeps their addresses

    def add(self, value: object) -> Ticket:
        """Lay out `value` and everything it refers to."""
        stream = io.BytesIO()
        _Pickler(stream, self._entry).dump(value)
        pickled = stream.getvalue()
        start = self._reserve(len(pickled))
        self._pickles.append((start, pickled))
        return Ticket(start, start + len(pickled))

    def parts(self) -> Iterator[tuple[int, memoryview]]:
        """Everything to write: offsets and bytes."""
        for start, pickled in self._pickles:
            yield start, memoryview(pickled)
        for entry, tensor in self._entries.values():
            if tensor.numel():
                yield entry.start, _bytes(tensor, entry.stride)

    def array(self) -> np.ndarray:
        """The whole memory as one array, for transports of their own (Ray's object store)."""
        flat = np.zeros(self.size, np.uint8)
        for start, data in self.parts():
            flat[start : start + len(data)] = data
        return flat

    def _entry(self, tensor: Tensor) -> Slot:
        """Equal addresses and layouts are equal values, whichever tensor object asks."""
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device, tensor.requires_grad)
        if key not in self._entries:
            start = self._reserve(tensor.numel() * tensor.element_size())
            shape, stride, device = tuple(tensor.shape), _dense_stride(tensor), str(tensor.device)
            entry = Slot(start, tensor.dtype, shape, stride, device, tensor.requires_grad)
            self._entries[key] = entry, tensor
        return self._entries[key][0]

    def _reserve(self, size: int) -> int:
        start = self.size
        self.size += -(-size // ALIGNMENT) * ALIGNMENT
        return start


class Arena:
    """Flat memory that its maker writes once and other processes read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    @classmethod
    def of(cls, packer: Packer) -> Arena:
        """Everything that `packer` holds, in memory that can be sent to another process."""
        arena = cls(_anonymous_file())
        fd = arena._file.fileno()
        os.ftruncate(fd, packer.size)
        for start, data in packer.parts():
            while data:  # the kernel may take less than it is given, and never more than 2 GiB at a time
                written = os.pwrite(fd, data, start)
                data, start = data[written:], start + written
        return arena

    @classmethod
    def receive(cls, connection: Connection) -> Arena:
        """What the other end of a pipe sends; EOFError if it is gone."""
        return cls(os.fdopen(recv_handle(connection), "rb", buffering=0))

    def send(self, connection: Connection) -> None:
        """Let the process at the other end of a (duplex) pipe read this memory too."""
        send_handle(connection, self._file.fileno(), None)

    def map(self) -> Tensor:
        """The memory as a uint8 tensor, not copied; what its reader writes stays the reader's own (copy on write)."""
        size = os.fstat(self._file.fileno()).st_size
        if size == 0:
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer(mmap.mmap(self._file.fileno(), size, access=mmap.ACCESS_COPY), dtype=torch.uint8)

    def load(self, ticket: Ticket) -> Any:
        """The object that `ticket` names, its tensors read into storages of their own (faster than by way of `map`)."""
        pickled = bytearray(ticket.stop - ticket.start)
        self._read(memoryview(pickled), ticket.start)
        return _Unpickler(pickled, self._tensor).load()

    def _tensor(self, entry: Slot) -> Tensor:
        tensor = torch.empty_strided(entry.shape, entry.stride, dtype=entry.dtype)
        self._read(_memory(tensor), entry.start)
        return tensor

    def _read(self, target: memoryview, start: int) -> None:
        while target:
            count = os.preadv(self._file.fileno(), [target], start)
            target, start = target[count:], start + count

    def close(self) -> None:
        """Give up this process's hold; mapped tensors stay valid."""
        self._file.close()

    def __enter__(self) -> Arena:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def unpack(flat: Tensor, ticket: Ticket, *, own: bool) -> Any:
    """The object that `ticket` names; its tensors are views of `flat`, or with `own` copies with a storage each."""

    def tensor(entry: Slot) -> Tensor:
        end = entry.start + torch.Size(entry.shape).numel() * entry.dtype.itemsize
        view = flat[entry.start : end].view(entry.dtype).as_strided(entry.shape, entry.stride)
        return view.clone() if own else view

    return _Unpickler(flat[ticket.start : ticket.stop].numpy().tobytes(), tensor).load()


class _Pickler(pickle.Pickler):
    def __init__(self, stream: io.BytesIO, entry: Callable[[Tensor], Slot]) -> None:
        super().__init__(stream, protocol=pickle.HIGHEST_PROTOCOL)
        self._entry = entry

    def persistent_id(self, value: Any) -> tuple[Any, ...] | None:
        return tuple(self._entry(value)) if type(value) is Tensor and _is_plain(value) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, pickled: bytes | bytearray, tensor: Callable[[Slot], Tensor]) -> None:
        super().__init__(io.BytesIO(pickled))
        self._tensor = tensor
        self._made: dict[tuple[Any, ...], Tensor] = {}  # one object as often as it was one object

    def persistent_load(self, pid: tuple[Any, ...]) -> Tensor:
        if pid not in self._made:
            entry = Slot(*pid)
            self._made[pid] = self._tensor(entry).to(entry.device).requires_grad_(entry.requires_grad)
        return self._made[pid]


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is its values, shape and strides; any other is left to torch's own pickling."""
    special = tensor.is_quantized or tensor.is_conj() or tensor.is_neg()
    return tensor.layout is torch.strided and tensor.device.type != "meta" and not special


def _dense_stride(tensor: Tensor) -> tuple[int, ...]:
    """The strides of a copy: the tensor's own where its elements fill their memory, as `clone` has it."""
    return tensor.stride() if tensor.is_contiguous() else torch.empty_like(tensor, device="meta").stride()


def _bytes(tensor: Tensor, stride: tuple[int, ...]) -> memoryview:
    """The values in the order of memory, on the CPU."""
    tensor = tensor.detach()
    if tensor.device.type != "cpu" or tensor.stride() != stride:
        tensor = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(tensor)
    return _memory(tensor)


def _memory(tensor: Tensor) -> memoryview:
    """The memory of a dense CPU tensor."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().data


def _anonymous_file() -> BinaryIO:
    """Memory behind a file descriptor (Linux), or a file that has lost its name."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("fnll"), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)
