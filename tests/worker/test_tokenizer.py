"""The tokenizer and the chat template of a Hugging Face folder, against transformers' own rendering."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast
from warmroute_worker.errors import InvalidRequest, WorkerError
from warmroute_worker.tokenizer import Tokenizer

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be <brief> & naïve."},
    {"role": "user", "content": "Ω?", "tools": {"b": [1, "ü"], "a": {"x": None}}},
]


@pytest.fixture
def folder(tmp_path: Path, toy_folder: Path) -> Path:
    return Path(shutil.copytree(toy_folder, tmp_path / "model"))


def with_template(folder: Path, template: object) -> Path:
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
    return folder


@pytest.mark.parametrize(
    "template",
    [
        "{{ bos_token }}{% for m in messages %}{{ m['role'] }}:{{ m.content | trim }}{{ eos_token }}\n{% endfor %}",
        "{% for m in messages %}{{ m | tojson }}|{{ m.tools | default([]) | tojson(indent=2) }}{% endfor %}",
        "{% for m in messages %}{% if m.role == 'user' %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}\n    {% if loop.last %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\n",
        "{{ messages[0].content }}{% if add_generation_prompt %}<s>assistant{% endif %}",
    ],
)
def test_templates_render_as_transformers_renders_them(folder: Path, template: str) -> None:
    ours = Tokenizer.from_folder(with_template(folder, template))
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    wanted = theirs.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert ours.encode_chat(MESSAGES) == wanted


def test_of_several_templates_the_default_one_is_taken(folder: Path) -> None:
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "{{ messages[0].role }}"}]
    tokenizer = Tokenizer.from_folder(with_template(folder, several))
    assert tokenizer.decode(tokenizer.encode_chat(MESSAGES)) == "system"


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "str"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_what_a_template_refuses_is_the_clients_error(folder: Path, template: str, says: str) -> None:
    tokenizer = Tokenizer.from_folder(with_template(folder, template))
    with pytest.raises(InvalidRequest, match=says) as caught:
        tokenizer.encode_chat(MESSAGES)
    assert caught.value.param == "messages"


def test_a_model_without_a_template_refuses_chats(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="/v1/completions"):
        Tokenizer.from_folder(with_template(folder, None)).encode_chat(MESSAGES)


def test_broken_files_are_the_operators_error(folder: Path) -> None:
    with pytest.raises(WorkerError, match="chat template is broken"):
        Tokenizer.from_folder(with_template(folder, "{% for %}"))
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(WorkerError, match="not JSON"):
        Tokenizer.from_folder(folder)
