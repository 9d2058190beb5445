"""Each compilation is a process of its own: here Triton may be an interpreter, and that cannot be undone."""

import json
import os
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import pytest
from warmroute_kernels.compile_check.arch import ARCHS
from warmroute_kernels.compile_check.check import MODULES, Job, Result, _specimens, jobs
from warmroute_kernels.compile_check.cli import told
from warmroute_kernels.compile_check.compiler import Resources, hints, read_log
from warmroute_kernels.compile_check.table import page
from warmroute_kernels.extend.kernel import NAMED
from warmroute_kernels.specimen import Specimen

SM_80, SM_90, SM_100 = ARCHS

KERNELS = """
import triton
import triton.language as tl
from warmroute_kernels.language import dot
from warmroute_kernels.specimen import Specimen


@triton.jit
def product(a_ptr, b_ptr, out_ptr, inner, stride_a, stride_b, BLOCK: tl.constexpr, INNER: tl.constexpr):
    rows = tl.arange(0, BLOCK)
    across = tl.arange(0, INNER)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for begin in range(0, inner, INNER):
        a = tl.load(a_ptr + rows[:, None] * stride_a + (begin + across)[None, :])
        b = tl.load(b_ptr + (begin + across)[:, None] * stride_b + rows[None, :])
        total += dot(a, b.to(a.dtype))
    tl.store(out_ptr + rows[:, None] * BLOCK + rows[None, :], total)


@triton.jit
def broken(out_ptr, BLOCK: tl.constexpr):
    tl.store(out_ptr + tl.arange(0, BLOCK), nobody_defined_this)


def specimen(name, block, stages, cache):
    types = dict(a_ptr="*bf16", b_ptr=cache, out_ptr="*fp32", inner="i32", stride_a="i32", stride_b="i32")
    signature = types | dict(BLOCK="constexpr", INNER="constexpr")
    return Specimen(name, product, signature, dict(BLOCK=block, INNER=64), 4, stages)
"""


@pytest.fixture
def compile_these(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Runs the check over specimens, given as the text of their list."""

    def run(specimens: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "toy.py").write_text(f"{KERNELS}\n\ndef specimens():\n    return [{specimens}]\n")
        (tmp_path / "go.py").write_text(
            "import sys\n"
            "from warmroute_kernels.compile_check.check import check, jobs\n"
            "from warmroute_kernels.compile_check.cli import told\n"
            "if __name__ == '__main__':\n"
            "    sys.exit(told(list(check(jobs(['toy'])))))\n"
        )
        return _python(str(tmp_path / "go.py"))

    return run


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=900, check=False
    )


def test_each_of_our_kernels_compiles_for_some_architecture_and_some_for_each() -> None:
    """All of them for all is `make compile-kernels`, and takes minutes."""
    done = _python("-m", "warmroute_kernels.compile_check", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    for name in [*(module.split(".")[1] for module in MODULES), *(f".* {arch.name}" for arch in ARCHS)]:
        assert re.search(rf"^{name}.* yes$", done.stdout, re.MULTILINE), (name, done.stdout)


def test_a_kernel_that_does_not_compile_is_named_and_the_others_are_still_compiled(compile_these) -> None:  # type: ignore[no-untyped-def]
    done = compile_these(
        'Specimen("the broken one", broken, dict(out_ptr="*fp32", BLOCK="constexpr"), dict(BLOCK=16), 4, 1),'
        'specimen("the good one", 64, 2, "*bf16")'
    )
    assert done.returncode == 1, done.stderr
    assert re.search(r"^error: the broken one on sm_90: .*nobody_defined_this", done.stdout, re.MULTILINE)
    assert "error: the good one" not in done.stdout
    assert len(re.findall(r"^the good one .* yes$", done.stdout, re.MULTILINE)) == 3


def test_shared_memory_that_an_architecture_does_not_have_is_an_error(compile_these) -> None:  # type: ignore[no-untyped-def]
    # Six stages of 2 * 128 * 64 bfloat16 are 192 KB: more than an A100 has, less than an H100.
    done = compile_these('specimen("deep", 128, 7, "*bf16")')
    assert done.returncode == 1, done.stderr
    assert re.search(r"^error: deep on sm_80: [\d,]+ bytes of shared memory, sm_80 has 166,912$", done.stdout, re.M)
    assert re.search(r"^deep +sm_90 .* yes$", done.stdout, re.MULTILINE)


def test_fp8_is_left_to_architectures_that_have_it(compile_these) -> None:  # type: ignore[no-untyped-def]
    done = compile_these('specimen("small", 64, 2, "*fp8e4nv")')
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^small +(sm_\d+)", done.stdout, re.MULTILINE) == ["sm_90", "sm_100"]


def test_registers_are_those_that_the_disassembler_counts(tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(
        f"{KERNELS}\n"
        "import subprocess, tempfile\n"
        "from warmroute_kernels.compile_check import compiler\n"
        "from warmroute_kernels.compile_check.arch import ARCHS\n"
        "compile = triton.compile\n"
        "def keep(*a, **k):\n"
        "    global kept\n"
        "    kept = compile(*a, **k)\n"
        "    return kept\n"
        "triton.compile = keep\n"
        "for arch in ARCHS:\n"
        "    found = compiler.compiled(specimen('any', 64, 2, '*bf16'), arch)\n"
        "    with tempfile.NamedTemporaryFile(suffix='.cubin') as file:\n"
        "        file.write(kept.asm['cubin'])\n"
        "        file.flush()\n"
        "        tool = triton.knobs.nvidia.cuobjdump.path\n"
        "        said = subprocess.check_output([tool, '--dump-resource-usage', file.name], text=True)\n"
        "    assert f'REG:{found.registers} ' in said, (found, said)\n"
        "    assert found.shared > 0 and found.registers > 0\n"
        "print('all alike')\n"
    )
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run([sys.executable, tmp_path / "toy.py"], env=environment, capture_output=True, text=True)
    assert done.stdout == "all alike\n", done.stderr


def test_pointers_and_strides_are_hinted_as_aligned_unless_the_kernel_does_not_look() -> None:
    signature = {"q_ptr": "*bf16", "tokens": "i32", "stride_row": "i64", "stride_one": "constexpr"}
    signature |= {"scale": "fp32", "stride_table": "i32", "table": "*i32"}
    params = [
        SimpleNamespace(
            name=name,
            do_not_specialize=name == "stride_table",
            do_not_specialize_on_alignment=name == "table",
        )
        for name in signature
    ]
    specimen = Specimen("any", SimpleNamespace(params=params), signature, {"stride_one": 1}, 4, 2)
    assert list(hints(specimen)) == [(0,), (2,)]


def test_what_a_gpu_alone_is_given_is_compiled_for_it_alone() -> None:
    specimen = Specimen("any", None, {"q_ptr": "*bf16"}, {}, 4, 2, only=90)
    assert [arch.takes(specimen) for arch in ARCHS] == [False, True, False]


def test_nothing_is_compiled_twice() -> None:
    """Of the second there would be no log: it comes from the cache."""
    found = [(repr(_specimens(job.module)[job.place]._replace(name="", only=None)), job.arch.name) for job in jobs()]
    assert len(set(found)) == len(found) > 300


def test_every_gpu_with_tiles_of_its_own_is_compiled_for() -> None:
    told = json.loads((files("warmroute_kernels") / "tuning/extend.json").read_text())
    assert set(told) - {"about", "default", "cpu"} == set(NAMED)


def test_what_the_assembler_says_is_read() -> None:
    log = (
        "ptxas info    : 0 bytes gmem\n"
        "ptxas info    : Compiling entry function 'k' for 'sm_90a'\n"
        "    16 bytes stack frame, 24 bytes spill stores, 32 bytes spill loads\n"
        "ptxas info    : Used 168 registers, used 1 barriers, 16 bytes cumulative stack size\n"
    )
    assert read_log(log) == (168, 24, 32)
    with pytest.raises(ValueError, match="did not tell"):
        read_log("ptxas info    : 0 bytes gmem\n")


def test_spills_are_told_and_are_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert told([_result(SM_90, Resources(255, 24, 32, 1024, 0))]) == 0
    said = capsys.readouterr().out
    assert "1 compiled, 1 of them spill registers\nspills: some on sm_90" in said
    assert "24 + 32" in said


def test_the_page_shows_the_usual_ones_and_those_that_spill() -> None:
    usual, other, spilling = (
        Result(Job("module", place, name, SM_90), Resources(99, spilled, spilled, 0, 0), None)
        for place, (name, spilled) in enumerate((("usual", 0), ("other", 0), ("spilling", 8)))
    )
    shown = page([usual, other, spilling], [usual.job])
    assert "3 variants were compiled, and 1 of them spill" in shown
    assert [line.split(" | ")[0] for line in shown.splitlines()[4:]] == ["| usual", "| spilling"]


@pytest.mark.parametrize(
    ("arch", "shared", "tensor_memory", "fits"),
    [
        (SM_80, 166_912, 0, True),
        (SM_80, 166_913, 0, False),
        (SM_90, 232_448, 0, True),
        (SM_90, 232_449, 0, False),
        (SM_100, 0, 512, True),
        (SM_100, 0, 513, False),
    ],
)
def test_what_fits(arch, shared, tensor_memory, fits, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    result = _result(arch, Resources(32, 0, 0, shared, tensor_memory))
    assert told([result]) == (0 if fits else 1)
    assert page([result], [result.job]).endswith("| yes |" if fits else "| no |")
    capsys.readouterr()


def _result(arch, resources: Resources) -> Result:  # type: ignore[no-untyped-def]
    return Result(Job("module", 0, "some", arch), resources, None)
