"""The whole error tree of Penstock.

    PenstockError
    ├── UsageError                  the user's graph, settings or data
    │   ├── SchemaError             unknown column, wrong type, SQL that does not parse
    │   ├── GraphError              stages that cannot be connected like that
    │   ├── SettingsError           an option that is wrong, or wrong together with another
    │   │   ├── TopologyError       a topology file that is wrong, with the lines
    │   │   ├── SlotsError          fewer free task slots than hosts
    │   │   ├── JavaNotFoundError   no Java 17+ on this machine
    │   │   └── SessionError        a SparkSession that cannot carry hosts
    │   ├── SourceError             input that cannot be read
    │   │   └── CorruptFileError    a file with contents that cannot be read
    │   ├── SinkError               output that cannot be written
    │   ├── DataError               a value that an expression has no result for
    │   └── FunctionError           a function of the user's raised
    ├── PeerError                   a peer broke the protocol, or has no business here
    ├── TransientError              worth another try
    │   ├── NotWrittenError         a sink could not write, and wants to be asked again
    │   └── HostLostError           a host's process ended
    └── InvariantError              our bug: the node stops and carries its history
        └── ContradictionError      known steps that no single order of inputs explains

Every error has a ``condition`` in UPPER_SNAKE and ``parameters``, as PySpark's have, and a message
that says what happened, where, and what to do.  Errors cross process borders as plain dicts
(:meth:`PenstockError.to_dict`), never as pickles.
"""

from __future__ import annotations

from typing import Any, ClassVar, Never


class PenstockError(Exception):
    """The root: a message, a condition and its parameters."""

    condition: ClassVar[str] = "PENSTOCK_ERROR"

    def __init__(self, message: str, **parameters: Any) -> None:
        super().__init__(message)
        self.message = message
        self.parameters: dict[str, Any] = parameters

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self).__name__, self.message, self.parameters)

    def getCondition(self) -> str:
        """The condition's name, as ``PySparkException.getCondition`` gives it."""
        return self.condition

    def getMessageParameters(self) -> dict[str, str]:
        """The values in the message, as ``PySparkException`` gives them."""
        return {key: str(value) for key, value in self.parameters.items()}

    def to_dict(self) -> dict[str, Any]:
        """A form that msgpack and JSON can carry."""
        return {
            "type": type(self).__name__,
            "message": self.message,
            "parameters": {key: _plain(value) for key, value in self.parameters.items()},
        }

    @staticmethod
    def from_dict(data: dict[str, Any]) -> PenstockError:
        """The error that :meth:`to_dict` described.

        >>> PenstockError.from_dict(SchemaError("no column x", column="x").to_dict()).parameters
        {'column': 'x'}
        """
        return _rebuild(data["type"], data["message"], data["parameters"])


class UsageError(PenstockError):
    """The user's graph, settings or data are wrong."""

    condition = "USAGE"


class SchemaError(UsageError):
    """An unknown column, a wrong type, or SQL that does not parse."""

    condition = "SCHEMA"


class GraphError(UsageError):
    """Stages that cannot be connected like that."""

    condition = "GRAPH"


class SettingsError(UsageError):
    """An option that is wrong, or wrong together with another."""

    condition = "SETTINGS"


class TopologyError(SettingsError):
    """A topology file that is wrong; the message has a line for each problem."""

    condition = "TOPOLOGY"


class SlotsError(SettingsError):
    """Spark has fewer free task slots than the flow needs hosts."""

    condition = "TOO_FEW_TASK_SLOTS"


class JavaNotFoundError(SettingsError):
    """There is no Java 17 or newer on this machine."""

    condition = "JAVA_NOT_FOUND"


class SessionError(SettingsError):
    """A SparkSession that cannot carry hosts."""

    condition = "UNSUITABLE_SESSION"


class SourceError(UsageError):
    """Input that cannot be read."""

    condition = "SOURCE"


class CorruptFileError(SourceError):
    """A file with contents that cannot be read: ``onCorrupt="skip"`` leaves out the rest of it."""

    condition = "CORRUPT_FILE"


class SinkError(UsageError):
    """Output that cannot be written."""

    condition = "SINK"


class DataError(UsageError):
    """A value that an expression has no result for: overflow, division by zero, a bad cast."""

    condition = "DATA"


class FunctionError(UsageError):
    """A function of the user's raised; stage, node, epoch and traceback are in ``parameters``."""

    condition = "USER_FUNCTION_RAISED"


class PeerError(PenstockError):
    """A peer broke the protocol, or has no business here."""

    condition = "PEER"


class TransientError(PenstockError):
    """Something that is worth another try."""

    condition = "TRANSIENT"


class NotWrittenError(TransientError):
    """A sink could not write and has changed nothing: the call that raised it is made again.

    For ``onNotify`` and ``onEpoch``, whose node then waits, as long as ``storeTimeout`` allows.
    """

    condition = "NOT_WRITTEN"


class HostLostError(TransientError):
    """A host's process ended without being told to."""

    condition = "HOST_LOST"


class InvariantError(PenstockError):
    """A bug of Penstock's own; ``parameters["history"]`` says how it came about."""

    condition = "INVARIANT"


class ContradictionError(InvariantError):
    """What others know of a node's steps cannot all be repeated in one order."""

    condition: ClassVar[str] = "CONTRADICTION"


def require(holds: bool, message: str, **parameters: Any) -> None:
    """Raise :class:`InvariantError` unless ``holds``; unlike ``assert`` it survives ``-O``."""
    if not holds:
        raise InvariantError(message, **parameters)


def unreachable(message: str, **parameters: Any) -> Never:
    """Say that control can never come here."""
    raise InvariantError(message, **parameters)


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _rebuild(name: str, message: str, parameters: dict[str, Any]) -> PenstockError:
    kind = globals().get(name)
    if not (isinstance(kind, type) and issubclass(kind, PenstockError)):
        kind = PenstockError
    return kind(message, **parameters)
