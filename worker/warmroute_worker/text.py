"""From token ids to text, a token at a time: no half characters, and nothing of a stop string."""

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]

_INCOMPLETE = "\ufffd"


class Detokenizer:
    """Holds tokens back while their bytes end in the middle of a character."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._shown = 0
        """Tokens before this one have been given out as text."""
        self._context = 0
        """Decoding starts here, a step before `_shown`: some decoders drop the space of the first token."""

    def add(self, token: int) -> str:
        self._ids.append(token)
        text = self._pending()
        return "" if text.endswith(_INCOMPLETE) else self._give(text)

    def flush(self) -> str:
        """What is still held back, complete or not."""
        return self._give(self._pending())

    def _pending(self) -> str:
        before = self._decode(self._ids[self._context : self._shown])
        return self._decode(self._ids[self._context :])[len(before) :]

    def _give(self, text: str) -> str:
        self._context, self._shown = self._shown, len(self._ids)
        return text


class StopFilter:
    """Passes text on up to the first stop string; holds back an end that may be the start of one."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = stop
        self._held = ""
        self.stopped = False

    def add(self, text: str) -> str:
        if not self._stop:
            return text
        self._held += text
        found = [(place + len(stop), place) for stop in self._stop if (place := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            # The first to be complete, as if letters had come one by one: tokens are no unit of text.
            _, place = min(found)
            shown, self._held = self._held[:place], ""
            return shown
        keep = max(_overlap(self._held, stop) for stop in self._stop)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


class OutputText:
    """An answer's text as its tokens come."""

    def __init__(self, decode: Decode, stop: Sequence[str] = ()) -> None:
        self._detokenizer = Detokenizer(decode)
        self._filter = StopFilter(stop)

    @property
    def stopped(self) -> bool:
        return self._filter.stopped

    def add(self, token: int) -> str:
        return self._filter.add(self._detokenizer.add(token))

    def flush(self) -> str:
        text = self._filter.add(self._detokenizer.flush())
        return text if self.stopped else text + self._filter.flush()


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that is a beginning of `stop`."""
    return next((length for length in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:length])), 0)
