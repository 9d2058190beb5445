"""A random two-layer Llama whose odd shapes (three query heads per key head) show what square ones would hide."""

from array import array
from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from warmroute_worker.attention.torch import TorchAttention
from warmroute_worker.core import Output, Request, SamplingParams
from warmroute_worker.engine import Engine
from warmroute_worker.kv_pool import KVPool
from warmroute_worker.model.llama import Llama
from warmroute_worker.model.loader import open_checkpoint
from warmroute_worker.text import OutputText

CONTEXT = 256
CHAT_TEMPLATE = (
    "{% for message in messages %}<s>{{ message['role'] }}:{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant:{% endif %}"
)


def save_toy(folder: Path, **changes: object) -> Path:
    """A Hugging Face folder written by transformers itself: model, tokenizer (bytes), chat template."""
    torch.manual_seed(7)
    shape = {
        "vocab_size": 260,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": False,
        "bos_token_id": 256,
        "eos_token_id": 257,
    }
    config = LlamaConfig(**(shape | changes))
    # Large weights: logits far apart, so that rounding cannot change which is the greatest.
    config.initializer_range = 0.3
    LlamaForCausalLM(config).eval().save_pretrained(folder)
    _byte_tokenizer().save_pretrained(folder)
    return folder


def _byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each byte, and four special ones behind them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<s>", "</s>", "<pad>", "<unk>"]
    vocab = {token: index for index, token in enumerate(alphabet + special)}
    fast = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=fast, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


class ToyEngine:
    """An engine that is stepped by hand, on this thread, so that a test sees every state."""

    def __init__(
        self, folder: Path, *, pool: int = 512, page_size: int = 1, chunk: int = 64, max_running: int = 8
    ) -> None:
        checkpoint = open_checkpoint(str(folder))
        model = Llama(checkpoint.config, checkpoint.tensor)
        shape = checkpoint.config
        kv_pool = KVPool(
            shape.layers, shape.kv_heads, shape.head_dim, num_pages=pool // page_size, page_size=page_size
        )
        self.engine = Engine(
            model,
            TorchAttention(kv_pool, shape.heads, shape.kv_heads),
            kv_pool,
            eos_ids=checkpoint.tokenizer.eos_ids,
            context=CONTEXT,
            chunk=chunk,
            max_running=max_running,
        )
        self.decode = checkpoint.tokenizer.decode
        self.outputs: dict[Request, list[Output]] = {}

    def request(
        self,
        prompt: Iterable[int],
        max_tokens: int = 8,
        *,
        salt: str = "",
        ignore_eos: bool = True,
        **sampling: object,
    ) -> Request:
        """Put a request in line. Greedy unless `sampling` says otherwise."""
        params = SamplingParams(max_tokens, ignore_eos=ignore_eos, **{"temperature": 0.0, **sampling})  # type: ignore[arg-type]
        text = OutputText(self.decode, params.stop)
        outputs: list[Output] = []
        request = Request(array("q", prompt), params, text, outputs.append, salt)
        self.outputs[request] = outputs
        self.engine.scheduler.add(request)
        return request

    def step(self) -> None:
        self.engine.step()
        self.assert_accounted()

    def run(self) -> None:
        """To the end of all requests."""
        for _ in range(10_000):
            if not (self.engine.scheduler.running or self.engine.scheduler.waiting):
                return
            self.step()
        raise AssertionError("the requests do not end")

    def generate(self, prompt: Iterable[int], max_tokens: int = 8, **options: object) -> list[int]:
        request = self.request(prompt, max_tokens, **options)  # type: ignore[arg-type]
        self.run()
        return self.generated(request)

    @staticmethod
    def generated(request: Request) -> list[int]:
        return list(request.tokens[len(request.prompt) :])

    def text(self, request: Request) -> str:
        return "".join(output.text for output in self.outputs[request])

    def assert_accounted(self) -> None:
        """Every slot is free, in the cache, or in the row of one request."""
        engine = self.engine
        cached = engine.cache.evictable + engine.cache.protected
        held = engine.scheduler.held_outside_the_cache
        assert engine.pool.free_slots + cached + held == engine.pool.num_slots

    def assert_nothing_leaked(self) -> None:
        for request in [*self.engine.scheduler.running, *self.engine.scheduler.waiting]:
            self.engine.scheduler.release(request)
        assert self.engine.cache.protected == 0
        self.engine.cache.flush()
        assert self.engine.pool.free_slots == self.engine.pool.num_slots
