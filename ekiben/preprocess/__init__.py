"""From what people send to what a model takes, and from its scores to labels, as `preprocess:` in model.yaml says."""

from ekiben.preprocess.declaration import ImageDeclaration, parse
from ekiben.preprocess.image import decode, prepare
from ekiben.preprocess.rank import Label, rank, softmax, top_k

__all__ = ["ImageDeclaration", "Label", "decode", "parse", "prepare", "rank", "softmax", "top_k"]
