"""The service.py that `ekiben serve` starts: where it is, and what it declares."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ekiben.errors import LoadFailed, NotFound
from ekiben.repository.layout import Reader
from ekiben.settings import Settings

__all__ = ["SERVICE", "declared_reader", "service_folder"]

SERVICE: Final = "service:Engine"
"""As BentoML names it: module and attribute."""

_FILE: Final = "service.py"


def service_folder() -> Path:
    """Where service.py is: here, or beside the package. Raises NotFound."""
    for folder in (Path.cwd(), Path(__file__).absolute().parents[1]):
        if (folder / _FILE).is_file():
            return folder
    raise NotFound(f"there is no {_FILE} here; run `ekiben serve` in the project's folder")


def declared_reader() -> Callable[[Settings], Reader] | None:
    """What opens the models that the service would serve; None where there is no service, or one that declares nothing.

    Imports BentoML and runs service.py. Raises LoadFailed when that fails.
    """
    try:
        folder = service_folder()
    except NotFound:
        return None
    loader = importlib.import_module("_bentoml_impl.loader")
    try:
        service = loader.import_service(SERVICE, str(folder))
    except (Exception, SystemExit) as error:  # anyone may have written it
        raise LoadFailed(
            f"{folder / _FILE} cannot be imported, and what it declares is left out: {type(error).__name__}: {error}"
        ) from None
    return service.reader if isinstance(service, importlib.import_module("ekiben.app").EngineService) else None
