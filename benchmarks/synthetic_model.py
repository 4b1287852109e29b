"""A model whose only cost is time: 5 ms and 0.1 ms a row. It waits without using a core, as a device would."""

import time
from typing import Any


class Model:
    def load(self, context: Any) -> None:
        """Nothing to load."""

    def infer(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """`x` [rows, 4] → `y`, twice as much."""
        x = inputs["x"]
        time.sleep(0.005 + 0.0001 * len(x))
        return {"y": x * 2}

    def close(self) -> None:
        """Nothing to free."""
