"""Asks a server through KServe's own gRPC client, in an interpreter that has it. Usage: client.py ADDRESS

Prints what came back as one line of JSON. KServe's messages have the names of Triton's: the two cannot share a process.
"""

import asyncio
import json
import logging
import sys
from typing import Any

import grpc
import numpy as np
from kserve import InferenceGRPCClient, InferInput, InferRequest


def row(name: str, values: Any, datatype: str, *, raw: bool) -> InferInput:
    """An input of one row, in raw_input_contents or as contents."""
    array = np.array([values])
    made = InferInput(name, list(array.shape), datatype, None if raw else [value.item() for value in array.flat])
    if raw:
        made.set_data_from_numpy(array.astype({"INT32": np.int32, "BYTES": np.object_}[datatype]))
    return made


def added(raw: bool, first: int = 0) -> InferRequest:
    """A request to `simple`, which adds and subtracts two rows of 16."""
    ones, numbers = [1] * 16, list(range(first, first + 16))
    inputs = [row("INPUT0", numbers, "INT32", raw=raw), row("INPUT1", ones, "INT32", raw=raw)]
    return InferRequest("simple", inputs, request_id=str(first))


async def main(address: str) -> dict[str, object]:
    """Everything that the client can do."""
    async with InferenceGRPCClient(address) as client:
        said: dict[str, object] = {
            "live": await client.is_server_live(),
            "ready": await client.is_server_ready(),
            "models": [await client.is_model_ready(name) for name in ("simple", "unloaded")],
        }
        for raw in (True, False):
            answer = await client.infer(added(raw))
            kind = "raw" if raw else "typed"
            said[kind] = {output.name: output.as_numpy().tolist() for output in answer.outputs}
            said[f"{kind} id"] = answer.id
            words = row("INPUT0", ["a", "", "é"], "BYTES", raw=raw)
            texts = (await client.infer(InferRequest("identity_bytes", [words]))).outputs[0].as_numpy()
            said[f"{kind} bytes"] = [text.decode() for text in texts.flat]
        answers = await asyncio.gather(*(client.infer(added(raw=True, first=number)) for number in range(200)))
        said["many"] = [int(answer.id) for answer in answers]
        said["many sums"] = [int(answer.outputs[0].as_numpy()[0, 0]) for answer in answers]
        try:
            await client.infer(InferRequest("nope", [row("INPUT0", [1], "INT32", raw=True)]))
        except grpc.RpcError as error:
            said["unknown"] = [error.code().name, error.details()]
    return said


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # the client logs what it raises
    print(json.dumps(asyncio.run(main(sys.argv[1]))))
