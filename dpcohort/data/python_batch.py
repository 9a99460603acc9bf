# SPDX-License-Identifier: Apache-2.0
"""CIFAR-10's "python version" batches, read without ever running a pickle.

A pickle is a small program, and loading one runs whatever its author wrote. Here its instructions
are only walked through: the handful that a dictionary of numbers, strings and one array of bytes
needs are understood, names of functions are compared with a list and never looked up, and anything
else is refused.
"""

from __future__ import annotations

import pickletools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcohort.errors import FileFormatError
from dpcohort.limits import MOST_INSTRUCTIONS

__all__ = ["ByteArray", "walk_pickle"]

_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")
_RECONSTRUCT = tuple(f"{module} _reconstruct" for module in _MODULES)
_KNOWN_NAMES = (*_RECONSTRUCT, "numpy ndarray", "numpy dtype", "_codecs encode")


@dataclass(frozen=True)
class _Name:
    """A function or class the pickle mentions; only its spelling, never the thing itself."""

    text: str


@dataclass
class ByteArray:
    """An array of unsigned bytes as the pickle describes it.

    Attributes:
        values: the array, once its description is complete.
    """

    values: NDArray[np.uint8] | None = None


@dataclass
class _ElementType:
    """The type of an array's elements, by its spelling (`u1`)."""

    code: str


class _RefusedError(Exception):
    """The pickle asks for something a batch of images does not need."""


_MARK = object()


@dataclass
class _Walk:
    """The stack and the memo of a pickle, with plain values only."""

    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)
    bytes_left: int = 0

    def take(self, size: int) -> None:
        """Pay for bytes that are made, not read: a value that is kept can be recalled for one."""
        self.bytes_left -= size
        if self.bytes_left < 0:
            raise _RefusedError("makes more bytes than the file could hold")

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise _RefusedError("takes a value that is not there")
        return self.stack.pop()

    def pop_to_mark(self) -> list[Any]:
        values: list[Any] = []
        while self.stack:
            value = self.stack.pop()
            if value is _MARK:
                return values[::-1]
            values.append(value)
        raise _RefusedError("has no start for a list")

    def top(self, kind: type[Any]) -> Any:
        if not self.stack or not isinstance(self.stack[-1], kind):
            raise _RefusedError(f"adds to something that is not a {kind.__name__}")
        return self.stack[-1]


def walk_pickle(path: str | Path, content: bytes) -> Any:
    r"""The plain value a pickle describes: dictionaries, lists, tuples, numbers, text, bytes.

    Args:
        path: named in errors.
        content: the bytes of the pickle.

    Raises:
        FileFormatError: if the pickle is broken, or asks for anything else. Nothing of it is run.

    Example:
        >>> walk_pickle("batch", b"\x80\x02}U\x06labels]K\x07as.")
        {'labels': [7]}
        >>> walk_pickle("batch", b"cos\nsystem\n(S'ls'\ntR.")
        Traceback (most recent call last):
        ...
        dpcohort.errors.FileFormatError: batch: at byte 0 the pickle names 'os system', which no
        batch of images needs; nothing of it was run
    """
    with warnings.catch_warnings():
        # pickletools decodes escapes in names, and Python warns of odd ones; they are refused here
        warnings.simplefilter("ignore", DeprecationWarning)
        return _walk_whole(path, content)


def _walk_whole(path: str | Path, content: bytes) -> Any:
    # Text becomes bytes once and an array is a copy of them: an honest batch makes twice its size.
    walk = _Walk(bytes_left=3 * len(content))
    position = 0
    try:
        for number, (opcode, argument, place) in enumerate(pickletools.genops(content)):
            position = int(place or 0)
            if number >= MOST_INSTRUCTIONS:
                raise _RefusedError(f"has more than {MOST_INSTRUCTIONS:,} instructions")
            if opcode.name == "STOP":
                return walk.pop()
            handler = _HANDLERS.get(opcode.name)
            if handler is None:
                raise _RefusedError(f"holds the instruction {opcode.name}")
            handler(walk, argument)
    except _RefusedError as refusal:
        problem = (
            f"at byte {position} the pickle {refusal}, which no batch of images needs; "
            "nothing of it was run"
        )
        raise FileFormatError(path, problem) from None
    except (ValueError, IndexError, OverflowError) as error:
        # genops has one error for every way in which bytes are not a pickle
        raise FileFormatError(path, f"not a whole pickle ({error})") from None
    raise FileFormatError(path, "not a whole pickle (no end)")


def _global(walk: _Walk, name: str) -> None:
    if name not in _KNOWN_NAMES:
        raise _RefusedError(f"names {name[:80]!r}")
    walk.push(_Name(name))


def _stack_global(walk: _Walk, _: Any) -> None:
    name, module = walk.pop(), walk.pop()
    # Only text: other values may be large beyond all bounds once they are written out.
    if not isinstance(name, str) or not isinstance(module, str):
        raise _RefusedError("names something by what is not text")
    _global(walk, f"{module} {name}")


def _reduce(walk: _Walk, _: Any) -> None:
    """A call; only the three that build an array of bytes are understood."""
    arguments, name = walk.pop(), walk.pop()
    if not isinstance(name, _Name) or not isinstance(arguments, tuple):
        raise _RefusedError("calls something that is not a name")
    if name.text in _RECONSTRUCT and arguments[:1] == (_Name("numpy ndarray"),):
        walk.push(ByteArray())
    elif name.text == "numpy dtype" and arguments and isinstance(arguments[0], str):
        walk.push(_ElementType(arguments[0]))
    elif name.text == "_codecs encode" and _is_latin1(arguments):
        walk.take(len(arguments[0]))
        walk.push(arguments[0].encode("latin-1"))
    else:
        raise _RefusedError(f"calls {name.text!r} with unexpected values")


def _is_latin1(arguments: tuple[Any, ...]) -> bool:
    return (
        len(arguments) == 2
        and arguments[1] in ("latin1", "latin-1")
        and isinstance(arguments[0], str)
        and all(ord(character) < 256 for character in arguments[0])
    )


def _build(walk: _Walk, _: Any) -> None:
    """The state of the object below: an array's shape and bytes; a type's is of no interest."""
    state = walk.pop()
    if walk.stack and isinstance(walk.stack[-1], _ElementType):
        return
    array = walk.top(ByteArray)
    if not isinstance(state, tuple) or len(state) != 5:
        raise _RefusedError("gives an array an unexpected state")
    _, shape, element, column_major, values = state
    if isinstance(values, str):  # Python 2 wrote bytes as strings
        walk.take(len(values))
        values = values.encode("latin-1")
    if not isinstance(element, _ElementType) or element.code != "u1" or column_major:
        raise _RefusedError("holds an array that is not of unsigned bytes in row order")
    if not isinstance(values, bytes) or not _is_shape(shape):
        raise _RefusedError("gives an array an unexpected state")
    walk.take(len(values))
    array.values = np.frombuffer(bytearray(values), np.uint8).reshape(shape)


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape)


def _put(walk: _Walk, key: int) -> None:
    if not walk.stack:
        raise _RefusedError("keeps a value that is not there")
    walk.memo[key] = walk.stack[-1]


def _memoize(walk: _Walk, _: Any) -> None:
    _put(walk, len(walk.memo))


def _get(walk: _Walk, key: int) -> None:
    if key not in walk.memo:
        raise _RefusedError("recalls a value that was not kept")
    walk.push(walk.memo[key])


def _append(walk: _Walk, _: Any) -> None:
    value = walk.pop()
    walk.top(list).append(value)


def _appends(walk: _Walk, _: Any) -> None:
    values = walk.pop_to_mark()
    walk.top(list).extend(values)


def _set_item(walk: _Walk, _: Any) -> None:
    value, key = walk.pop(), walk.pop()
    _store(walk.top(dict), [key, value])


def _set_items(walk: _Walk, _: Any) -> None:
    pairs = walk.pop_to_mark()
    _store(walk.top(dict), pairs)


def _store(target: dict[Any, Any], pairs: list[Any]) -> None:
    if len(pairs) % 2:
        raise _RefusedError("gives a dictionary a key without a value")
    for key, value in zip(pairs[::2], pairs[1::2], strict=True):
        if not isinstance(key, str | bytes):
            raise _RefusedError("gives a dictionary a key that is not text")
        target[key.decode("latin-1") if isinstance(key, bytes) else key] = value


def _tuple_of(count: int) -> Callable[[_Walk, Any], None]:
    def make(walk: _Walk, _: Any) -> None:
        walk.push(tuple([walk.pop() for _ in range(count)][::-1]))

    return make


def _constant(value: Any) -> Callable[[_Walk, Any], None]:
    return lambda walk, _: walk.push(value)


def _push_argument(walk: _Walk, argument: Any) -> None:
    walk.push(argument)


def _nothing(walk: _Walk, _: Any) -> None:
    return None


_HANDLERS: dict[str, Callable[[_Walk, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME"), _nothing),
    **dict.fromkeys(
        (
            "BININT",
            "BININT1",
            "BININT2",
            "LONG1",
            "BINSTRING",
            "SHORT_BINSTRING",
            "BINUNICODE",
            "SHORT_BINUNICODE",
            "BINUNICODE8",
            "BINBYTES",
            "SHORT_BINBYTES",
            "BINBYTES8",
        ),
        _push_argument,
    ),
    "NONE": _constant(None),
    "NEWTRUE": _constant(True),
    "NEWFALSE": _constant(False),
    "MARK": _constant(_MARK),
    "EMPTY_TUPLE": _constant(()),
    "EMPTY_LIST": lambda walk, _: walk.push([]),
    "EMPTY_DICT": lambda walk, _: walk.push({}),
    "TUPLE": lambda walk, _: walk.push(tuple(walk.pop_to_mark())),
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "APPEND": _append,
    "APPENDS": _appends,
    "SETITEM": _set_item,
    "SETITEMS": _set_items,
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _put),
    "MEMOIZE": _memoize,
    **dict.fromkeys(("BINGET", "LONG_BINGET"), _get),
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    "REDUCE": _reduce,
    "BUILD": _build,
}
