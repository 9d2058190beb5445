"""What is under way on each worker, as routers that count more than requests see it."""

from collections import Counter, defaultdict, deque
from collections.abc import Sequence

from warmroute_router.blocks import PromptBlocks
from warmroute_router.policies import WorkerView

from .sent_blocks import leading


class PendingPrefill:
    """Requests sent and not yet answered by a first byte, and the tokens that they are thought to have to compute."""

    def __init__(self) -> None:
        self.requests: Counter[int] = Counter()
        self.tokens: Counter[int] = Counter()
        self._sent: defaultdict[tuple[int, int, int], deque[int]] = defaultdict(deque)
        """By worker and prompt. Equal prompts on one worker may swap their tokens: the sum is the same."""

    def begin(self, prompt: PromptBlocks, worker: WorkerView, tokens: int) -> None:
        self._sent[_key(prompt, worker)].append(tokens)
        self.requests[worker.index] += 1
        self.tokens[worker.index] += tokens

    def finish(self, prompt: PromptBlocks, worker: WorkerView) -> None:
        key = _key(prompt, worker)
        self.tokens[worker.index] -= self._sent[key].popleft()
        self.requests[worker.index] -= 1
        if not self._sent[key]:
            del self._sent[key]


class RunningBlocks:
    """Distinct blocks of the requests in flight. Each request has one more, the one that is being written."""

    def __init__(self) -> None:
        self._uses: defaultdict[int, dict[int, int]] = defaultdict(dict)
        self._requests: Counter[int] = Counter()

    def begin(self, prompt: PromptBlocks, worker: WorkerView) -> None:
        uses = self._uses[worker.index]
        for block in prompt.hashes:
            uses[block] = uses.get(block, 0) + 1
        self._requests[worker.index] += 1

    def finish(self, prompt: PromptBlocks, worker: WorkerView) -> None:
        uses = self._uses[worker.index]
        for block in prompt.hashes:
            left = uses.pop(block) - 1
            if left:
                uses[block] = left
        self._requests[worker.index] -= 1

    def blocks(self, worker: int) -> int:
        return len(self._uses[worker]) + self._requests[worker]

    def blocks_with(self, hashes: Sequence[int], worker: int) -> int:
        """As many as there would be with this prompt too."""
        return self.blocks(worker) + len(hashes) - leading(hashes, self._uses[worker]) + 1


def _key(prompt: PromptBlocks, worker: WorkerView) -> tuple[int, int, int]:
    return worker.index, prompt.digest, prompt.tokens
