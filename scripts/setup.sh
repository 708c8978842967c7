# shellcheck shell=bash
# Sourced by serve, test and check: goes to the checkout and keeps its .venv up to date.
# Nothing is installed, and pip is not started, while pyproject.toml, Python and the torch build
# stay the same. An interrupted installation goes on when the script is run again.

TORCH=2.13.0 # the CPU build to ask for; pyproject.toml says which versions will do

unset CDPATH
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { echo "scripts: $*" >&2; }

die() {
  say "$@"
  exit 1
}

pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }

torch_build() {
  if [[ $(uname -s) != Linux ]]; then
    echo default
  elif compgen -G '/dev/nvidia[0-9]*' >/dev/null || nvidia-smi -L >/dev/null 2>&1; then
    echo cuda
  else
    echo cpu
  fi
}

# What an installation depends on, in one line: the content of the stamp files.
fingerprint() {
  echo "$(.venv/bin/python --version 2>&1), torch $TORCH $1, pyproject $(cksum <pyproject.toml)"
}

find_python() {
  local python without_venv=
  for python in python3.13 python3.12 python3.11 python3; do
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
    if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
      echo "$python"
      return
    fi
    without_venv=${without_venv:-$python}
  done
  if [[ $without_venv ]]; then
    die "$without_venv has no venv module: install it (Debian, Ubuntu: apt install $without_venv-venv)"
  fi
  die "Python 3.11 or newer is needed, and PATH has none: install it, then run this again"
}

create_venv() {
  local python
  # pip's list of files is the last thing that the making of a virtual environment writes.
  .venv/bin/python -c 'import sys; from importlib.metadata import files
sys.exit(sys.version_info < (3, 11) or not files("pip"))' 2>/dev/null && return
  python=$(find_python)
  "$python" -m venv --clear .venv
}

# PyPI's torch for Linux brings gigabytes of CUDA; the CPU build is on PyTorch's own index, or on
# a mirror that pip is configured for. Where that has none, its error message would only mislead.
install_cpu_torch() {
  local torch="torch==$TORCH+cpu"
  pip install "$torch" 2>/dev/null ||
    pip install --retries 2 --index-url https://download.pytorch.org/whl/cpu "$torch" ||
    say "found no CPU build of torch $TORCH; taking PyPI's, which brings CUDA (gigabytes)"
}

# set_up [test]: .venv with the project's needs, and those of the tests.
set_up() {
  local extra=${1:-} build extras
  build=$(torch_build)
  local stamp=.venv/.installed${extra:+-$extra}
  if [[ -f $stamp && $(<"$stamp") == "$(fingerprint "$build")" ]]; then
    return
  fi
  trap 'exit 130' INT # pip handles Ctrl-C itself; do not go on to the next step after it
  say "installing into .venv (torch build: $build); the first time, this takes a minute or more"
  create_venv
  rm -f .venv/.installed*
  extras=$extra
  case $build in
    cpu) install_cpu_torch ;;
    cuda)
      extras=gpu${extra:+,$extra}
      [[ $(pip show torch 2>/dev/null) != *+cpu* ]] || pip uninstall -y torch
      ;;
  esac >&2
  pip install -e ".${extras:+[$extras]}" >&2 || die "pip failed (see above); run this again to go on"
  fingerprint "$build" >.venv/.installed
  if [[ $extra ]]; then cp .venv/.installed "$stamp"; fi
  trap - INT
}
