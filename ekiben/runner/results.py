"""What a model gave, or raised, made ready to be sent."""

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from ekiben.runner.base import TensorParts
from ekiben.types import Tensor, datatype_of

__all__ = ["ERROR_CHARACTERS", "checked", "printable", "text_of"]

ERROR_CHARACTERS: Final = 1000
"""A model's exception text is cut to this."""


def checked(results: Mapping[str, Tensor], wanted: Iterable[str]) -> Iterable[TensorParts]:
    """The wanted outputs, ready to be written. Raises ValueError or LoadFailed for what cannot be a tensor."""
    for name in wanted:
        array = results.get(name)
        if isinstance(array, np.generic):
            array = np.asarray(array)
        if not isinstance(array, np.ndarray):
            raise ValueError(f"the model returned {type(array).__name__} for output '{name}', not a numpy array")
        yield TensorParts(name, datatype_of(array), (array,))


def text_of(error: BaseException) -> str:
    """The exception's own text, else its class's name."""
    try:
        text = str(error)
    except Exception:  # a model's own exception class may fail at that too
        text = ""
    return printable(text or type(error).__name__)[:ERROR_CHARACTERS]


def printable(text: str) -> str:
    """Text that can be encoded: a lone surrogate in an exception's text must not cost the reply."""
    return text.encode(errors="backslashreplace").decode()
