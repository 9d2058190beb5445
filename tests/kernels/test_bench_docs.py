"""docs/kernels.md: its example runs, and its pictures are there."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "kernels.md").read_text(encoding="utf-8")

CHECK = """
keys, values = (each.transpose(0, 1)[None] for each in kv.gathered(slots_of(page_table[0], 21, page_size)))
query = q.double().transpose(0, 1)[None]
truth = torch.nn.functional.scaled_dot_product_attention(query, keys, values, enable_gqa=True)[0].transpose(0, 1)
# p and the output are rounded to float16 (2**-11 each) where |v| is below 8.
print("right" if (out.double() - truth).abs().max() < 2 * 8 * 2**-11 else "wrong")
"""


def test_the_example_runs_as_it_stands(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "example.py").write_text(example + CHECK)
    done = subprocess.run([sys.executable, tmp_path / "example.py"], capture_output=True, text=True, timeout=120)
    assert done.stdout == "right\n", done.stderr


def test_its_pictures_are_there() -> None:
    pictures = re.findall(r"!\[[^\]]+\]\((\S+\.svg)\)", PAGE)
    assert len(pictures) == 4
    for name in pictures:
        assert ElementTree.parse(DOCS / name).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_what_programs_write_has_its_markers() -> None:
    for name in ("measured", "compiled"):
        assert PAGE.count(f"<!-- {name} -->") == PAGE.count(f"<!-- /{name} -->") == 1
