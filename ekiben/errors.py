"""Every error a caller can meet, as one tree.

EkibenError
├── InvalidRequest         the caller's mistake: names, dtypes, shapes, bytes, parameters
│   └── TooLarge           over a limit that a setting names
├── NotFound               no such model, version, label, signature or shared-memory region
├── AlreadyExists          a name that is taken
├── Unavailable            could work later
│   ├── NotReady           known, but no version is loaded yet (or it is draining)
│   ├── QueueFull          the version's queue is at its bound
│   ├── QueueTimeout       waited longer than the request or the model allows
│   │   └── DeadlineExceeded   waited until its caller gave up
│   └── RunnerDied         the runner ended under the request, and again under its retry
├── Restricted             only for callers with a key, which this one did not send
├── Unsupported            valid, but this server or model cannot do it
│   └── Decoupled          the model answers with a stream, and the call takes exactly one response
├── Cancelled              the caller went away
├── InferenceFailed        the model raised for this very request
│   └── ExecutionTimeout   the model ran longer than its limit; its runner was ended
├── CannotOpen             a client's shared-memory object cannot be opened
└── LoadFailed             a version could not be loaded
    └── InvalidSettings    a setting or a model's configuration is wrong

The codes are our own. Doors map them to HTTP and gRPC by one table (doors/status.py). A message names the
model, the version and the offending value; text of unexpected exceptions stays in the log.
"""

from enum import StrEnum
from typing import ClassVar

__all__ = [
    "AlreadyExists",
    "Cancelled",
    "CannotOpen",
    "Code",
    "DeadlineExceeded",
    "Decoupled",
    "EkibenError",
    "ExecutionTimeout",
    "InferenceFailed",
    "InvalidRequest",
    "InvalidSettings",
    "LoadFailed",
    "NotFound",
    "NotReady",
    "QueueFull",
    "QueueTimeout",
    "Restricted",
    "RunnerDied",
    "TooLarge",
    "Unavailable",
    "Unsupported",
]


class Code(StrEnum):
    """What kind of failure it is, independent of any protocol."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    UNAVAILABLE = "UNAVAILABLE"
    RESTRICTED = "RESTRICTED"
    UNSUPPORTED = "UNSUPPORTED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    CANCELLED = "CANCELLED"
    INTERNAL = "INTERNAL"


class EkibenError(Exception):
    """Base of all errors whose message may be shown to a caller."""

    code: ClassVar[Code] = Code.INTERNAL
    reason: ClassVar[str] = "internal"
    """The value of the `reason` label in the failure metric."""

    @property
    def message(self) -> str:
        """The text for the caller."""
        return str(self)


class InvalidRequest(EkibenError):
    """The request itself is wrong; sending it again cannot help."""

    code = Code.INVALID_ARGUMENT
    reason = "invalid"


class TooLarge(InvalidRequest):
    """The request is over a limit; the message names the limit and its setting."""

    reason = "too_large"


class NotFound(EkibenError):
    """No such model, version, label, signature or shared-memory region."""

    code = Code.NOT_FOUND
    reason = "not_found"


class AlreadyExists(EkibenError):
    """The name is taken; what has it must be removed first."""

    code = Code.ALREADY_EXISTS
    reason = "already_exists"


class Unavailable(EkibenError):
    """The same request may succeed later."""

    code = Code.UNAVAILABLE
    reason = "unavailable"


class NotReady(Unavailable):
    """The model is known, but no version of it can answer now."""

    reason = "not_ready"


class QueueFull(Unavailable):
    """Refused on arrival: the version's queue holds `max_queue_rows` rows already."""

    reason = "queue_full"
    retry_after_s: int = 1
    """When there may be room: as long as a full batch takes, in whole seconds."""


class QueueTimeout(Unavailable):
    """The request waited in the queue longer than its timeout."""

    reason = "queue_timeout"


class DeadlineExceeded(QueueTimeout):
    """The request waited in the queue until the deadline that its caller had set for the call."""

    code = Code.DEADLINE_EXCEEDED
    reason = "deadline"


class RunnerDied(Unavailable):
    """The runner ended while it held the request, and again when the request was retried alone."""

    reason = "runner_died"


class Restricted(EkibenError):
    """The endpoint is for callers that send a certain header; the message names the header and never its value."""

    code = Code.RESTRICTED
    reason = "restricted"


class Unsupported(EkibenError):
    """Understood, but not something this server or model can do."""

    code = Code.UNSUPPORTED
    reason = "unsupported"


class Decoupled(Unsupported):
    """The model answers with a stream of responses, and this call takes exactly one."""

    reason = "decoupled"


class Cancelled(EkibenError):
    """The caller went away before the answer was ready, or took nothing of a stream for too long."""

    code = Code.CANCELLED
    reason = "cancelled"


class InferenceFailed(EkibenError):
    """The model raised while it ran this request alone."""

    reason = "model_failed"


class ExecutionTimeout(InferenceFailed):
    """The model ran this request longer than `execution_timeout_ms`; its runner was ended and replaced."""

    reason = "execution_timeout"


class CannotOpen(EkibenError):
    """A shared-memory object that a client names cannot be opened; an internal error, as Triton has it."""

    reason = "cannot_open"


class LoadFailed(EkibenError):
    """A model version could not be loaded; the message says why."""

    reason = "load_failed"


class InvalidSettings(LoadFailed):
    """A setting, an option or a model's configuration is wrong; the message names it and its value."""

    code = Code.INVALID_ARGUMENT
    reason = "invalid_settings"
