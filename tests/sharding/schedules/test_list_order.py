"""List scheduling looks only at queues of which an op may start, and finds the same order as if it looked at all."""

from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.schedules.interleaved_1f1b import interleaved_in_flight
from sharding.schedules.list_order import ListOrder
from sharding.schedules.list_scheduling import warm_up_order
from sharding.schedules.numbered_passes import NumberedPasses
from sharding.schedules.one_f_one_b import backwards_first
from sharding.schedules.ops import COMPUTE_KINDS
from tests.sharding.colocated_steps import colocated_op_graph, colocated_recipes
from tests.sharding.schedules.test_order_by_seconds import SECONDS, with_seconds
from tests.sharding.stage_graphs import build_op_graph, recipes
from tests.sharding.steps import with_split_stages


class _OfAllQueues(ListOrder):
    """Looks at all queues whenever ops end."""

    def _start(self) -> int:
        self._changed.update(range(len(self._ready)))
        return super()._start()


@given(
    recipes().map(build_op_graph) | colocated_recipes().map(lambda recipe: colocated_op_graph(*recipe)),
    SECONDS,
    st.integers(1, 4),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_queues_of_which_no_op_may_start_are_not_looked_at(op_graph, seconds, share, in_fixed_order):
    timed = with_seconds(op_graph, seconds).seconds
    limits = {rank: max(1, limit * share // 3) for rank, limit in interleaved_in_flight(op_graph).items()}
    orders = {rank: warm_up_order(op_graph, rank, limits[rank] - 1) for rank in limits if in_fixed_order}
    arguments = (NumberedPasses(op_graph), limits, backwards_first(op_graph), orders, timed)
    if not op_graph.stage_graph.compiled:
        assert ListOrder(*arguments).events() == _OfAllQueues(*arguments).events()


@given(recipes())
@settings(max_examples=60, deadline=None)
def test_numbers_say_which_passes_wait_for_which(recipe):
    op_graph = with_split_stages(build_op_graph(recipe))
    passes, dependencies = NumberedPasses(op_graph), op_graph.dependencies
    assert set(passes.ops) == {op for op in dependencies if op.kind in COMPUTE_KINDS}
    for number, op in enumerate(passes.ops):
        before = set()
        for dependency in dependencies[op]:  # a pass, or a hop that follows passes
            before |= {dependency} if dependency.kind in COMPUTE_KINDS else set(dependencies.get(dependency, ()))
        awaited = {other for other in before if other.kind in COMPUTE_KINDS}
        assert awaited == {passes.ops[other] for other in range(len(passes.ops)) if number in passes.dependents[other]}
        assert passes.awaited_counts[number] == len(awaited)
        assert passes.rank_ids[passes.ranks[number]] == op_graph.stage_graph.rank_of_microbatch(
            op.stage_id, op.microbatch
        )
