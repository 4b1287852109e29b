"""HTTP/2 for gRPC servers, without sockets: `Connection` takes bytes and gives events, takes replies and gives bytes.

connection   frames in, and the face of the package     control   SETTINGS, PING, GOAWAY, keepalive, age
streams      one call's life                            outbox    frames out, within windows
inbox        messages in pieces, memory, windows in
heads        HPACK and request headers                  replies   reply headers and small frames, as constants
messages     gRPC's framing and compression             limits    what a peer may ask of us
call         a call and its events                      codes, faults
"""

from ekiben.wire.h2.call import Call, Cancelled, Ended, Event, Opened, Received
from ekiben.wire.h2.codes import ErrorCode, Status
from ekiben.wire.h2.connection import Connection
from ekiben.wire.h2.faults import GrpcError
from ekiben.wire.h2.heads import Guard, Head, Metadata, Method
from ekiben.wire.h2.limits import Limits, Memory
from ekiben.wire.h2.messages import too_much, unpacked
from ekiben.wire.h2.outbox import Reply

__all__ = [
    "Call",
    "Cancelled",
    "Connection",
    "Ended",
    "ErrorCode",
    "Event",
    "GrpcError",
    "Guard",
    "Head",
    "Limits",
    "Memory",
    "Metadata",
    "Method",
    "Opened",
    "Received",
    "Reply",
    "Status",
    "too_much",
    "unpacked",
]
