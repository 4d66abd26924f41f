"""The golden directories as test data: that they unpack as they were, and that manifest and bytes agree."""

import os
import struct

import pytest

from cometmq.broker.store.disk import RealDisk
from cometmq.broker.store.log_files import LogFiles
from cometmq.protocol.message_id import decode_message_id
from support import golden_store


@pytest.mark.parametrize("name", golden_store.NAMES)
def test_unpacks_with_holes_and_times(tmp_path, name):
    root = golden_store.unpack(name, tmp_path)
    content = golden_store.files(name)
    found = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
    assert set(found) == set(content)
    for path, file in found.items():
        assert file.stat().st_size == len(content[path])
        # Long ago for whoever unpacks: expiry goes by these times.
        assert file.stat().st_mtime != pytest.approx(os.stat(tmp_path).st_mtime, abs=1)
    # The last file of the log ends in a hole.
    last = max(path for path in found if path.startswith("commitlog/"))
    if name != "trimmed":
        assert found[last].stat().st_blocks * 512 < 1024**2


@pytest.mark.parametrize("name", golden_store.NAMES)
def test_options_fit_the_files(tmp_path, name):
    root, options = golden_store.unpack(name, tmp_path), golden_store.options(name)
    logs = {"commitlog": options.mapped_file_size_commit_log}
    logs |= {
        str(folder.relative_to(root)): {
            "consumequeue": options.consume_queue_file_size,
            "consumequeue_ext": options.mapped_file_size_consume_queue_ext,
            "batchconsumequeue": options.mapper_file_size_batch_consume_queue,
        }[folder.relative_to(root).parts[0]]
        for kind in ("consumequeue", "consumequeue_ext", "batchconsumequeue")
        for folder in root.glob(f"{kind}/*/*")
    }
    for folder, size in logs.items():
        files = LogFiles(RealDisk(), str(root / folder), size)
        files.load()
        assert files.files
        assert files.gap() is None
    for path in (root / "index").iterdir():
        assert path.stat().st_size == options.index_file_size


@pytest.mark.parametrize("name", golden_store.NAMES)
def test_manifest_and_log_agree(name):
    content, manifest = golden_store.files(name), golden_store.manifest(name)
    assert manifest.messages
    for message in manifest.messages:
        base = message.physical_offset // 1024**2 * 1024**2
        log = content[f"commitlog/{base:020d}"]
        size, magic, _, queue_id, _, queue_offset, physical = struct.unpack_from(
            ">iIiiiqq", log, message.physical_offset - base
        )
        assert (magic, queue_id, physical) == (0xDAA320A7, message.queue_id, message.physical_offset)
        if message.in_inner_batch:
            assert queue_offset <= message.queue_offset
            continue
        assert (size, queue_offset) == (message.store_size, message.queue_offset)
        where = decode_message_id(message.message_id)
        assert (f"{where.host}:{where.port}", where.physical_offset) == (message.store_host, physical)
    for queue in manifest.queues.values():
        offsets = [message.queue_offset for message in queue.messages]
        assert offsets == list(range(queue.min_offset, queue.max_offset))
        assert queue.earliest == queue.messages[0].store_time
