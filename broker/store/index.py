"""The index of a store: from topic and key to the records that have it. RocketMQ's IndexService.

    index/{yyyyMMddHHmmssSSS}     named by the local time of their making; see `index_file` for what is in them

Written for each message: its unique key, then each of its keys, as the hash of `topic#key`. The key itself is not
stored, so that whoever asks must look at the records that an answer names. What is in the index can be built anew from
the commit log; after an unclean exit only files that were full and synced are kept.

Where RocketMQ and we differ: a record that is indexed again after a restart does not get its keys twice; entries of
records that the log has lost can be cut off; no file is made for messages without keys.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import msgspec

from cometmq.broker.store.clock import Clock
from cometmq.broker.store.disk import Disk
from cometmq.broker.store.index_file import IndexFile, NewEntries
from cometmq.broker.store.index_keys import KeyHashes, key_hash
from cometmq.broker.store.options import StoreOptions
from cometmq.broker.store.steps import Steps, run_steps

log = logging.getLogger(__name__)

FOLDER = "index"

#: Topic, keys separated by blanks, unique key, physical offset and store time of a record.
IndexItem: TypeAlias = tuple[str, bytes | None, bytes | None, int, int]


class IndexAnswer(msgspec.Struct, frozen=True):
    """What a query found. Other keys with the same hash are among it."""

    #: Physical offsets, newest first.
    offsets: list[int]
    #: Store time and physical offset of the last record that was indexed.
    last_update_timestamp: int
    last_update_offset: int


class Index:
    """The index files of one store, oldest first. `on_full` is called with a file that is full and must be synced.

    The file is held until `on_full`'s owner calls its `release`; without `on_full` it is synced at once.
    """

    def __init__(
        self,
        disk: Disk,
        root: str,
        options: StoreOptions,
        clock: Clock,
        *,
        on_full: Callable[[IndexFile], None] | None = None,
    ) -> None:
        self.files: list[IndexFile] = []
        self._disk = disk
        self._folder = f"{root}/{FOLDER}"
        self._slots = options.max_hash_slot_num
        self._entries = options.max_index_num
        self._max_count = options.max_msgs_num_batch
        self._clock = clock
        self._on_full = on_full
        self._hashes = KeyHashes()

    @property
    def end_physical(self) -> int:
        """The offset of the last record that was indexed; -1 when there is none. Records after it are to be put."""
        return self.files[-1].end_physical if self.files else -1

    @property
    def total_size(self) -> int:
        return sum(file.size for file in self.files)

    # Opening

    def load(self, *, clean: bool, safe_timestamp: int, intact: bool = False) -> None:
        """Finds the files.

        After an unclean exit only those stay that were full and synced: they end no later than `safe_timestamp`, the
        index time of the checkpoint. When they are `intact`, because only the process died, all of them stay, and just
        the turn that it died in is taken back; but for a new one without an entry, which does not know yet where the
        one before it ended. The caller puts the records after `end_physical` again.
        """
        complete = True
        for name in self._disk.list_dir(self._folder):
            path = f"{self._folder}/{name}"
            if not (name.isascii() and name.isdigit()) or self._disk.is_dir(path):
                log.warning("%s is no index file: it is passed over", path)
                continue
            file = IndexFile(self._disk, self._folder, name, self._slots, self._entries)
            file.load(named=clean)
            kept = clean or (intact and file.count > 1) or (file.is_full and self._was_synced(file, safe_timestamp))
            # Those behind one that goes must go too: nobody would fill the hole.
            complete = complete and kept and self._disk.size(path) > 0
            if not complete:
                log.info("index file %s was not complete: it is removed", path)
                file.destroy()
                continue
            try:
                file.check_length()
                if not clean and not file.is_full:
                    file.take_back_unfinished()
                elif not clean and not self._was_synced(file, safe_timestamp):
                    # Nobody else will: the checkpoint goes on with the next one.
                    file.sync()
            finally:
                file.close()
            self.files.append(file)

    def _was_synced(self, file: IndexFile, safe_timestamp: int) -> bool:
        """Files are synced in their order, and then their end time is the safe one: of several that end in the same
        millisecond only the first one is sure to be on the disk. Of one that ends before the file before it, because
        the clock was set back, nothing is sure.
        """
        before = self.files[-1].end_time if self.files else -1
        if file.end_time < before:
            return False
        return file.end_time < safe_timestamp or before < file.end_time == safe_timestamp

    # Putting

    def put_turn(self, turn: Iterable[IndexItem]) -> None:
        """Indexes the records of a turn, in the order of the log. Records that are in the index already may be among
        them: after an `OSError` the same turn can be put again. Rolled back records are not to be put.
        """
        entries = self._entries_of(turn)
        if entries.hashes:
            self._put(entries)

    def put_new(
        self, topics: Sequence[str], keys: Sequence[bytes], physical_offsets: Sequence[int], store_times: Sequence[int]
    ) -> None:
        """The same for keys, none of them empty, of records that come after `end_physical`: a key in each row."""
        if keys:
            self._put(NewEntries(self._hashes.hash_all(topics, keys), physical_offsets, store_times))

    def _put(self, entries: NewEntries) -> None:
        file = self.files[-1] if self.files else self._roll()
        taken = file.put(entries)
        while taken < len(entries.hashes):
            file = self._roll()
            taken += file.put(entries, taken)

    def _entries_of(self, turn: Iterable[IndexItem]) -> NewEntries:
        end = self.end_physical
        names: list[bytes] = []
        items: list[IndexItem] = []
        for item in turn:
            _, keys, unique_key, physical, _ = item
            if physical <= end:
                # Put before: none of it, or what the last record lacks.
                for name in self._rest(item):
                    names.append(name)
                    items.append(item)
                continue
            if unique_key:
                names.append(unique_key)
                items.append(item)
            if keys:
                for key in keys.split(b" "):
                    if key:
                        names.append(key)
                        items.append(item)
        if not items:
            return NewEntries((), (), ())
        topics, _, _, physicals, times = zip(*items, strict=True)
        return NewEntries(self._hashes.hash_all(topics, names), physicals, times)

    def _rest(self, item: IndexItem) -> list[bytes]:
        """The keys of a record that are not in the index yet, when the index ends with the record or after it."""
        _, keys, unique_key, physical, _ = item
        if physical < self.end_physical:
            return []
        done = 0
        for file in reversed(self.files):
            count = file.entries_of(physical)
            done += count
            if count < file.count - 1:
                break
        names = [unique_key or b"", *(keys or b"").split(b" ")]
        return [name for name in names if name][done:]

    def _roll(self) -> IndexFile:
        """The next file."""
        before = self.files[-1] if self.files else None
        name = f"{self._clock.local(self._clock.wall()):%Y%m%d%H%M%S%f}"[:17]
        if before is not None and name <= before.name:
            # Two in a millisecond, or the hour that a clock repeats: the names must tell the order.
            name = f"{int(before.name) + 1:017d}"
        file = IndexFile(self._disk, self._folder, name, self._slots, self._entries)
        try:
            file.create(before.end_physical if before else 0, before.end_time if before else 0)
        except OSError:
            file.destroy()
            raise
        self.files.append(file)
        if before is not None:
            self._finish(before)
        return file

    def _finish(self, file: IndexFile) -> None:
        if self._on_full is None:
            file.sync()
            file.close()
        else:
            file.hold()
            self._on_full(file)

    # Asking

    def query(self, topic: str, key: str, max_count: int, begin: int, end: int) -> IndexAnswer:
        """Records with a key and a store time from `begin` to `end`, newest first."""
        return run_steps(self.querying(topic, key, max_count, begin, end))

    def querying(self, topic: str, key: str, max_count: int, begin: int, end: int) -> Steps[IndexAnswer]:
        """The same in steps; files may come and go between them."""
        max_count = min(max_count, self._max_count)
        wanted = key_hash(topic, key)
        found: list[int] = []
        last = self.files[-1] if self.files else None
        for file in reversed(list(self.files)):
            if file.overlaps(begin, end) and not file.retired:
                if file is last:
                    yield from file.selecting(wanted, begin, end, found, max_count)
                else:
                    file.hold()
                    try:
                        yield from file.selecting(wanted, begin, end, found, max_count)
                    finally:
                        file.release()
            if file.begin_time < begin or len(found) >= max_count:
                break
            yield
        return IndexAnswer(found, last.end_time if last else 0, last.end_physical if last else 0)

    # Cutting, expiring, leaving

    def truncate(self, physical: int) -> None:
        """Removes the entries of records at `physical` or after it: the log has lost them."""
        while self.files and self.files[-1].end_physical >= physical:
            file = self.files[-1]
            file.cut(physical)
            if file.count > 1:
                return
            self.files.pop()
            file.destroy()

    def delete_expired(self, min_physical: int) -> int:
        """Removes the files whose records are all gone; returns how many. The last file always stays."""
        dropped = 0
        while len(self.files) > 1 and self.files[0].end_physical < min_physical:
            if self.files[0].end_time == self.files[1].end_time and self.files[1].end_physical >= min_physical:
                # The one behind it must not become the first of its millisecond: see `_was_synced`.
                break
            self.files.pop(0).destroy()
            dropped += 1
        return dropped

    def flush(self) -> None:
        """Syncs the file that is being written."""
        if self.files:
            self.files[-1].sync()

    def destroy(self) -> None:
        """Removes the whole index."""
        while self.files:
            self.files.pop().destroy()

    def close(self) -> None:
        """Gives the files back; does not sync."""
        for file in self.files:
            file.close()
