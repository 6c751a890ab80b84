"""`python -m mmjax.simulate`: simulates a step of a plan: how long it takes, where devices idle and why, as a page.

python -m mmjax.simulate --plan=plan.json --gin_file=models/mllm_72b.gin --cluster=a800 --page=timeline.html
"""

import json
import pathlib

from absl import flags

from mmjax.planning import flags as planning_flags

_PLAN = flags.DEFINE_string("plan", "", "Plan file, such as python -m mmjax.plan --output writes.")
_PAGE = flags.DEFINE_string("page", "", "HTML file to draw the timeline in; it needs no other file.")
_TRACE = flags.DEFINE_string("trace", "", "File to write the timeline to, as a trace for ui.perfetto.dev.")
_RENDEZVOUS = flags.DEFINE_bool("rendezvous", False, "Hops occupy the devices at both ends, as ppermute programs do.")
_JSON = flags.DEFINE_bool("json", False, "Print one JSON document instead of tables.")


def main() -> int:
    """Simulates a step, writes the page and the trace if asked, and prints the step's times."""
    from configs.errors import UserError

    if not _PLAN.value:
        raise UserError("--plan is missing: give a plan file, such as python -m mmjax.plan --output=plan.json writes")
    from mmjax.planning.report import print_timeline, report_console
    from sharding.plans.plan import Plan, check_layout
    from sharding.simulation.html_page import html_page
    from sharding.simulation.perfetto import perfetto_trace

    plan = Plan.load(_PLAN.value)
    problem = planning_flags.problem_from_flags(1 + max(device for unit in plan.units for device in unit.devices))
    check_layout(plan, problem.graph, problem.devices)
    timeline = problem.simulate(plan, _RENDEZVOUS.value)
    title = f"{pathlib.Path(_PLAN.value).name} on {problem.cluster.name}"
    written = []
    for path, text in (
        (_PAGE.value, lambda: html_page(timeline, title)),
        (_TRACE.value, lambda: perfetto_trace(timeline)),
    ):
        if path:
            pathlib.Path(path).write_text(text(), encoding="utf-8")
            written.append(path)
    if _JSON.value:
        print(json.dumps({"plan": json.loads(plan.to_json()), **timeline.summary()}))
        return 0
    print_timeline(timeline, plan, problem, report_console())
    if written:
        print(f"Written to {', '.join(written)}")
    return 0
