"""Directories that a Spark session needs and that can be made again at any time: in the user's cache, made once.

Each is built beside its place and moved there whole, so that sessions that start at the same time never see a half.
"""

import atexit
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)


def root() -> Path:
    """Where this user keeps what may be deleted: `$XDG_CACHE_HOME`, usually `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "cometmq"


def directory(name: str, key: str, build: Callable[[Path], None], is_sound: Callable[[Path], bool]) -> Path:
    """The directory for this key, built when it is not there or not sound any more.

    Where the cache cannot be written, it is one of this process alone, gone at its end.
    """
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    try:
        return _kept(root() / f"{name}-{digest}", build, is_sound)
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home
        log.debug("no directory in the cache for %s: %s", name, error)
    own = Path(tempfile.mkdtemp(prefix=f"cometmq-{name}-"))
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    build(own)
    return own


def _kept(place: Path, build: Callable[[Path], None], is_sound: Callable[[Path], bool]) -> Path:
    if place.is_dir() and is_sound(place):
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        build(fresh)
        if place.is_dir():
            if is_sound(place):  # somebody was faster
                return place
            place.rename(fresh / "before")  # a directory is not replaced by a rename
        try:
            fresh.rename(place)
        except OSError:
            if not (place.is_dir() and is_sound(place)):
                raise
            return place
        shutil.rmtree(place / "before", ignore_errors=True)
        return place
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
