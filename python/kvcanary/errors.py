"""Errors of the library as exceptions.

Every one is a :class:`KVCanaryError` and also the built-in class that its catalogue entry names, so
``except ValueError`` and ``except kvcanary.KVCanaryError`` both work.
"""

import re
from typing import Any, TypeVar

from ._abi import Status
from ._lib import C, string

__all__ = [
    "KVCanaryError",
    "KVCanaryIndexError",
    "KVCanaryMemoryError",
    "KVCanaryRuntimeError",
    "KVCanaryTypeError",
    "KVCanaryValueError",
    "Status",
]


class KVCanaryError(Exception):
    """An error of the library.

    Attributes
    ----------
    message : str
        One line, a fact with its numbers. Also what ``str()`` gives.
    status : Status
        The family of the error, for a program to branch on.
    slug : str
        The catalogue entry; ``kvcanary.explain(slug)`` tells more.
    hint : str
        What to try; may be empty.
    where : int
        Index of the first offending entry (token, request, source), -1 if it has none.

    Examples
    --------
    >>> import kvcanary
    >>> try:
    ...     kvcanary.set_num_threads(-1)
    ... except kvcanary.KVCanaryError as error:
    ...     print(error.slug, error.status.name)
    thread-count-out-of-range E_CONFIG
    """

    def __init__(
        self, message: str, status: int, slug: str, hint: str = "", where: int = -1
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = Status(status)
        self.slug = slug
        self.hint = hint
        self.where = where

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> Any:
        made_of = (self.message, int(self.status), self.slug, self.hint, self.where)
        return _build, made_of, self.__dict__  # notes, too


class KVCanaryValueError(KVCanaryError, ValueError):
    """A value, shape or length that does not fit."""


class KVCanaryTypeError(KVCanaryError, TypeError):
    """An element type or an object that the call does not take."""


class KVCanaryIndexError(KVCanaryError, IndexError):
    """A slot, position, row or token out of its range."""


class KVCanaryRuntimeError(KVCanaryError, RuntimeError):
    """A device, an order of calls or a machine that cannot do it."""


class KVCanaryMemoryError(KVCanaryError, MemoryError):
    """An allocation failed."""


# The catalogue's name of a class -> the exception.
_CLASSES: dict[str, type[KVCanaryError]] = {
    "ValueError": KVCanaryValueError,
    "TypeError": KVCanaryTypeError,
    "IndexError": KVCanaryIndexError,
    "RuntimeError": KVCanaryRuntimeError,
    "MemoryError": KVCanaryMemoryError,
}


def _build(message: str, status: int, slug: str, hint: str, where: int) -> KVCanaryError:
    entry = C.kvc_catalog_find(slug.encode())
    kind = string(entry.contents.error_class) if entry else ""
    return _CLASSES.get(kind, KVCanaryError)(message, status, slug, hint, where)


def last_error() -> KVCanaryError:
    """This thread's last error, copied out of the library."""
    error = C.kvc_last_error().contents
    return _build(
        string(error.message), error.status, string(error.slug), string(error.hint), error.where
    )


def check(status: int) -> None:
    """Raise this thread's last error unless `status` is 0."""
    if status:
        raise last_error()


def fault(slug: str, status: int, **values: object) -> KVCanaryError:
    """An error that only Python can see, in the catalogue's words."""
    entry = C.kvc_catalog_find(slug.encode()).contents

    def fill(template: bytes) -> str:
        return re.sub(r"\{(\w+)\}", lambda found: str(values[found[1]]), string(template))

    return _build(fill(entry.message), status, slug, fill(entry.hint), -1)


_Kind = TypeVar("_Kind")


def expect(thing: Any, kind: type[_Kind], name: str) -> _Kind:
    """`thing`, if it is of this class of the package."""
    if not isinstance(thing, kind):
        found = f"{type(thing).__module__}.{type(thing).__qualname__}".removeprefix("builtins.")
        raise fault(
            "object-expected", Status.E_INVALID_ARGUMENT, name=name, expected=kind.__name__,
            type=found,
        )  # fmt: skip
    return thing
