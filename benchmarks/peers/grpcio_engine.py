"""The reference for gRPC: the same engine and the same door behind grpcio's asyncio server.

Usage: grpcio_engine.py REPOSITORY. Prints the port once every model is loaded.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import grpc.aio
import uvloop

from ekiben.clock import SYSTEM_CLOCK
from ekiben.doors.oip_grpc import OipGrpc
from ekiben.engine.engine import Engine
from ekiben.repository.layout import open_repositories
from ekiben.runner.cores import usable_cores
from ekiben.runner.supervisor import Runner
from ekiben.types import VersionSource


class Door(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio is not typed
    """Hands whole messages to the door's methods."""

    def __init__(self, engine: Engine) -> None:
        self._methods = OipGrpc(engine).methods

    def service(self, details: Any) -> Any:
        """The handler of one call, if there is such a method."""
        unary = self._methods.unary.get(details.method)
        if unary is None:
            return None

        async def answer(message: bytes, context: Any) -> bytes:
            found = unary(memoryview(message), context)
            return found if isinstance(found, bytes) else await found

        return grpc.unary_unary_rpc_method_handler(answer)


async def main(repository: str) -> None:
    """Load, serve, and go on until the process is ended."""

    def make(source: VersionSource, changed: Callable[[], None]) -> Runner:
        return Runner(source, source.settings, SYSTEM_CLOCK, lambda _: changed(), usable_cores())

    with TemporaryDirectory() as state:
        reader = open_repositories([repository], home=Path(state), state_directory=Path(state))
        engine = Engine(reader.scan, make, SYSTEM_CLOCK)
        await engine.start()
        server = grpc.aio.server()
        server.add_generic_rpc_handlers([Door(engine)])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        print(port, flush=True)
        await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
