"""The model's own tokenizer and chat template."""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import orjson
from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from .errors import InvalidRequest, WorkerError


class Tokenizer:
    def __init__(
        self, fast: FastTokenizer, *, eos: Sequence[int], chat_template: str | None, special: dict[str, str]
    ) -> None:
        """`special` are the names that a template may use, such as `bos_token`."""
        self._fast = fast
        self._special = special
        self._template = _compile(chat_template) if chat_template else None
        self.eos_ids = frozenset(eos)

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """`tokenizer.json` and its companions, as Hugging Face lays them out."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise WorkerError(f"{folder} has no tokenizer.json")
        try:
            fast = FastTokenizer.from_file(str(path))
        except Exception as error:  # the Rust library raises nothing more special
            raise WorkerError(f"{path} is not a tokenizer: {error}") from error
        config = _optional_json(folder / "tokenizer_config.json")
        template_file = folder / "chat_template.jinja"
        template = template_file.read_text() if template_file.is_file() else _default_template(config)
        special = {
            name: text for name in ("bos_token", "eos_token", "pad_token") if (text := _token_text(config, name))
        }
        return cls(fast, eos=_eos_ids(folder, fast, special), chat_template=template, special=special)

    @classmethod
    def from_bpe(
        cls,
        *,
        tokens: Sequence[str],
        merges: Sequence[str],
        special: Sequence[str],
        split: str,
        bos: int | None,
        eos: int,
        add_bos: bool,
        chat_template: str | None,
    ) -> "Tokenizer":
        """Byte-level BPE as a GGUF file describes it; `split` is llama.cpp's name of the pre-tokenizer."""
        if split not in _SPLITS:
            raise WorkerError(f"the pre-tokenizer {split!r} is not supported, only {', '.join(_SPLITS)}")
        if add_bos:
            raise WorkerError("a tokenizer that adds a first token by itself is not supported in a GGUF file")
        vocab = {token: index for index, token in enumerate(tokens)}
        pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
        fast = FastTokenizer(models.BPE(vocab=vocab, merges=pairs))
        fast.pre_tokenizer = pre_tokenizers.Sequence(_SPLITS[split])
        fast.decoder = decoders.ByteLevel()
        fast.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
        names = {"eos_token": tokens[eos]} | ({} if bos is None else {"bos_token": tokens[bos]})
        return cls(fast, eos=[eos], chat_template=chat_template, special=names)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = self._fast.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._fast.decode(ids, skip_special_tokens=True)
        return text

    @property
    def vocab_size(self) -> int:
        size: int = self._fast.get_vocab_size()
        return size

    def encode_chat(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """The prompt up to where the assistant's answer begins. Raises InvalidRequest where the template refuses."""
        if self._template is None:
            raise InvalidRequest("this model has no chat template: use /v1/completions", param="messages")
        try:
            text = self._template.render(messages=messages, add_generation_prompt=True, **self._special)
        except (TemplateError, TypeError, ValueError, LookupError) as error:  # it computes with what the client sent
            raise InvalidRequest(f"the model's chat template refuses this: {error}", param="messages") from error
        # The template has written the special tokens already.
        return self.encode(text, add_special_tokens=False)


# GPT-2's ByteLevel splitting, behind what each model does with digits before it.
_SPLITS: dict[str, list[Any]] = {
    "smollm": [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ],
    "gpt-2": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "llama-bpe": [
        pre_tokenizers.Split(
            Regex(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
                r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            ),
            "isolated",
        ),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ],
}


def _compile(chat_template: str) -> Template:
    """Templates come with the model's files: they are run without access to anything."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.filters["tojson"] = _to_json
    try:
        return environment.from_string(chat_template)
    except TemplateError as error:
        raise WorkerError(f"the model's chat template is broken: {error}") from error


def _to_json(
    value: Any,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
    ensure_ascii: bool = False,
) -> str:
    """As transformers writes it, space for space, or prompts would differ; Jinja's own would escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _optional_json(path: Path) -> dict[str, Any]:
    try:
        content = orjson.loads(path.read_bytes()) if path.is_file() else {}
    except orjson.JSONDecodeError as error:
        raise WorkerError(f"{path} is not JSON: {error}") from error
    return content if isinstance(content, dict) else {}


def _default_template(config: dict[str, Any]) -> str | None:
    """Some models have several, by name."""
    template = config.get("chat_template")
    if isinstance(template, list):
        return next((each["template"] for each in template if each.get("name") == "default"), None)
    return template


def _token_text(config: dict[str, Any], name: str) -> str | None:
    token = config.get(name)
    return token.get("content") if isinstance(token, dict) else token


def _eos_ids(folder: Path, fast: FastTokenizer, special: dict[str, str]) -> list[int]:
    for name in ("generation_config.json", "config.json"):
        ids = _optional_json(folder / name).get("eos_token_id")
        if ids is not None:
            return [ids] if isinstance(ids, int) else list(ids)
    eos = fast.token_to_id(special.get("eos_token", ""))
    return [] if eos is None else [eos]
