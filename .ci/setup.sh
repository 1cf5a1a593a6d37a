#!/bin/sh
# Prepares this machine for one purpose: `.ci/setup.sh demo|lint|test`.
#
# Missing system packages come through apt, Python packages go into .venv. When nothing is missing
# it only looks, which takes a fraction of a second.
#   REFERENCE=1     for test: also install PyTorch and Transformers, for the parity tests
#   SKIP_SYSTEM=1   never install system packages
#   PYTHON=COMMAND  the Python that .venv is made with (3.11 or newer)
set -eu
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin # ldconfig lives there, and Debian leaves both out for users

VENV_PYTHON=.venv/bin/python
STAMP=.venv/.set-up

say() { echo "setup: $*"; }

fail() {
    echo "setup: $*" >&2
    exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# System packages

missing=

need() { missing="$missing $*"; }

has_vulkan_driver() {
    [ -z "${VK_DRIVER_FILES:-}${VK_ICD_FILENAMES:-}" ] || return 0
    for folder in /etc /usr/share /usr/local/etc /usr/local/share /run/opengl-driver/share \
        "${XDG_DATA_HOME:-${HOME:-}/.local/share}"; do
        for manifest in "$folder"/vulkan/icd.d/*.json; do
            [ ! -e "$manifest" ] || return 0
        done
    done
    return 1
}

need_vulkan() {
    ldconfig -p 2>/dev/null | grep -q 'libvulkan\.so\.1 ' || need libvulkan1
    has_vulkan_driver || need mesa-vulkan-drivers
}

need_test_tools() {
    have Xvfb || need xvfb
    have xdotool || need xdotool
    # The OpenXR binding opens it even where nothing is drawn with it.
    ldconfig -p 2>/dev/null | grep -q 'libGL\.so\.1 ' || need libgl1
}

install_missing() {
    [ -n "$missing" ] || return 0
    if [ "${SKIP_SYSTEM:-0}" = 1 ]; then
        say "not installed, as SKIP_SYSTEM=1 asks:$missing"
        return 0
    fi
    have apt-get || fail "install what these Debian packages hold, then run make again:$missing"
    root=
    if [ "$(id -u)" -ne 0 ]; then
        say "system packages are missing:$missing"
        if [ -t 0 ]; then root=sudo; else root="sudo -n"; fi
        if ! have sudo || ! $root true 2>/dev/null; then
            fail "run this as root, then make again: apt-get install$missing"
        fi
    fi
    say "installing system packages:$missing"
    # A stale list of some other repository must not stop the installation.
    $root apt-get update -qq || say "apt-get update failed; going on with the lists at hand"
    # shellcheck disable=SC2086 # a list of words
    $root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -qq -y --no-install-recommends $missing >/dev/null ||
        fail "apt-get could not install:$missing; see its message above"
}

# Python

is_recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    for python in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if have "$python" && is_recent "$python"; then
            return 0
        fi
    done
    return 1
}

too_old() {
    [ -z "${PYTHON:-}" ] || fail "PYTHON=$PYTHON is not Python 3.11 or newer"
    fail "Python 3.11 or newer is needed, but $(python3 --version 2>&1) is installed:" \
        "install a newer one beside it and run make again with PYTHON=python3.11"
}

need_python() {
    if find_python; then
        # Debian splits venv off, once for each Python version.
        "$python" -c 'import ensurepip, venv' 2>/dev/null ||
            need "python3.$("$python" -c 'import sys; print(sys.version_info[1])')-venv"
    elif have "${PYTHON:-python3}"; then
        too_old
    else
        need "${PYTHON:-python3}" "${PYTHON:-python3}-venv"
    fi
}

has_venv() {
    $VENV_PYTHON -c 'import importlib.util as u, sys
sys.exit(sys.version_info < (3, 11) or not u.find_spec("pip"))' 2>/dev/null
}

make_venv() {
    find_python || too_old
    say "creating .venv with $("$python" --version)"
    "$python" -m venv --clear .venv || fail "$python could not create .venv; see its message above"
}

# What .venv was filled from: when any of it changes, pip runs again.
origin() {
    pwd
    cksum pyproject.toml .ci/setup.sh
}

# Each level of extras holds those before it: 0 nothing, 1 dev, egraph and dawn, 2 reference as well.
install_python_packages() {
    level=$1 stamped=
    if [ -e $STAMP ]; then
        stamped=$(sed '$d' $STAMP) # all but the last line, which is the level
        was=$(tail -n 1 $STAMP)
        [ "$was" -le "$level" ] || level=$was
        if [ "$stamped" = "$(origin)" ] && [ "$was" -ge "$level" ]; then
            return 0
        fi
    fi
    case $level in 0) extras= ;; 1) extras="[dev,egraph,dawn]" ;; *) extras="[dev,egraph,dawn,reference]" ;; esac
    say "installing Python packages into .venv; the first time takes minutes"
    if [ -t 1 ]; then quiet=; else quiet=--quiet; fi
    # shellcheck disable=SC2086 # no word when empty
    $VENV_PYTHON -m pip install $quiet --disable-pip-version-check -e ".$extras" ||
        fail "pip could not install the Python packages; see its message above"
    { origin && echo "$level"; } >$STAMP
}

case "${1:-}" in
demo) level=0 ;;
lint) level=1 ;;
test) if [ "${REFERENCE:-0}" = 1 ]; then level=2; else level=1; fi ;;
*) fail "usage: .ci/setup.sh demo|lint|test" ;;
esac

if [ "$(uname -s)" = Linux ]; then # elsewhere the GPU driver comes with the system
    [ "$1" = lint ] || need_vulkan
    [ "$1" != test ] || need_test_tools
fi
has_venv || need_python
install_missing
has_venv || make_venv
install_python_packages $level
