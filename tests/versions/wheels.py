# SPDX-License-Identifier: Apache-2.0
"""Brings wheels into the cache: single ones unpacked, a release of torch with all it needs in an environment of its
own."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

WHEEL_GIB = 2  # unpacked, with the wheel beside it
TORCH_GIB = 14  # an environment has 5 to 7 GiB, and while pip makes it the wheels lie beside it


class NoRoom(Exception):
    pass


def say(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def default_cache():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(base) / "symmshim-versions"


def need(cache, gib):
    free = shutil.disk_usage(cache).free / 2**30
    if free < gib:
        raise NoRoom(f"{free:.0f} GiB are free, {gib} GiB are wanted")


def wheel(cache, package, version):
    """The folder of an unpacked wheel."""
    folder = cache / f"{package}-{version}"
    if folder.exists():
        return folder
    need(cache, WHEEL_GIB)
    say(f"fetch {package} {version}")
    with tempfile.TemporaryDirectory(prefix="unfinished-", dir=cache) as name:
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-cache-dir", "--only-binary=:all:",
             "-d", name, f"{package}=={version}"], check=True, stdout=subprocess.DEVNULL)
        (file,) = pathlib.Path(name).glob("*.whl")
        with zipfile.ZipFile(file) as archive:
            archive.extractall(f"{name}/all")
        os.rename(f"{name}/all", folder)
    return folder


def torch(cache, version, python):
    """The Python of an environment that has the release; whether it is complete is marked by a file."""
    folder = cache / f"torch-{version}"
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        for other in sorted(cache.glob("torch-*")):
            if shutil.disk_usage(cache).free < TORCH_GIB * 2**30:
                say(f"remove {other.name} for room")
                shutil.rmtree(other)
        need(cache, TORCH_GIB)
        say(f"fetch torch {version} and what it needs")
        subprocess.run([python, "-m", "venv", folder], check=True)
        # Without numpy the import complains on stderr.
        subprocess.run(
            [folder / "bin/python", "-m", "pip", "install", "-q", "--no-cache-dir", "--no-compile", f"torch=={version}",
             "numpy"], check=True, stdout=subprocess.DEVNULL)
        (folder / "done").touch()
    return folder / "bin/python"


def newest(package):
    """The newest release there is, as pip sees it."""
    text = subprocess.run([sys.executable, "-m", "pip", "index", "versions", package], check=True, capture_output=True,
                          text=True).stdout
    return text.split("(", 1)[1].split(")", 1)[0]
