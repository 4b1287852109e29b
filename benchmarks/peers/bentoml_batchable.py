"""The tiny MLP behind BentoML's own adaptive batching. BENCH_MODEL names the ONNX file."""

import os

import bentoml
import numpy as np
import onnxruntime


# The access log is off as it is in ekiben: with it BentoML would look slower than it is.
@bentoml.service(name="batchable", logging={"access": {"enabled": False}})
class Batchable:
    def __init__(self) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            os.environ["BENCH_MODEL"], options, providers=["CPUExecutionProvider"]
        )

    @bentoml.api(batchable=True, max_batch_size=64)  # type: ignore[untyped-decorator]  # BentoML has no types
    async def predict(self, x: np.ndarray) -> np.ndarray:
        """On the loop itself: a run takes microseconds, less than a hop to a thread."""
        return np.asarray(self.session.run(None, {"x": x.astype(np.float32)})[0])
