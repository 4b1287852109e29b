"""What a check is given: clients, what is known of the server, and a search among its models.

A search that finds nothing raises NotChecked, which ends the check with that reason.
"""

from collections.abc import Callable, Mapping
from typing import Final, final

from ekiben.conformance.deadline import Deadline
from ekiben.conformance.grpc_call import GrpcClient
from ekiben.conformance.http_client import HttpClient, Reply
from ekiben.conformance.infer_request import as_json, encoded, request
from ekiben.conformance.survey import Sample, Survey
from ekiben.conformance.verdicts import NotChecked, NotSupported
from ekiben.types import Tensor

__all__ = ["NO_SUCH_MODEL", "Context", "on_path"]

NO_SUCH_MODEL: Final = "conformance-no-such-model"
_MISSING: Final = (404, 405, 501)


@final
class Context:
    """For one run against one server."""

    def __init__(
        self, http: HttpClient, grpc: GrpcClient | None, survey: Survey, deadline: Deadline, allow_load: str = ""
    ) -> None:
        """`grpc` None: the gRPC points are not to be run. `allow_load`: the model that may be loaded and unloaded."""
        self.http = http
        self.survey = survey
        self.deadline = deadline
        self._grpc = grpc
        self._allow_load = allow_load

    @property
    def grpc(self) -> GrpcClient:
        if self._grpc is None:
            raise NotChecked("no gRPC address is given (--grpc)")
        return self._grpc

    def changeable(self) -> str:
        """The model that may be loaded and unloaded."""
        if not self._allow_load:
            raise NotChecked("no model may be loaded and unloaded (--allow-load)")
        return self._allow_load

    @property
    def name(self) -> str:
        """A model that should be ready, if possible one that answers."""
        if self.survey.samples:
            return self.survey.samples[0].model.name
        if not self.survey.names:
            raise NotChecked("the server lists no models: name one with --model")
        return self.survey.names[0]

    @property
    def sample(self) -> Sample:
        """The smallest model that answers in JSON."""
        return self.find(lambda _: True, "that answers a request made from its metadata")

    @property
    def not_ready(self) -> str:
        """A model that the server has and has not ready."""
        if not self.survey.not_ready:
            raise NotChecked("the index lists no model that is not ready")
        return self.survey.not_ready

    def find(self, fits: Callable[[Sample], bool], what: str) -> Sample:
        """The smallest model of that kind; `what` completes "no model …"."""
        found = next(filter(fits, self.survey.samples), None)
        if found is None:
            raise NotChecked(f"no model {what}")
        return found

    def versioned(self) -> Sample:
        """A model that says which versions it has."""
        return self.find(lambda each: bool(each.model.versions), "that lists its versions")

    def echo(self, *datatypes: str) -> Sample:
        """A model that returns its only input, of the first of the datatypes that there is one of."""
        for datatype in datatypes:
            if datatype in self.survey.echoes:
                return self.survey.echoes[datatype]
        raise NotChecked(f"no model that returns its {' or '.join(datatypes)} input")

    def binary(self) -> None:
        """Raise NotSupported where the binary extension is neither listed nor there."""
        if not self.survey.binary and "binary_tensor_data" not in self.survey.extensions:
            raise NotSupported(
                "the metadata do not list 'binary_tensor_data', and a binary request got no binary reply"
            )

    def blobs(self) -> None:
        """Raise NotChecked where tensors cannot be sent in binary."""
        if not self.survey.binary:
            raise NotChecked("the server does not take tensors in binary")

    def listed(self, extension: str) -> None:
        """Raise NotSupported where the server's metadata do not list the extension."""
        if extension not in self.survey.extensions:
            raise NotSupported(f"the metadata do not list '{extension}'")

    def infer(self, sample: Sample, inputs: Mapping[str, Tensor] | None = None, **members: object) -> Reply:
        """Ask in JSON, for the sample's inputs unless others are given; `members` as in `request`."""
        given = [as_json(name, tensor) for name, tensor in (inputs or sample.inputs).items()]
        return self.http.post(sample.path, encoded(request(given, **members)))


def on_path(reply: Reply) -> Reply:
    """The reply of an optional path. Raises NotSupported where the server says that it has it not."""
    if reply.status in _MISSING:
        raise NotSupported(f"{reply.asked} says {reply}")
    return reply
