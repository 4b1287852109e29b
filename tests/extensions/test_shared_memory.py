"""Regions: what may be opened, what lies inside, and what a client that cuts its object does to us."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ekiben.errors import (
    AlreadyExists,
    CannotOpen,
    EkibenError,
    InvalidRequest,
    NotFound,
    Unavailable,
    Unsupported,
)
from ekiben.extensions.shared_memory import (
    NO_REGIONS,
    Region,
    Regions,
    Window,
    check_no_cuda,
    cuda_refusal,
    most_regions,
)
from tests.shm_object import DIRECTORY, ShmObject, descriptors, free_name


@pytest.fixture
def regions() -> Regions:
    return Regions(1 << 20, 8)


@pytest.fixture
def memory() -> Iterator[ShmObject]:
    with ShmObject(64) as made:
        yield made


@contextlib.contextmanager
def removed(path: Path) -> Iterator[Path]:
    try:
        yield path
    finally:
        path.unlink() if not path.is_dir() or path.is_symlink() else path.rmdir()


def refused(kind: type[EkibenError], regions: Regions, key: str, offset: int = 0, size: int = 1) -> str:
    before = descriptors()
    with pytest.raises(kind) as caught:
        regions.register("r", key, offset, size)
    assert regions.status() == []
    assert descriptors() == before
    return str(caught.value)


def test_windows_read_and_write_where_they_say(regions: Regions, memory: ShmObject) -> None:
    memory.put(bytes(range(64)))
    regions.register("r", memory.key, 3, 50)
    window = regions.window("r", 5, 7)
    assert bytes(window.read()) == bytes(range(8, 15))
    window.write(b"ab")
    window.write(memoryview(b"xyz"))
    window.write(b"")
    assert memory.get(9, 7) == b"\x07xyz\x0b\x0c\x0d\x0e\x0f"
    assert bytes(regions.window("r", 49, 1).read()) == bytes([52])
    assert bytes(regions.window("r", 0, 0).read()) == b""


def test_a_key_has_a_slash_or_not(regions: Regions, memory: ShmObject) -> None:
    for key in (memory.key, memory.name):
        regions.register(key, key, 0, 64)
        assert [(each.name, each.key, each.offset, each.byte_size) for each in regions.status(key)] == [
            (key, key, 0, 64)
        ]
    regions.window(memory.key, 0, 4).write(b"both")
    assert bytes(regions.window(memory.name, 0, 4).read()) == b"both"


@pytest.mark.parametrize(
    "key",
    [
        "", "/", ".", "..", "/.", "/..", "//x", "x/", "x/y", "/../etc/passwd", "../x", "/dev/shm/x", "x\0", "\0",
        "n" * 256, "é" * 128, "/" + "n" * 300_000,
    ],
)  # fmt: skip
def test_a_key_is_one_name_and_no_path(regions: Regions, key: str) -> None:
    text = refused(InvalidRequest, regions, key)
    assert text.startswith("the key of a shared-memory object is one name of at most 255 bytes")
    assert len(text) < 400


def test_an_object_that_is_not_there_is_said_in_tritons_words(regions: Regions) -> None:
    key = f"/{free_name()}"
    assert refused(CannotOpen, regions, key) == f"Unable to open shared memory region: '{key}'"


def test_a_symbolic_link_is_not_followed(regions: Regions, memory: ShmObject, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"s" * 64)
    for target in (secret, memory.path):
        with removed(DIRECTORY / free_name()) as link:
            link.symlink_to(target)
            assert refused(CannotOpen, regions, link.name).startswith(
                f"Unable to open shared memory region: '{link.name}': "
            )


def test_only_shared_memory_objects_are_opened(regions: Regions) -> None:
    with removed(DIRECTORY / free_name()) as folder:
        folder.mkdir()
        assert "Is a directory" in refused(CannotOpen, regions, folder.name)
    with removed(DIRECTORY / free_name()) as pipe:
        os.mkfifo(pipe)
        assert "is not a shared-memory object" in refused(InvalidRequest, regions, pipe.name)
    with removed(DIRECTORY / free_name()) as place, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        assert "No such device" in refused(CannotOpen, regions, place.name)


@pytest.mark.parametrize(
    ("offset", "size", "text"),
    [
        (0, 65, "offset 0 and byte_size 65 reach beyond the 64 bytes"),
        (64, 1, "reach beyond the 64 bytes"),
        ((1 << 64) - 1, 1, "reach beyond"),
        (1, (1 << 64) - 1, "reach beyond"),
        (0, 0, "byte_size must be 1 or more and offset 0 or more, got 0 and 0"),
        (0, -1, "got -1 and 0"),
        (-1, 5, "got 5 and -1"),
    ],
)
def test_a_region_lies_inside_its_object(
    regions: Regions, memory: ShmObject, offset: int, size: int, text: str
) -> None:
    message = refused(InvalidRequest, regions, memory.key, offset, size)
    assert message.startswith("failed to register shared memory region 'r': invalid args: ")
    assert text in message


@pytest.mark.parametrize(
    ("offset", "size", "text"),
    [
        (50, 1, "Invalid offset for shared memory region: 'r' has 50 bytes, got 50"),
        (50, 0, "Invalid offset for shared memory region: 'r'"),
        (1 << 70, 0, "Invalid offset for shared memory region: 'r'"),
        (49, 2, "Invalid offset + byte size for shared memory region: 'r' has 50 bytes, got 49 + 2"),
        (0, 51, "Invalid offset + byte size for shared memory region: 'r'"),
        (1, (1 << 64) - 1, "Invalid offset + byte size for shared memory region: 'r'"),
    ],
)
def test_a_window_lies_inside_its_region(
    regions: Regions, memory: ShmObject, offset: int, size: int, text: str
) -> None:
    regions.register("r", memory.key, 3, 50)
    with pytest.raises(InvalidRequest) as caught:
        regions.window("r", offset, size)
    assert text in str(caught.value)


def test_names(regions: Regions, memory: ShmObject) -> None:
    for name in ("", "n" * 1025):
        with pytest.raises(InvalidRequest, match="has a name of 1 to 1024 characters"):
            regions.register(name, memory.key, 0, 1)
    regions.register("r", memory.key, 0, 1)
    before = descriptors()
    with pytest.raises(AlreadyExists, match="shared memory region 'r' already in manager"):
        regions.register("r", memory.key, 0, 2)
    assert descriptors() == before
    assert [each.byte_size for each in regions.status("r")] == [1]
    with pytest.raises(NotFound, match="Unable to find shared memory region: 'zzz'"):
        regions.window("zzz", 0, 1)
    with pytest.raises(NotFound, match="Unable to find system shared memory region: 'zzz'"):
        regions.status("zzz")
    with pytest.raises(NotFound, match=r".{20}") as caught:
        regions.window("z" * 100_000, 0, 1)
    assert len(str(caught.value)) < 300


def test_unregistering_frees_the_name_and_the_descriptor(regions: Regions, memory: ShmObject) -> None:
    before = descriptors()
    for name in ("b", "a", "c"):
        regions.register(name, memory.key, 0, 64)
    assert [each.name for each in regions.status()] == ["a", "b", "c"]
    regions.unregister("nope")
    regions.unregister("a")
    assert descriptors() == before + 2
    regions.register("a", memory.key, 8, 8)
    regions.unregister()
    assert regions.status() == []
    assert descriptors() == before


def test_who_has_a_window_keeps_the_object(regions: Regions, memory: ShmObject) -> None:
    before = descriptors()
    memory.put(b"old")
    regions.register("r", memory.key, 0, 3)
    window = regions.window("r", 0, 3)
    regions.unregister("r")
    with ShmObject(3) as other:
        other.put(b"new")
        regions.register("r", other.key, 0, 3)
        assert (bytes(window.read()), bytes(regions.window("r", 0, 3).read())) == (b"old", b"new")
        window.write(b"OLD")
        assert (memory.get(3), other.get(3)) == (b"OLD", b"new")
        regions.unregister()
        del window
    assert descriptors() == before


def test_an_object_lives_on_without_its_key(regions: Regions, memory: ShmObject) -> None:
    regions.register("r", memory.key, 0, 64)
    memory.path.unlink()
    memory.put(b"x")
    assert bytes(regions.window("r", 0, 1).read()) == b"x"


def test_a_cut_object_is_an_error(regions: Regions, memory: ShmObject) -> None:
    regions.register("r", memory.key, 0, 64)
    window = regions.window("r", 10, 20)
    for size in (29, 11, 10, 0):
        memory.cut(size)
        for meet in (window.read, lambda: window.write(b"x" * 20)):
            with pytest.raises(
                InvalidRequest, match=r"'r': the object '/ekiben.* has become shorter than the 64 bytes"
            ):
                meet()
        assert memory.size() == size
    memory.cut(30)
    assert bytes(window.read()) == bytes(20)


def test_memory_that_is_not_there_is_an_error() -> None:
    """A read-only descriptor stands for every failure to write: this machine's memory should not be filled for it."""
    with ShmObject(8) as memory:
        regions = Regions(1)
        regions.register("r", memory.key, 0, 8)
        region = regions.status("r")[0]
        read_only = os.open(memory.path, os.O_RDONLY)
        os.dup2(read_only, region.opened.descriptor)
        os.close(read_only)
        with pytest.raises(Unavailable, match="cannot write to shared memory region 'r': Bad file descriptor"):
            Window(region, 0, 8).write(b"x")


def test_regions_are_bounded(regions: Regions, memory: ShmObject) -> None:
    before = descriptors()
    for number in range(8):
        regions.register(str(number), memory.key, 0, 1)
    for number in range(8, 10_000):
        with pytest.raises(Unavailable, match="there are 8 regions, the most there may be; unregister one first"):
            regions.register(str(number), memory.key, 0, 1)
    assert len(regions.status()) == 8
    assert descriptors() == before + 8


@pytest.mark.parametrize(("descriptors", "most"), [(-1, 1024), (0, 1), (3, 1), (1024, 256), (20_000, 1024)])
def test_regions_leave_descriptors_for_the_rest(descriptors: int, most: int) -> None:
    assert most_regions(descriptors) == most


def test_descriptors_do_not_reach_child_processes(regions: Regions, memory: ShmObject) -> None:
    regions.register("r", memory.key, 0, 1)
    (region,) = regions.status()
    assert isinstance(region, Region)
    assert not os.get_inheritable(region.opened.descriptor)


def test_where_it_is_off_everything_is_refused() -> None:
    for call in (
        lambda: NO_REGIONS.register("r", "/k", 0, 1),
        lambda: NO_REGIONS.unregister("r"),
        lambda: NO_REGIONS.status("r"),
        lambda: NO_REGIONS.window("r", 0, 1),
    ):
        with pytest.raises(Unsupported) as caught:
            call()
        assert str(caught.value) == (
            "this server does not take shared memory from clients (region 'r'): start it with --allow-client-shm "
            "(setting allow_client_shm)"
        )
    with pytest.raises(Unsupported, match="from clients: start it"):
        NO_REGIONS.status()
    assert NO_REGIONS.extensions == ()


def test_cuda() -> None:
    check_no_cuda()
    with pytest.raises(NotFound, match="Unable to find cuda shared memory region: 'r'"):
        check_no_cuda("r")
    assert "CUDA shared memory is not supported here" in str(cuda_refusal("r"))
