"""Workflows and hooks call programs that exist, with pinned tools and no right to write."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
HOST = ROOT / ".github"
WORKFLOWS: dict[str, dict[Any, Any]] = {
    path.stem: yaml.safe_load(path.read_text()) for path in sorted(HOST.glob("workflows/*.yml"))
}
JOBS = [
    (name, job, table) for name, flow in WORKFLOWS.items() for job, table in flow["jobs"].items()
]
STEPS = [(name, step) for name, _, job in JOBS for step in job["steps"]]
TABLE = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = TABLE["project"]["optional-dependencies"]


def programs(command: str) -> list[str]:
    """Files of the project that a command runs."""
    modules = re.findall(r"python3? -m (scripts(?:\.\w+)+)", command)
    return [
        *re.findall(r"(?<![\w/])(?:\.ci|scripts)/[\w./]+", command),
        *(f"{module.replace('.', '/')}.py" for module in modules),
    ]


def test_ci_has_a_job_for_every_step_of_the_script() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    known = set(re.findall(r"(?m)^    (\w+)\)", script))
    assert set(WORKFLOWS["ci"]["jobs"]["step"]["strategy"]["matrix"]["step"]) == known
    whole = re.search(r"(?m)^steps=\((.*)\)$", script)  # after the tests
    assert whole
    assert known - set(whole[1].split()) == {"test", "audit"}  # others' news fail no change


@pytest.mark.parametrize(
    "words",
    [["--only"], ["--only", "tests"], ["--only", "steps"], ["--only", ""], ["--only", "--lint"]],
)
def test_ci_refuses_a_step_that_it_does_not_have(words: list[str]) -> None:
    done = subprocess.run(
        [ROOT / ".ci" / "run", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "--only takes test, flower, native, lint, docs or audit" in done.stderr


SETUP = """set -euo pipefail
ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd) VENV=/venv VENV_PYTHON=true
fail() { exit 1; }
set_up() { cd -- "$ROOT"; echo set_up; }
"""


def ran_with_stubs(folder: Path, *words: str, failing: str = "") -> tuple[int, list[str]]:
    """Status and programs of `.ci/run` where each program only prints its name."""
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci")
    (folder / "scripts" / "checks").mkdir(parents=True)
    (folder / "scripts" / "setup.sh").write_text(SETUP)
    for name in (
        "test",
        "docs",
        "release",
        "checks/flower.sh",
        "checks/native.sh",
        "checks/lint.sh",
    ):
        program = folder / "scripts" / name
        program.write_text(f'#!/bin/sh\necho {name} "$@"\n' + "exit 3\n" * (name == failing))
        program.chmod(0o755)
    done = subprocess.run(
        [folder / ".ci" / "run", *words], capture_output=True, text=True, check=False
    )
    return done.returncode, [x for x in done.stdout.splitlines() if not x.startswith("[ci]")]


WHOLE = [
    "set_up",
    "test -k x",
    "checks/flower.sh --ci",
    "checks/native.sh --build",
    "checks/native.sh --ci",
    "checks/lint.sh",
    "docs",
]


def test_ci_runs_every_step_in_order(tmp_path: Path) -> None:
    assert ran_with_stubs(tmp_path, "-k", "x") == (0, WHOLE)


@pytest.mark.parametrize(
    ("failing", "count"),
    [
        ("test", 2),
        ("checks/flower.sh", 3),
        ("checks/native.sh", 4),
        ("checks/lint.sh", 6),
        ("docs", 7),
    ],
)
def test_ci_stops_at_the_first_step_that_fails(failing: str, count: int, tmp_path: Path) -> None:
    assert ran_with_stubs(tmp_path, "-k", "x", failing=failing) == (3, WHOLE[:count])


@pytest.mark.parametrize(
    ("step", "printed"),
    [
        ("test", ["set_up", "test -k x"]),
        ("flower", ["set_up", "checks/flower.sh --ci"]),
        ("native", ["set_up", "checks/native.sh --ci"]),
        ("lint", ["set_up", "checks/lint.sh"]),
        ("docs", ["docs"]),
        ("audit", ["release audit --ci"]),
    ],
)
def test_ci_runs_one_step_alone(step: str, printed: list[str], tmp_path: Path) -> None:
    assert ran_with_stubs(tmp_path, "--only", step, "-k", "x") == (0, printed)


def test_steps_of_workflows_call_scripts_that_exist() -> None:
    commands = [step["run"] for _, step in STEPS if "run" in step]
    assert sum(bool(programs(command)) for command in commands) >= 6
    for command in commands:
        assert programs(command) or command.startswith("sudo apt-get"), command
        for program in programs(command):
            assert (ROOT / program).is_file(), program
            assert program.endswith(".py") or (ROOT / program).stat().st_mode & 0o111, program


def test_the_release_tool_has_each_command_that_workflows_and_pages_name() -> None:
    tool = (ROOT / "scripts" / "release").read_text()
    known = re.search(r"(?m)^(lock \|.*)\) shift", tool)
    assert known
    pages = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *HOST.rglob("*.yml"),
        *(ROOT / "deploy").glob("*"),
        ROOT / ".ci" / "run",
    ]
    text = "\n".join(path.read_text() for path in pages if path.is_file())
    named = set(re.findall(r"scripts/release\"? (\w+)", text))
    assert named == set(known[1].split(" | "))


def test_actions_of_others_are_pinned_by_commit_and_one_commit_each() -> None:
    pins: dict[str, set[str]] = {}
    for path in HOST.glob("workflows/*.yml"):
        for action, commit in re.findall(r"uses: ([\w/-]+)@(.*)", path.read_text()):
            assert re.fullmatch(r"[0-9a-f]{40} # v\d+\.\d+\.\d+", commit), f"{action}@{commit}"
            pins.setdefault(action, set()).add(commit)
    assert pins
    assert all(len(commits) == 1 for commits in pins.values()), pins


def test_jobs_end_and_may_write_only_what_they_publish() -> None:
    assert all(flow["permissions"] == {"contents": "read"} for flow in WORKFLOWS.values())
    for name, job, table in JOBS:
        assert 1 <= table["timeout-minutes"] <= 60, (name, job)
        assert job == "publish" or "permissions" not in table, (name, job)
    for name, step in STEPS:
        if "actions/checkout" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False, name


def test_nothing_is_published_that_was_not_checked() -> None:
    jobs = WORKFLOWS["wheels"]["jobs"]
    assert jobs["publish"]["if"] == "github.ref_type == 'tag'"
    assert (jobs["publish"]["needs"], jobs["wheels"]["needs"]) == ("wheels", "check")
    commands = [step.get("run", "") for step in jobs["check"]["steps"]]
    assert any(c.startswith("python -m scripts.checks.release --tag") for c in commands)
    assert {"scripts/release audit", "scripts/release twice", "scripts/release sbom"} <= set(
        commands
    )
    names = [
        step["with"]["name"]
        for job in jobs.values()
        for step in job["steps"]
        if "upload-artifact" in step.get("uses", "")
    ]
    assert [n for n in names if n.startswith("dist-")] == [
        "dist-source",
        "dist-${{ matrix.machine }}",
    ]


def test_hooks_have_the_versions_of_the_dev_extra_and_its_checks() -> None:
    (hooks,) = (
        repo["hooks"]
        for repo in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    )
    pins = {pin for hook in hooks for pin in hook.get("additional_dependencies", [])}
    assert pins == {
        tool for tool in EXTRAS["dev"] if not tool.startswith(("mypy", "pyright", "import-linter"))
    }
    for hook in hooks:
        if hook["language"] == "system":
            assert all((ROOT / program).is_file() for program in programs(hook["entry"]))
            assert programs(hook["entry"])


def test_every_tool_of_development_and_release_is_pinned() -> None:
    for extra in ("dev", "docs", "release"):
        assert all(re.fullmatch(r"[\w-]+(\[\w+\])?==[\w.]+", tool) for tool in EXTRAS[extra]), extra


def test_built_files_carry_the_time_of_the_commit() -> None:
    tool = (ROOT / "scripts" / "release").read_text()
    assert "SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)" in tool
    assert "\nexport SOURCE_DATE_EPOCH\n" in tool
    # cibuildwheel builds for Linux in a container, which has no variable that is not passed on.
    assert TABLE["tool"]["cibuildwheel"]["linux"]["environment-pass"] == ["SOURCE_DATE_EPOCH"]


def test_a_problem_of_security_is_sent_to_the_private_form() -> None:
    project = TABLE["project"]
    assert project["authors"] == [{"name": "The torchfsl authors"}]
    form = project["urls"]["Security"]
    contacts = yaml.safe_load((HOST / "ISSUE_TEMPLATE" / "config.yml").read_text())
    assert [link["url"] for link in contacts["contact_links"]] == [form]
    assert f"]({form})" in (ROOT / "SECURITY.md").read_text()
