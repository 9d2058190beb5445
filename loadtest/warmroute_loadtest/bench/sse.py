"""Server-sent events, as far as OpenAI's streams use them: the data of each event, wherever its bytes are cut."""


class EventReader:
    """Reads the stream piece by piece. Names and ids of events are not kept: nobody sends any."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._after_return = False

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of every event that ends within this piece."""
        if self._after_return and piece:
            # The second half of a line's end that was cut in two.
            self._after_return = False
            piece = piece.removeprefix(b"\n")
        if not piece:
            return []
        lines = (self._rest + piece).splitlines(keepends=True)  # of bytes: at \n, \r and \r\n, as the standard says
        self._rest = b"" if lines[-1].endswith((b"\n", b"\r")) else lines.pop()
        self._after_return = piece.endswith(b"\r")
        events = []
        for raw in lines:
            line = raw.rstrip(b"\r\n")
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data.clear()
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
            elif line == b"data":
                self._data.append(b"")
        return events
