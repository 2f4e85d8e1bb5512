"""The house rules that a reader relies on: who imports whom, one door for each library, and what README promises."""

import argparse
import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.cli import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
HOUSE = ("fleet", "coordinator", "worker")
#: Tests of one subject stay together, so they may be longer.
MAX_LINES, MAX_TEST_LINES = 300, 500

#: Packages that may be imported from each part of the house.
MAY_IMPORT = {
    "fleet": {"fleet"},
    "coordinator": {"fleet", "coordinator"},
    "worker": {"fleet", "worker"},
}

#: Libraries of which we promise one door: patterns of the modules that may import them.
DOORS = {
    "msgpack": r"fleet\.codec",
    "msgspec": r"coordinator\.intake\.jsonl",
    "rq": r"coordinator\.broker\.dispatch|worker\.agent",
    "sqlite3": r"coordinator\.ledger\..+",
    "mlx": r"worker\..+",
    "mlx_lm": r"worker\..+",
    "tokenizers": r"coordinator\..+|worker\..+",
    "pyarrow": r"coordinator\..+",
    "rich": r"coordinator\..+",
    "matplotlib": r"worker\.plot",
    "starlette": r"coordinator\.api\..+",
    "uvicorn": r"coordinator\.api\.(server|patience)",
    "python_multipart": r"coordinator\.api\.multipart",
    "httpx": r"coordinator\.client\.fleet_client",
    "zeroconf": r"coordinator\.joining\.discovery|worker\.discover",
    "ifaddr": r"fleet\.interfaces",
}

#: Where a process starts that must never load MLX; the coordinator's modules all count besides.
FREE_OF_MLX = ("worker.supervisor", "worker.agent", "worker.link", "worker.blas", "worker.commands.bench")


def files() -> list[Path]:
    return [path for package in HOUSE for path in sorted((ROOT / package).rglob("*.py"))]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> set[str]:
    """Every module named in an import statement of the file, however deep inside; `from a import b` gives a and a.b."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide which wing is meant"
            assert node.module is not None
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


IMPORTS = {module_name(path): imports(path) for path in files()}


def test_every_package_of_the_house_was_read() -> None:
    assert {name.partition(".")[0] for name in IMPORTS} == set(HOUSE)


@pytest.mark.parametrize("module", IMPORTS)
def test_imports_go_down_only(module: str) -> None:
    ours = {name.partition(".")[0] for name in IMPORTS[module]} & set(HOUSE)
    assert ours <= MAY_IMPORT[module.partition(".")[0]]


@pytest.mark.parametrize("library", DOORS)
def test_each_library_has_its_door(library: str) -> None:
    users = {module for module, names in IMPORTS.items() if library in {name.partition(".")[0] for name in names}}
    assert {module for module in users if not re.fullmatch(DOORS[library], module)} == set()


def reached_from(start: str) -> set[str]:
    """House modules that importing `start` can load, lazy imports included."""
    seen: set[str] = set()
    todo = [start]
    while todo:
        module = todo.pop()
        if module not in seen and module in IMPORTS:
            seen.add(module)
            todo += IMPORTS[module]
    return seen


@pytest.mark.parametrize(
    "module", [name for name in IMPORTS if name.startswith(("fleet", "coordinator")) or name in FREE_OF_MLX]
)
def test_mlx_stays_in_the_engine_process(module: str) -> None:
    loaded = {name.partition(".")[0] for reached in reached_from(module) for name in IMPORTS[reached]}
    assert not loaded & {"mlx", "mlx_lm"}


@pytest.mark.parametrize("path", files(), ids=module_name)
def test_redis_keys_are_spelled_in_one_place(path: Path) -> None:
    if module_name(path) == "fleet.keys":
        return
    texts = [
        node.value for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Constant)
    ]
    assert [text for text in texts if isinstance(text, str) and re.match(r"fleet:\w", text)] == []


@pytest.mark.parametrize("path", files(), ids=module_name)
def test_a_file_is_one_noun_of_bounded_length(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


@pytest.mark.parametrize(
    "path",
    [path for folder in ("tests", "ops") for path in sorted((ROOT / folder).rglob("*.py"))],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_a_test_file_is_of_bounded_length(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_TEST_LINES


def test_importing_the_command_line_loads_no_wing() -> None:
    script = "import sys, fleet.cli; print(*sorted(name.partition('.')[0] for name in sys.modules))"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert not set(answer.stdout.split()) & {"coordinator", "worker", "numpy", "rich", "redis", "rq", "mlx", "msgpack"}


def readme_section(command: str) -> str:
    """The part of README under the heading `### fleet COMMAND`."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(rf"^### `fleet {command}\b[^\n]*\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"README.md has no section `fleet {command}`"
    return found[0]


def flags(command: str) -> set[str]:
    parser = argparse.ArgumentParser(add_help=False)
    importlib.import_module(COMMANDS[command].module).add_arguments(parser)
    return {option for action in parser._actions for option in action.option_strings}


@pytest.mark.parametrize("command", COMMANDS)
def test_readme_tells_every_command_and_flag_and_no_other(command: str) -> None:
    told = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", readme_section(command)))
    existing = flags(command)
    assert existing - told == set()
    assert {flag for flag in told - existing if flag.startswith("--")} == set()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help_text_with_an_example(command: str) -> None:
    text = importlib.import_module(COMMANDS[command].module).__doc__ or ""
    assert f"fleet {command}" in text
