"""Where the bench reads and writes."""

from pathlib import Path
from typing import Final

__all__ = ["BENCH", "DEMO_MODELS", "RESULTS", "ROOT"]

ROOT: Final = Path(__file__).parent.parent
BENCH: Final = ROOT / "build" / "bench"
RESULTS: Final = BENCH / "results"
DEMO_MODELS: Final = ROOT / "build" / "models"
