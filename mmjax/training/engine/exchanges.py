"""The exchanges of a batch: tables made on the host ahead of its step, by any thread, and placed on devices for it.

`Engine.place_batch` places them; the executor's hops read them.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int

from data.packing.dealt_phases import DealtPhases, HostArrays
from data.packing.phases.item_tables import first_slots, microbatch_items
from sharding.runtime.exchange.exchange_hop import ExchangeHop
from sharding.runtime.exchange.tables import ExchangeTables, TokenRuns
from sharding.runtime.executor import Executor
from sharding.runtime.pipeline import Channel, ExchangeMicrobatch


@dataclasses.dataclass(frozen=True)
class MicrobatchTables:
    """The exchange tables of a microbatch in a channel, on the host.

    Attributes:
        capacity: Number of the capacity with which it runs; None if it has no items, and exchanges nothing.
        activations, gradients: Tables of both directions; None where this process has no device, or nothing is sent.
    """

    capacity: int | None = None
    activations: ExchangeTables | None = None
    gradients: ExchangeTables | None = None


BatchTables = Mapping[str, Sequence[MicrobatchTables]]
"""Exchange tables of each microbatch, by channel."""


class Exchanges:
    """The exchange hops of a plan, between the backbone and modules with rows of their own.

    Args:
        executor: The executor, which has the channels.
        dealt_phases: The modules with rows of their own.
    """

    def __init__(self, executor: Executor, dealt_phases: DealtPhases) -> None:
        self._executor, self._dealt_phases = executor, dealt_phases

    @functools.cached_property
    def channels(self) -> dict[str, tuple[Channel, ...]]:
        """Channels whose ends have different rows, by name: one for each pair of pipeline replicas and capacity."""
        exchanges: dict[str, tuple[Channel, ...]] = {}
        for channel in self._executor.channels:
            if isinstance(channel.activation_hop, ExchangeHop):
                exchanges[channel.name] = (*exchanges.get(channel.name, ()), channel)
        return exchanges

    def tables(self, arrays: HostArrays) -> BatchTables:
        """Makes the tables of a dealt batch, by NumPy alone: in any thread, while the devices run an earlier step."""
        capacities = self._dealt_phases.capacities(arrays)
        phases, microbatches = self._dealt_phases.phases, self._dealt_phases.microbatches
        made = {}
        for name in self.channels:
            (module,) = (module for module in name.split(">") if module in phases)
            by_microbatch = microbatch_items(arrays[phases[module].table_name]["items"], microbatches)
            made[name] = [
                MicrobatchTables()
                if capacity is None
                else self._microbatch_tables(self._channel(name, microbatch, capacity), items, module)
                for microbatch, (items, capacity) in enumerate(zip(by_microbatch, capacities[module], strict=True))
            ]
        return made

    def _microbatch_tables(self, channel: Channel, items: Int[np.ndarray, "k 6"], module: str) -> MicrobatchTables:
        phase = self._dealt_phases.phases[module]
        in_batch, in_phase = first_slots(items, phase, phase.capacities[channel.capacity])
        ends = (in_batch, in_phase) if phase.is_generator else (in_phase, in_batch)
        runs = TokenRuns(*ends, items[:, -1])
        there, back = _hops(channel)
        sends_gradients = channel.name in self._executor.stages[channel.target].programs.differentiated_inputs
        return MicrobatchTables(
            channel.capacity, there.make_tables(runs), back.make_tables(runs.reversed) if sends_gradients else None
        )

    def place(self, tables: BatchTables) -> dict[str, list[ExchangeMicrobatch]]:
        """Places the tables on this process's devices."""
        placed = {}
        for name, by_microbatch in tables.items():
            placed[name] = []
            for microbatch, microbatch_tables in enumerate(by_microbatch):
                if microbatch_tables.capacity is None:
                    placed[name].append(ExchangeMicrobatch())
                    continue
                there, back = _hops(self._channel(name, microbatch, microbatch_tables.capacity))
                placed[name].append(
                    ExchangeMicrobatch(
                        there.place_tables(microbatch_tables.activations),
                        back.place_tables(microbatch_tables.gradients),
                    )
                )
        return placed

    def _channel(self, name: str, microbatch: int, capacity: int) -> Channel:
        """Returns the channel of a name with the hops of a microbatch that runs with a capacity."""
        first = self.channels[name][0]
        joined = self._executor.microbatch_ops.channels_at(first.source, first.target, microbatch, capacity)
        return next(channel for channel in joined if channel.name == name)


def _hops(channel: Channel) -> tuple[ExchangeHop, ExchangeHop]:
    there, back = channel.activation_hop, channel.gradient_hop
    assert isinstance(there, ExchangeHop) and isinstance(back, ExchangeHop)
    return there, back
