"""What is shown in a terminal is shown as it is: no control sequence acts, no markup is read, no message fills it."""

import io

from rich.table import Table

from configs.common.console import plain_console
from configs.common.shown_text import one_line


def test_a_message_has_no_control_sequence_and_no_line_break():
    shown = one_line("no module a\x1b[2J\x1b]0;title\x07b\r\nnext\u2028\x9b31m; it has é and 東")
    assert shown == "no module a\\x1b[2J\\x1b]0;title\\x07b\\r\\nnext\\u2028\\x9b31m; it has é and 東"
    assert one_line("half of a pair \ud83d") == "half of a pair \\ud83d"


def test_a_long_message_keeps_its_beginning_and_its_end():
    shown = one_line("the plan: devices is " + 10**6 * "9" + "; name fewer")
    assert len(shown) <= 500 and shown.startswith("the plan: devices is 9") and shown.endswith("9; name fewer")
    assert one_line(500 * "x") == 500 * "x"


def test_names_are_no_markup_and_no_emoji():
    console = plain_console(file=io.StringIO(), width=80)
    table = Table(title="[/bold] of :smile:")
    table.add_column("[red]unit[/red]")
    table.add_row("[/bold]")
    console.print(table)
    console.print("[/bold] is :smile:")
    shown = console.file.getvalue()
    assert shown.count("[/bold]") == 3 and shown.count(":smile:") == 2 and "[red]unit[/red]" in shown
