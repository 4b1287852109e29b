"""How an instance waits for its next call."""

import socket
import threading

from ekiben.runner.worker import _Wait


def test_it_takes_every_packet_asleep_or_awake_and_sees_the_end() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    wait, buffer = _Wait(theirs), bytearray(100)
    with ours, theirs:
        for lone in (False, True):
            wait.lone = lone
            for length in range(1, 50):
                sender = threading.Timer(length % 3 / 5000, ours.send, (b"x" * length,))
                sender.start()
                assert wait.packet_into(buffer) == length
                sender.join()
        ours.close()
        assert wait.packet_into(buffer) == 0
