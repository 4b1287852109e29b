"""What the gRPC door says of a decoupled model."""

from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from ekiben.doors.oip_grpc import OipGrpc
from tests.doors.grpc_house import serving
from tests.doors.house import House, run

REFUSAL = "ModelInfer RPC doesn't support models with decoupled transaction policy"


def text_input(length: int) -> Any:
    made = triton.InferInput("text_input", [1, 1], "BYTES")
    made.set_data_from_numpy(np.array([[b"x" * length]], np.object_))
    return made


@pytest.mark.parametrize("length", [1, 2_000_000])
def test_one_call_is_not_enough_for_it(length: int) -> None:
    async def test(house: House) -> None:
        async with serving(OipGrpc(house.engine).methods) as address, InferenceServerClient(address) as client:
            with pytest.raises(InferenceServerException) as caught:
                await client.infer("talk", [text_input(length)])
            assert (caught.value.status(), caught.value.message()) == ("StatusCode.UNIMPLEMENTED", REFUSAL)
            (statistics,) = (await client.get_inference_statistics("talk")).model_stats
            assert statistics.inference_stats.fail.count == 1

    run(test)


def test_its_configuration_says_so() -> None:
    async def test(house: House) -> None:
        async with serving(OipGrpc(house.engine).methods) as address, InferenceServerClient(address) as client:
            assert (await client.get_model_config("talk")).config.model_transaction_policy.decoupled
            assert not (await client.get_model_config("add")).config.HasField("model_transaction_policy")

    run(test)
