"""Who may import whom: the pipeline and the hooks are standard library only and know nothing of the command line."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent.parent
PACKAGES = ("runtime_wrapper", "hooks", "schemas")

# From the ground up. A module may import modules of lower layers only; those of one layer stay apart.
LAYERS = (
    ("errors", "clock", "spelling", "cdi_version"),
    ("trust", "atomic", "proc", "inventory", "lock", "cdi", "options", "variables", "ld_cache", "image_root"),
    (
        "spec",
        "argv",
        "runtime_state",
        "cuda",
        "lowlevel",
        "report",
        "selectors",
        "events",
        "requirement",
        "gpu_models",
        "cdi_spec",
    ),
    (
        "request",
        "liveness",
        "changes",
        "crun_update",
        "cuda_driver",
        "image_libraries",
        "image_loader",
        "mount_list",
        "cdi_annotations",
        "cdi_edits",
    ),
    (
        "claim",
        "docker",
        "image_cuda",
        "cdi_registry",
        "probe.checked",
        "probe.nvlink",
        "probe.procfs",
        "probe.driver_files",
    ),
    (
        "engine",
        "sources",
        "search",
        "devices",
        "requirements",
        "driver_mounts",
        "probe.sysfs",
        "probe.nodes",
        "probe.gpu_rules",
    ),
    ("settings_values", "settings_folder", "placement", "edits", "recovery", "probe.machine"),
    ("settings_cache", "settings_toml", "cdi_cache", "book", "engines_choice", "probe.host"),
    ("settings_reading", "ledger", "snapshot", "probe.child"),
    ("settings",),
    ("policy",),
    ("pipeline",),
    ("main",),
)
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}


def modules() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((CHECKOUT / package).rglob("*.py"))]


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(CHECKOUT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> set[str]:
    """Every module that a file imports, anywhere in it, by full name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            base = str(node.module)
            for alias in node.names:
                inner = CHECKOUT / base.replace(".", "/") / f"{alias.name}.py"
                package = CHECKOUT / base.replace(".", "/") / alias.name / "__init__.py"
                found.add(f"{base}.{alias.name}" if inner.exists() or package.exists() else base)
    return found


def pipeline() -> list[Path]:
    return [path for path in modules() if "operate" not in path.parts]


@pytest.mark.parametrize("path", pipeline(), ids=name_of)
def test_pipeline_and_hooks_import_the_standard_library_only(path: Path) -> None:
    foreign = {name for name in imports(path) if name.partition(".")[0] not in (*sys.stdlib_module_names, *PACKAGES)}
    assert foreign == set()


@pytest.mark.parametrize("path", pipeline(), ids=name_of)
def test_no_pipeline_module_imports_the_command_line(path: Path) -> None:
    assert not [name for name in imports(path) if name.startswith("runtime_wrapper.operate")]


@pytest.mark.parametrize(
    "path", [path for path in pipeline() if path.parts[-2] != "hooks" and path.name != "__init__.py"], ids=name_of
)
def test_imports_point_one_way(path: Path) -> None:
    own = name_of(path).removeprefix("runtime_wrapper.")
    assert own in LAYER, f"give {own} a place in LAYERS"
    for name in imports(path):
        other = name.removeprefix("runtime_wrapper.")
        if name.startswith("runtime_wrapper.") and other in LAYER:
            assert LAYER[other] < LAYER[own], f"{own} imports {other}"


def test_every_layer_names_real_modules() -> None:
    names = {name_of(path).removeprefix("runtime_wrapper.") for path in pipeline()}
    assert set(LAYER) <= names


def test_package_files_hold_a_docstring_and_no_program() -> None:
    for path in modules():
        if path.name == "__init__.py":
            body = ast.parse(path.read_text()).body
            assert len(body) == 1
            assert isinstance(body[0], ast.Expr), path


def test_the_pipeline_runs_on_the_distributions_python_with_nothing_installed() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(CHECKOUT)!r}); import runtime_wrapper.main;"
        "rare = ('click', 'rich', 'tomllib', 'ctypes', 'subprocess', 'hashlib', 'traceback');"
        "print(sorted(m for m in sys.modules if m.partition('.')[0] in rare))"
    )
    done = subprocess.run(["/usr/bin/python3", "-ISB", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"  # what is rarely needed is not imported on every create


def test_help_imports_no_command() -> None:
    code = (
        "import sys; from runtime_wrapper.operate import cli; cli.gpulatch.get_help;"
        "print([m for m in cli.COMMANDS.values() if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=CHECKOUT)
    assert done.stdout.strip() == "[]"
