"""A slow link in front of a server: a TCP proxy that tests slow down and break."""

import socket
import threading
from contextlib import closing, suppress

from serving.base.clock import SystemClock, pause

_PIECE_BYTES = 4_096


class SlowLink:
    """A TCP proxy that passes answers on slowly, and breaks connections if it is told to.

    `bytes_per_second` limits each connection. A connection is broken after `cut_after_bytes` of
    answers, while `cuts_left` is above 0.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._clock = SystemClock()
        self.bytes_per_second = 0
        self.cut_after_bytes = 0
        self.cuts_left = 0
        self.passed_bytes = 0
        self.connection_count = 0
        self.is_refusing = False

    def __enter__(self) -> "SlowLink":
        threading.Thread(target=self._accept, name="slow-link", daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connection_count += 1
                if self.is_refusing:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._target_port))
                for source, sink, is_answer in ((client, server, False), (server, client, True)):
                    threading.Thread(
                        target=self._pass_on, args=(source, sink, is_answer), daemon=True
                    ).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        passed = 0
        with suppress(OSError), closing(source), closing(sink):
            while data := source.recv(_PIECE_BYTES):
                if is_answer:
                    passed += len(data)
                    self.passed_bytes += len(data)
                    if self.cuts_left > 0 and passed > self.cut_after_bytes:
                        self.cuts_left -= 1
                        for end in (source, sink):
                            end.shutdown(socket.SHUT_RDWR)
                        return
                    if self.bytes_per_second:
                        pause(self._clock, len(data) / self.bytes_per_second)
                sink.sendall(data)
            for end in (source, sink):
                end.shutdown(socket.SHUT_RDWR)
