#!/bin/sh
# Makes a bare machine ready: `bootstrap.sh venv` builds .venv, `bootstrap.sh java` finds or installs Java 17+,
# `bootstrap.sh spark 4.1` builds .venv-spark-4.1, which differs from .venv in the version of PySpark alone.
# Both may be run again at any time. What cannot be done here ends with the exact command to type.
set -eu

VENV=.venv
JAVA_MIN=17

say() { printf '%s\n' "penstock: $*"; }
stop() { printf '%s\n' "" "$@" "" >&2; exit 1; }

# ---------------------------------------------------------------- apt, where we may use it
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

can_apt() {
    command -v apt-get >/dev/null 2>&1 || return 1
    [ "$(id -u)" = 0 ] && return 0
    command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null
}

# Installs the first of the given packages that this release has (Debian 13 has Java 21 but no 17).
apt_install_first() {
    # A broken third-party source makes `update` fail although the package can be had.
    as_root apt-get -q update || say "apt-get update reported errors; going on"
    for package in "$@"; do
        apt-cache show "$package" >/dev/null 2>&1 || continue
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "$package"
        return
    done
    return 1
}

# One word for the platform; ID_LIKE covers the derivatives.
platform() {
    [ "$(uname -s)" = Darwin ] && { echo macos; return; }
    ids=$(. /etc/os-release 2>/dev/null && echo "${ID:-} ${ID_LIKE:-}") || ids=
    for id in $ids; do
        case $id in
            debian | ubuntu) echo debian; return ;;
            fedora | rhel | centos) echo fedora; return ;;
            alpine) echo alpine; return ;;
        esac
    done
    echo other
}

# ---------------------------------------------------------------- Python
# Prints "3.12 yes" or "3.12 no": the version, and whether it can make a venv. Fails if it cannot be run at all
# (a pyenv shim may exist for a version that is not switched on).
probe_python() {
    "$1" - 2>/dev/null <<'PY'
import importlib.util, sys
able = all(importlib.util.find_spec(name) for name in ("venv", "ensurepip"))
print("%d.%d %s" % (sys.version_info[0], sys.version_info[1], "yes" if able else "no"))
PY
}

# Sets `python` to the newest suitable one, and `found` to all that were seen.
find_python() {
    python= found= without_venv=
    for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3 python}; do
        seen=$(probe_python "$candidate") || continue
        found="$found $candidate (${seen% *})"
        case $seen in
            "3.11 yes" | "3.12 yes" | "3.13 yes") python=$candidate; return 0 ;;
            "3.11 no" | "3.12 no" | "3.13 no") without_venv=${without_venv:-$candidate} ;;
        esac
    done
    return 1
}

need_python() {
    find_python && return
    if [ -n "$without_venv" ]; then
        version=$(probe_python "$without_venv"); version=${version% *}
        if can_apt; then
            say "$without_venv has no venv module: installing python$version-venv with apt"
            apt_install_first "python$version-venv" python3-venv && find_python && return
        fi
        stop "$without_venv (Python $version) cannot make a virtual environment." \
            "  Debian, Ubuntu:  sudo apt-get update && sudo apt-get install -y python$version-venv" \
            "Then run make again, or name another one:  make setup PYTHON=/path/to/python3.12"
    fi
    stop "Penstock needs Python 3.11, 3.12 or 3.13; found:${found:- none}." \
        "$(python_hint)" \
        "Then run make again. One that is not on the PATH:  make setup PYTHON=/path/to/python3.12"
}

python_hint() {
    case $(platform) in
        debian) echo "  sudo apt-get update && sudo apt-get install -y python3 python3-venv   (Debian 12+, Ubuntu 24.04+)" ;;
        fedora) echo "  sudo dnf install -y python3.12" ;;
        alpine) echo "  sudo apk add python3 py3-pip" ;;
        macos) echo "  brew install python@3.12" ;;
        *) echo "  Install it with your package manager." ;;
    esac
}

venv_is_good() {
    case $(probe_python "$VENV/bin/python" || true) in
        "3.11 "* | "3.12 "* | "3.13 "*) "$VENV/bin/python" -m pip --version >/dev/null 2>&1 ;;
        *) return 1 ;;
    esac
}

setup_venv() {
    if ! venv_is_good; then
        need_python
        say "making $VENV with $("$python" --version 2>&1) (once; takes a minute or two)"
        "$python" -m venv --clear "$VENV"
    fi
    say "installing the pinned dependencies"
    pip="$VENV/bin/python -m pip --disable-pip-version-check"
    if [ -n "${1:-}" ]; then
        sed '/^pyspark==/d' requirements.lock > "$VENV/requirements.txt"
        $pip install --quiet -r "$VENV/requirements.txt" "$1"
    else
        $pip install --quiet -r requirements.lock
    fi
    # The lock holds the build backend too, so nothing unpinned is fetched.
    $pip install --quiet --no-deps --no-build-isolation -e .
    problems=$($pip check) || stop "requirements.lock does not fit together:" "$problems"
    say "$VENV is ready"
}

# The pinned dependencies, but the newest PySpark of the given version.
setup_spark_venv() {
    VENV=.venv-spark-$1
    if [ ! -e "$VENV/.ready" ] || [ requirements.lock -nt "$VENV/.ready" ]; then
        setup_venv "pyspark==$1.*"
        touch "$VENV/.ready"
    fi
}

# ---------------------------------------------------------------- Java
# Spark takes JAVA_HOME first, then the PATH: look where it will look.
java_command() {
    if [ -n "${JAVA_HOME:-}" ]; then echo "$JAVA_HOME/bin/java"; else echo java; fi
}

# The major version ("17"; "8" for 1.8), or nothing if there is no Java that runs.
java_version() {
    "$(java_command)" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9][0-9]*\).*/\2/p' | head -n 1
}

java_is_good() {
    version=$(java_version)
    [ -n "$version" ] && [ "$version" -ge "$JAVA_MIN" ] &&
        # Trimmed runtimes, such as those inside Python packages, lack what Spark needs.
        "$(java_command)" --list-modules 2>/dev/null | grep -q '^jdk\.incubator\.vector'
}

java_seen() {
    where=$(java_command)
    [ -n "${JAVA_HOME:-}" ] && where="$where (from JAVA_HOME)"
    version=$(java_version)
    if [ -z "$version" ]; then
        echo "no Java that runs: tried $where"
    elif [ "$version" -lt "$JAVA_MIN" ]; then
        echo "$where is Java $version"
    else
        echo "$where is Java $version without the module jdk.incubator.vector (a trimmed runtime)"
    fi
}

java_hint() {
    case $(platform) in
        debian) echo "  sudo apt-get update && sudo apt-get install -y openjdk-17-jre-headless" ;;
        fedora) echo "  sudo dnf install -y java-21-openjdk-headless" ;;
        alpine) echo "  sudo apk add openjdk17-jre-headless bash" ;;
        macos)
            echo "  brew install openjdk@17"
            echo "  export JAVA_HOME=\"\$(brew --prefix openjdk@17)/libexec/openjdk.jdk/Contents/Home\""
            ;;
        *) echo "  Install any Java 17+ runtime (OpenJDK, Temurin) and set JAVA_HOME to its folder." ;;
    esac
}

need_java() {
    java_is_good && return
    if [ -n "${JAVA_HOME:-}" ]; then
        stop "Spark needs Java $JAVA_MIN or newer; $(java_seen)." \
            "JAVA_HOME comes before the PATH. Point it to a newer one, or:  unset JAVA_HOME" \
            "To install one:" "$(java_hint)"
    fi
    if can_apt; then
        say "$(java_seen); installing Java with apt"
        apt_install_first openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless || true
        java_is_good && return
    fi
    stop "Spark needs Java $JAVA_MIN or newer; $(java_seen)." "$(java_hint)" "Then run make again."
}

# ----------------------------------------------------------------
case ${1:-} in
    venv) setup_venv ;;
    java) need_java ;;
    spark) setup_spark_venv "${2:-4.1}" ;;
    *) stop "usage: sh scripts/bootstrap.sh venv | java | spark VERSION" ;;
esac
