"""Texts that the processes of a run share, in jax's coordination service, which runs in process 0."""

from jax._src.distributed import global_state  # jax has no public interface to it


class ProcessStore:
    """A folder of texts by name, which every process of the run can write and read.

    All methods raise `jax.errors.JaxRuntimeError` if process 0 refuses, and wait while it does not answer.

    Args:
        folder: Name of the folder.
    """

    def __init__(self, folder: str) -> None:
        self._prefix = f"mmjax/{folder}/"
        if global_state.client is None:
            raise RuntimeError("jax.distributed.initialize has not been called in this process")
        self._client = global_state.client

    def write(self, name: str, text: str) -> None:
        """Writes a text over what has the name."""
        self._client.key_value_set(self._prefix + name, text, allow_overwrite=True)

    def read(self) -> dict[str, str]:
        """All texts by name."""
        return {key.removeprefix(self._prefix): text for key, text in self._client.key_value_dir_get(self._prefix)}
