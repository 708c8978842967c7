"""The scripts' set-up, in a made-up checkout with a stand-in for Python that logs its arguments."""

import glob
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FAKE_PYTHON = """#!/bin/sh
[ "$1" = --version ] && echo "Python 3.13.0" && exit
[ "$1" = -c ] && exit "${FAKE_PROBE:-0}"
echo "$@" >>"$FAKE_LOG"
case "$*" in
  "-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  *"$FAKE_FAILURE"*) exit 1 ;;
  "-m server"*) exit 7 ;;
esac
"""
GPU = bool(glob.glob("/dev/nvidia[0-9]*")) or shutil.which("nvidia-smi") is not None
without_gpu = pytest.mark.skipif(GPU or sys.platform != "linux", reason="Linux without a GPU")


@dataclass(frozen=True)
class Checkout:
    root: Path

    def run(
        self, script: str, *args: object, cwd: Path | None = None, **variables: str
    ) -> tuple[int, list[str], str]:
        """Exit code, the commands that Python was given, and stderr."""
        log = self.root / "log"
        log.write_text("")
        done = subprocess.run(
            [self.root / "scripts" / script, *map(str, args)],
            cwd=cwd or self.root,
            env={
                "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
                "FAKE_LOG": str(log),
                "FAKE_FAILURE": "nothing",
                **variables,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return done.returncode, log.read_text().splitlines(), done.stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "bin").mkdir()
    for name in ("python3.13", "python3.12", "python3.11", "python3"):
        python = tmp_path / "bin" / name
        python.write_text(FAKE_PYTHON)
        python.chmod(0o755)
    return Checkout(tmp_path)


def pips(commands: list[str]) -> list[str]:
    return [command for command in commands if command.startswith("-m pip")]


@without_gpu
def test_first_start_installs_cpu_torch_then_the_rest(checkout: Checkout) -> None:
    code, commands, _ = checkout.run("test", "-q")
    assert code == 0
    torch, project, tests = commands[-3:]
    assert "torch==" in torch
    assert "+cpu" in torch
    assert project.endswith("install -e .[test]")
    assert tests == "-m pytest -q"


def test_second_start_does_not_run_pip(checkout: Checkout) -> None:
    checkout.run("test")
    assert checkout.run("test")[1] == ["-m pytest"]
    assert checkout.run("serve")[1] == ["-m server configs/demo.toml"]


def test_serve_installs_less_than_test(checkout: Checkout) -> None:
    checkout.run("serve")
    assert "test" in pips(checkout.run("test")[1])[-1]


def test_changed_needs_are_installed(checkout: Checkout) -> None:
    checkout.run("serve")
    (checkout.root / "pyproject.toml").write_text("[project]\ndependencies = []\n")
    assert pips(checkout.run("serve")[1])
    assert not pips(checkout.run("serve")[1])


def test_failed_installation_is_tried_again(checkout: Checkout) -> None:
    code, commands, stderr = checkout.run("serve", FAKE_FAILURE="install -e")
    assert code == 1
    assert "run this again" in stderr
    assert not any("server" in command for command in commands)
    assert pips(checkout.run("serve")[1])


@without_gpu
def test_without_cpu_build_takes_the_usual_torch_and_says_so(checkout: Checkout) -> None:
    code, commands, stderr = checkout.run("test", FAKE_FAILURE="+cpu")
    assert code == 0
    assert "gigabytes" in stderr
    assert "https://download.pytorch.org/whl/cpu" in commands[-3]


def test_machine_with_gpu_gets_the_gpu_needs(checkout: Checkout) -> None:
    smi = checkout.root / "bin" / "nvidia-smi"
    smi.write_text("#!/bin/sh\n")
    smi.chmod(0o755)
    uname = checkout.root / "bin" / "uname"
    uname.write_text("#!/bin/sh\necho Linux\n")
    uname.chmod(0o755)
    commands = checkout.run("test")[1]
    assert commands[-2].endswith("install -e .[gpu,test]")
    assert not any("+cpu" in command for command in commands)


def test_no_suitable_python(checkout: Checkout) -> None:
    code, commands, stderr = checkout.run("serve", FAKE_PROBE="1")
    assert (code, commands) == (1, [])
    assert "Python 3.11" in stderr.splitlines()[-1]


def test_serve_from_another_directory(checkout: Checkout, tmp_path: Path) -> None:
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    (elsewhere / "mine.toml").touch()
    code, commands, _ = checkout.run("serve", "mine.toml", "--port", 1, cwd=elsewhere)
    assert code == 7
    assert commands[-1] == f"-m server {elsewhere / 'mine.toml'} --port 1"
    _, commands, _ = checkout.run("serve", "--port", 1, cwd=elsewhere)
    assert commands[-1] == "-m server configs/demo.toml --port 1"
    _, commands, _ = checkout.run("serve", "configs/big.toml", cwd=elsewhere)
    assert commands[-1] == "-m server configs/big.toml"
