"""The Python of README and guides is run: each page's blocks as one program, on as many ranks as it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from deepspeed_page import ENGINE_NAMES, engine_names
from ranks import run_ranks

ROOT = Path(__file__).parents[3]
PAGES = {
    "docs/guides/own-trainer.md": 2,
    "docs/guides/migration.md": 1,
    "docs/guides/deepspeed.md": 4,
    "README.md": 4,
}


def blocks(page: str) -> list[tuple[int, str]]:
    """Every Python block with the line that it begins on."""
    text = (ROOT / page).read_text()
    return [
        (text.count("\n", 0, found.start(1)), found.group(1))
        for found in re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S)
    ]


def run_page(rank: int, page: str) -> list[str]:
    names: dict[str, Any] = {"__name__": "page"}
    used = " ".join(code for _, code in blocks(page))
    if any(re.search(rf"\b{name}\b", used) for name in ENGINE_NAMES):
        names.update(engine_names(rank))
    for line, code in blocks(page):
        exec(compile("\n" * line + code, page, "exec"), names)
    return sorted(names)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs(page: str) -> None:
    assert blocks(page), "the page has no Python"
    for names in run_ranks(PAGES[page], run_page, page):
        assert "reshard" in names


def test_links_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("python/*.md")]
    for page in pages:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.relative_to(ROOT)} links to {link}"


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new virtual environment with nothing but the wheel and what it requires."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, symlinks=True)
    wheel = os.environ["RESHARD_WHEEL"]
    install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(folder / "bin/python")]
    subprocess.run([*install, wheel], check=True)
    return folder


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def test_the_wheel_says_which_glibc_it_needs() -> None:
    assert Path(os.environ["RESHARD_WHEEL"]).name.endswith("-cp310-abi3-manylinux_2_28_x86_64.whl")


def test_a_fresh_environment_plans(fresh: Path) -> None:
    program = """
import reshard
def rows(cuts):
    builder = reshard.LayoutBuilder()
    up = builder.parameter("up.weight", (18, 4), "f32")
    for rank, count in enumerate(cuts):
        tensor = builder.tensor(rank, "up.weight", "f32", 4 * count)
        builder.place(up, tensor, origin=(sum(cuts[:rank]), 0), shape=(count, 4))
    return builder.build()
source, target = rows([9, 9]), rows([5, 5, 4, 4])
print(reshard.verify(reshard.plan(source, target), source, target))
"""
    python = str(fresh / "bin/python")
    done = subprocess.run(
        [python, "-I", "-c", program], capture_output=True, text=True, check=True, env=clean_environment()
    )
    assert done.stdout == "Verified(elements=72, copies=5)\n"


def test_the_wheel_brings_the_program(fresh: Path) -> None:
    model = ROOT / "crates/parallel/tests/data/Qwen3-8B.json"
    command = [fresh / "bin/reshard", "plan", "--model", model, "--source", "autotp:tp=2,dp=4,zero=2"]
    done = subprocess.run(
        [*command, "--target", "autotp:tp=4,copies=2"], capture_output=True, text=True, check=True
    )
    assert "15.14 GB" in done.stdout
    demo = [fresh / "bin/reshard", "demo", "--rollout", "autotp:tp=2", "--steps", "1"]
    assert subprocess.run(demo, capture_output=True, timeout=60).returncode == 0
