"""The BentoML service: `bentoml serve` here, or `ekiben serve` anywhere, serves it."""

from typing import Any

import bentoml
from PIL import Image

import ekiben
from ekiben import Batching, Label


@bentoml.service(name="ekiben", service_class=ekiben.EngineService, metrics={"enabled": True})
class Engine:
    """TensorFlow, TorchScript and ONNX models behind the Open Inference Protocol, with typed APIs beside it."""

    savedmodel = ekiben.runner(
        "efficientnet_tensorflow:latest",
        runtime="tensorflow",
        device="auto",
        batching=Batching(target_latency_ms=100, max_batch_size=128),
    )
    torchscript = ekiben.runner(
        "efficientnet_torchscript:latest",
        runtime="torchscript",
        device="auto",
        batching=Batching(target_latency_ms=100, max_batch_size=128),
    )
    onnx = ekiben.runner(
        "efficientnet_onnx:latest",
        runtime="onnx",
        device="auto",
        batching=Batching(target_latency_ms=100, max_batch_size=128),
    )
    others = ekiben.repository("store")

    @bentoml.api
    async def classify(self, image: Image.Image, model: str = "efficientnet_onnx") -> list[Label]:
        """The best labels of an image."""
        return await self.others.classify(image, model)

    @bentoml.api
    async def predict(self, model: str, inputs: dict[str, Any]) -> dict[str, Any]:
        """Run any model on named inputs, as nested lists."""
        outputs = await self.others.infer(model, inputs)
        return {name: array.tolist() for name, array in outputs.items()}
