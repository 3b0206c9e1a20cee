"""HTTP/2, as far as gRPC's first bytes go (RFC 9113, RFC 7541), for clients that break its rules."""

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, _SETTINGS, _WINDOW_UPDATE = 0, 1, 4, 8
END_STREAM, END_HEADERS = 1, 4
_INITIAL_WINDOW_SIZE = 4
_WINDOW_MAX = 2**31 - 1
FRAME_BYTES_MAX = 2**14


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
    return head + payload


def literal(name: str, value: str) -> bytes:
    """A header without compression; name and value must be shorter than 127 bytes."""
    return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def indexed_literal(name: str, value: str) -> bytes:
    """A header that both sides keep, as the newest (index 62)."""
    return b"\x40" + _text(name) + _text(value)


def _text(text: str) -> bytes:
    """A text of any length without compression."""
    length, encoded = len(text), b"\x7f"
    if length < 127:
        return bytes([length]) + text.encode()
    length -= 127
    while length >= 128:
        encoded += bytes([length % 128 | 128])
        length //= 128
    return encoded + bytes([length]) + text.encode()


def grpc_headers(method: str) -> bytes:
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "hostile",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(literal(name, value) for name, value in headers.items())


def hello() -> bytes:
    """The preface and settings of a client that offers a window of 2 GiB."""
    window = _INITIAL_WINDOW_SIZE.to_bytes(2, "big") + _WINDOW_MAX.to_bytes(4, "big")
    grown = (_WINDOW_MAX - 65_535).to_bytes(4, "big")
    return PREFACE + frame(_SETTINGS, 0, 0, window) + frame(_WINDOW_UPDATE, 0, 0, grown)


def hello_without_window() -> bytes:
    """The preface and settings of a client that takes no byte of an answer."""
    return PREFACE + frame(_SETTINGS, 0, 0, _INITIAL_WINDOW_SIZE.to_bytes(2, "big") + bytes(4))


def calls(method: str, message: bytes, count: int) -> bytes:
    body = b"\x00" + len(message).to_bytes(4, "big") + message
    return b"".join(
        frame(HEADERS, END_HEADERS, stream, grpc_headers(method))
        + frame(DATA, END_STREAM, stream, body)
        for stream in range(1, 2 * count, 2)
    )
