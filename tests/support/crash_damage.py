"""A store directory as a table of files, ways to damage one of them, and the disk that results."""

import random
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cometmq.broker.store.clock import Clock
from cometmq.broker.store.fake_disk import FakeDisk
from cometmq.broker.store.power_loss import ROOT, FileImage, Image, pages_of

Files = Mapping[str, bytes]

#: Kinds of files, by what their paths begin with.
KINDS = ("commitlog/", "consumequeue/", "consumequeue_ext/", "index/", "checkpoint", "config/", "abort", "lock")


def snapshot(disk: FakeDisk, folder: str) -> dict[str, bytes]:
    """All files under a folder, by their path in it."""
    found: dict[str, bytes] = {}
    for name in disk.list_dir(folder):
        path = f"{folder}/{name}"
        if disk.is_dir(path):
            found |= {f"{name}/{inner}": data for inner, data in snapshot(disk, path).items()}
        else:
            found[name] = disk.read_file(path)
    return found


def fake_disk(files: Files, folder: str, clock: Clock) -> FakeDisk:
    """A fake disk that has these files."""
    image = Image()
    inodes = iter(range(ROOT + 1, 1 << 30))
    for path, data in files.items():
        directory = ROOT
        *parents, name = f"{folder}/{path}".strip("/").split("/")
        for parent in parents:
            entries = image.directories[directory]
            if parent not in entries:
                entries[parent] = next(inodes)
                image.directories[entries[parent]] = {}
            directory = entries[parent]
        inode = image.directories[directory][name] = next(inodes)
        image.files[inode] = FileImage(len(data), pages_of(data))
    return FakeDisk(clock, image)


def real_folder(files: Files, folder: Path) -> None:
    """A real directory that has these files."""
    for path, data in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


@dataclass(frozen=True, slots=True)
class Damage:
    """What happened to which file."""

    path: str
    how: str
    data: bytes | None

    def to(self, files: Files) -> dict[str, bytes]:
        changed = dict(files)
        if self.data is None:
            del changed[self.path]
        else:
            changed[self.path] = self.data
        return changed


def damage(files: Files, kind: str, dice: random.Random) -> Damage:
    """Something that may happen to a file of a kind. Most of it strikes where something is written."""
    path = dice.choice(sorted(path for path in files if path.startswith(kind)))
    data = bytearray(files[path])
    used = len(data.rstrip(b"\0"))
    where = dice.randrange(used) if used and dice.random() < 0.9 else dice.randrange(max(len(data), 1))
    match dice.choices(("bit", "byte", "run", "zeros", "cut", "grown", "gone"), (10, 4, 3, 3, 3, 1, 1))[0]:
        case "bit" if data:
            data[where] ^= 1 << dice.randrange(8)
            return Damage(path, f"a bit at {where}", bytes(data))
        case "byte" if data:
            data[where] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
            return Damage(path, f"a byte at {where}", bytes(data))
        case "run" if data:
            size = min(dice.choice((4, 8, 20, 512, 4096)), len(data) - where)
            data[where : where + size] = dice.randbytes(size)
            return Damage(path, f"{size} bytes at {where}", bytes(data))
        case "zeros" if data:
            where -= where % dice.choice((1, 20, 512, 4096))
            size = min(dice.choice((4, 20, 512, 4096)), len(data) - where)
            data[where : where + size] = bytes(size)
            return Damage(path, f"{size} zeros at {where}", bytes(data))
        case "grown":
            return Damage(path, "20 bytes more", bytes(data) + dice.randbytes(20))
        case "gone":
            return Damage(path, "removed", None)
        case _:
            length = dice.choice((0, where, where - where % 20))
            return Damage(path, f"cut to {length} bytes", bytes(data[:length]))


def seed_of(*parts: object) -> int:
    """The same seed in every run."""
    return zlib.crc32(repr(parts).encode())
