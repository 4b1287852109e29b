"""What is printed once the server is ready."""

import asyncio
import shlex

from ekiben.greeting import HttpAddress, banner, call
from tests.doors.house import House


def line(address: HttpAddress, headers: dict[str, str]) -> list[str]:
    async def printed() -> str:
        house = House()
        await house.engine.start()
        text = call(address, house.engine, headers)
        await house.engine.stop()
        return text

    text = asyncio.run(printed())
    assert text.startswith("Try: ")
    return shlex.split(text.removeprefix("Try: "))


def test_the_banner() -> None:
    assert banner("http://a:1", "", 2, 0) == "Ekiben is ready: HTTP http://a:1, gRPC off (model versions: 2 served)"
    assert banner("https://a:1", "a:2", 2, 1).endswith("gRPC a:2 (model versions: 2 served, 1 not served (see above))")


def test_a_call_without_tls() -> None:
    command = line(HttpAddress("127.0.0.1", 3000), {})
    assert command[:2] == ["curl", "-d"]
    assert command[-1] == "http://127.0.0.1:3000/v2/models/a/b/infer"
    assert line(HttpAddress("::1", 3000), {})[-1].startswith("http://[::1]:3000/")


def test_a_call_over_tls_names_the_certificate_and_a_host_that_it_is_for() -> None:
    certified = HttpAddress("127.0.0.1", 3000, "/tls/my cert.pem", ("x.example", "127.0.0.1"))
    command = line(certified, {})
    assert command[:3] == ["curl", "--cacert", "/tls/my cert.pem"]
    assert command[-1].startswith("https://127.0.0.1:3000/")
    elsewhere = HttpAddress("127.0.0.1", 3000, "/tls/cert.pem", ("*.example", "x.example"), client_certificates=True)
    command = line(elsewhere, {})
    assert command[3:5] == ["--connect-to", "::127.0.0.1:3000"]
    assert command[5:9] == ["--cert", "CLIENT.pem", "--key", "CLIENT.key"]
    assert command[-1].startswith("https://x.example:3000/")
    assert line(HttpAddress("127.0.0.1", 3000, "/tls/cert.pem", ("*.example",)), {})[3] != "--connect-to"


def test_a_call_to_what_is_restricted_names_the_header() -> None:
    command = line(HttpAddress("127.0.0.1", 3000), {"inference": "Api-Key", "metadata": "Other"})
    assert command[1:3] == ["-H", "Api-Key: VALUE"]
    assert "-H" not in line(HttpAddress("127.0.0.1", 3000), {"metadata": "Other"})
