import json

from benchmarks.rows import every_goal_met, package_versions, paper_row, print_table, report

ROWS = [
    {"name": "fast", "value": 1.234567, "goal": 2.0, "met": True, "paper": None},
    {"name": "counted", "value": 3, "goal": None, "met": None, "paper": 4.0},
]


def test_a_goal_that_is_not_there_is_not_missed():
    assert every_goal_met(ROWS)
    assert not every_goal_met([*ROWS, ROWS[0] | {"met": False}])


def test_the_table_has_a_line_a_row_and_nothing_for_what_is_not_there(capsys):
    print_table(ROWS, comparison_key="paper", digits=4)
    lines = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()]
    assert ["fast", "1.235", "2", "yes"] in lines
    assert ["counted", "3", "4"] in lines


def test_a_goal_beside_a_papers_figure_is_the_least_or_the_most():
    assert paper_row("x", 2, 1.5, goal=2)["met"] and not paper_row("x", 2, goal=3)["met"]
    assert paper_row("x", 2, goal=3, most=True)["met"] and not paper_row("x", 2, goal=1, most=True)["met"]
    assert paper_row("x", 2, 1.5) == {"name": "x", "value": 2, "goal": None, "met": None, "paper": 1.5}


def test_a_report_is_a_table_or_json_and_its_status_says_whether_all_goals_are_met(capsys):
    assert report(ROWS, "paper", digits=4, as_json=True) == 0
    assert json.loads(capsys.readouterr().out) == {"rows": ROWS, "versions": package_versions()}
    missed = [*ROWS, ROWS[0] | {"met": False}]
    assert report(missed, "paper", digits=4, as_json=False) == 1
    assert "1.235" in capsys.readouterr().out
