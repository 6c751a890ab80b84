"""Trees of arrays as files in orbax's layout: each process writes its shards, and process 0 joins the files of all.

This is the layer of orbax below its own asynchronous saves, whose barriers hold the other processes for up to an hour
when one process fails. Nothing here waits for another process: the caller decides when to join (`SaveInProgress`).
"""

import asyncio
import contextlib
import logging
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import orbax.checkpoint as ocp
import tensorstore as ts
from etils import epath

from configs.common.errors import UserError
from mmjax.training.checkpoints.array_part import ArrayPart
from sharding.trees import Tree

_MOST_SHOWN = 150  # characters of each end of another library's error in a message
_PROCESS_FOLDER = "ocdbt.process_"  # and the process's number


def write_parts(folder: pathlib.Path, parts: Tree) -> None:
    """Writes this process's shards of the arrays of a tree; all processes write to the same folder.

    Args:
        folder: Folder of the tree; it is made.
        parts: A tree of `ArrayPart`, with their values on the host.

    Raises:
        OSError: The folder cannot be made.
        ValueError: A write failed; tensorstore also raises errors of other types, with the system's message.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _logged_by_the_caller():
        saving = _handler().async_save(epath.Path(folder.absolute()), args=ocp.args.PyTreeSave(parts))
        for future in asyncio.run(saving) or ():
            future.result()


def written_by_process(folder: pathlib.Path) -> dict[str, tuple[int, int]]:
    """Counts the files that each process has written to the folder of a tree, as this process sees them.

    Returns:
        The number of files and their bytes, by the name of the process's folder (`process_folder`).
    """
    seen = {}
    for part in folder.glob(f"{_PROCESS_FOLDER}*"):
        sizes = [file.stat().st_size for file in part.rglob("*") if file.is_file()]
        seen[part.name] = (len(sizes), sum(sizes))
    return seen


def process_folder(process: int) -> str:
    """Name of the folder in which a process writes its shards of a tree; orbax finds it by its name."""
    return f"{_PROCESS_FOLDER}{process}"


def join_process_files(folder: pathlib.Path) -> None:
    """Joins the files that all processes have written to the folder of a tree; process 0 alone does it."""
    _handler().finalize(epath.Path(folder.absolute()))


def read_arrays(folder: pathlib.Path, abstract: Tree) -> Tree:
    """Reads arrays of the tree in a folder, each onto the sharding that its abstract array names.

    Args:
        folder: Folder of a tree.
        abstract: Abstract arrays, of a subtree. All devices of this process that they name get their shards.

    Raises:
        UserError: The files hold something else; the message contains orbax's error.
    """
    arguments = ocp.args.PyTreeRestore(
        abstract, restore_args=ocp.checkpoint_utils.construct_restore_args(abstract), partial_restore=True
    )
    try:
        return _handler().restore(epath.Path(folder.absolute()), args=arguments)
    except Exception as error:  # of many types: files that nobody has damaged do not get here
        raise UserError(f"{folder} cannot be read: {describe_failure(error)}") from error


def describe_failure(error: BaseException) -> str:
    """Describes another library's error in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    # Such errors begin with the operation and end with the reason of the failure.
    return text if len(text) <= 2 * _MOST_SHOWN else f"{text[:_MOST_SHOWN]}...{text[-_MOST_SHOWN:]}"


class _PartHandler(ocp.type_handlers.ArrayHandler):
    """Reads arrays as orbax does, and writes this process's shards of them, each as one uncompressed chunk.

    Orbax writes in coroutines of an event loop, which it closes at the first error while tensorstore's threads still
    use it. Here an error is raised after all writes have ended.
    """

    def __init__(self) -> None:
        super().__init__(array_metadata_store=None)

    async def serialize(self, values: Sequence[Any], infos: Sequence[Any], args: Any = None) -> list[Any]:
        """Writes the array parts in one transaction, and waits for it: no future is left to wait for."""
        transaction = ts.Transaction(atomic=True)
        written = [(part, info) for part, info in zip(values, infos, strict=True) if part.shards]
        opening = [
            ts.open(_array_spec(part, info), create=True, open=True, context=info.ts_context, transaction=transaction)
            for part, info in written
        ]
        stores = _results(opening)
        writing = [
            store[index].write(data, can_reference_source_data_indefinitely=True)
            for store, (part, _) in zip(stores, written, strict=True)
            for index, data in part.shards
        ]
        _results([write.copy for write in writing])
        transaction.commit_async().result()
        return []


def _results(futures: Sequence[Any]) -> list[Any]:
    """Returns the results of futures; waits for all of them also where one fails, and raises the first error."""
    errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:
        raise errors[0]
    return [future.result() for future in futures]


def _array_spec(part: ArrayPart, info: Any) -> ts.Spec:
    """Returns the tensorstore spec by which this process writes an array, in a database of its own."""
    folder = f"{info.parent_dir.as_posix()}/{process_folder(jax.process_index())}/"
    return ts.Spec(
        {
            "driver": "zarr3",
            "kvstore": {
                "driver": "ocdbt",
                "base": {"driver": "file", "path": folder, "file_io_locking": {"mode": "non_atomic"}},
                "path": info.name,
                "config": {"max_inline_value_bytes": 1024, "max_decoded_node_bytes": 100_000_000},
            },
            "metadata": {
                "shape": part.shape,
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": part.shard_shape}},
                "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
                "data_type": part.dtype.name,
            },
            "store_data_equal_to_fill_value": True,
        }
    )


@contextlib.contextmanager
def _logged_by_the_caller() -> Iterator[None]:
    """Keeps errors out of the log that orbax logs with a traceback before it raises them."""

    def is_news(record: logging.LogRecord) -> bool:
        return not (record.exc_info and "orbax" in record.pathname)

    logger = logging.getLogger("absl")
    logger.addFilter(is_news)
    try:
        yield
    finally:
        logger.removeFilter(is_news)


def _handler() -> ocp.PyTreeCheckpointHandler:
    arrays = _PartHandler()
    return ocp.PyTreeCheckpointHandler(
        use_ocdbt=True,
        use_zarr3=True,
        type_handler_registry=ocp.type_handlers.create_type_handler_registry((jax.Array, arrays), (ArrayPart, arrays)),
    )
