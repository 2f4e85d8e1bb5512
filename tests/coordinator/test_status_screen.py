"""What `fleet status` shows: every line fits, and what has no room is told of."""

import io
import re
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from coordinator.planning.tariff import Tariff, watts
from coordinator.screens.screen_table import MORE, Column, fit, printable, shortened
from coordinator.screens.snapshot import Event, FleetSnapshot, JobLine, MacLine, MacState
from coordinator.screens.status_screen import StatusScreen, left, lines, mac_columns
from tests.snapshots import NOW, fleet, mac

EMPTY = FleetSnapshot(version="1", coordinator="studio", now=NOW)


def shown(snapshot: FleetSnapshot, width: int = 120, height: int | None = None, **more: object) -> list[str]:
    return [text for text, _ in lines(snapshot, width, height, **more)]  # type: ignore[arg-type]


def line_of(name: str, text: list[str]) -> str:
    return next(line for line in text if line.split()[:1] == [name])


@pytest.mark.parametrize("width", [20, 60, 80, 120, 200])
@pytest.mark.parametrize("macs", [0, 1, 8, 30])
@pytest.mark.parametrize("jobs", [0, 3, 40])
@pytest.mark.parametrize("height", [None, 5, 24, 50])
def test_no_line_is_wider_and_no_view_higher_than_the_screen(
    width: int, macs: int, jobs: int, height: int | None
) -> None:
    text = shown(fleet(macs, jobs), width, height)
    assert max(map(cell_len, text)) <= width
    assert height is None or len(text) <= height
    assert sum(line.startswith("fleet on studio"[:19]) for line in text) == 1


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_eight_macs_and_three_jobs_are_all_there_at_24_lines(width: int) -> None:
    text = shown(fleet(8), width, 24)
    names = {line.split()[0] for line in text if line}
    assert {"1", "2", "3", *(mac(number).name for number in range(8))} <= {name.rstrip(MORE) for name in names}
    assert any("12,345/100,000" in line and "65-80 min" in line for line in text)
    assert "paused: battery" in line_of("air", text)
    assert sum(" ago  " in line for line in text) == 5


def test_at_80_columns_a_job_and_a_mac_say_what_matters() -> None:
    text = shown(fleet(8), 80, 24)
    assert " ".join(line_of("1", text).split()) == "1 running 12,345/100,000 4 17 1,834/1,950 65-80 min"
    assert " ".join(line_of("studio", text).split()) == "studio M3 Ultra 5.0/8 GB 30/32 1,234/1,300 40% working"


@pytest.mark.parametrize("width", [60, 80])
def test_columns_without_room_leave_an_ellipsis_in_the_head(width: int) -> None:
    heads = [line for line in shown(fleet(8), width) if line.startswith(("JOB", "MAC"))]
    assert [line[-1] for line in heads] == [MORE, MORE]


def test_with_room_every_column_is_there_and_nothing_is_cut() -> None:
    text = shown(fleet(8), 200)
    assert MORE not in "".join(text)
    heads = " ".join(line for line in text if line.startswith(("JOB", "MAC")))
    jobs = "JOB TASK STATE DONE FAILED RETRIED TOK/S PAD LEFT MODEL"
    assert " ".join(heads.split()) == f"{jobs} MAC CHIP MEMORY BATCH TOK/S SHARE ROWS STATE QUEUED MODEL"


def test_a_mac_that_has_not_worked_yet_has_no_speed_and_one_that_came_to_a_stop_has_none_of_what_it_could() -> None:
    new = replace(mac(0), name="new", running=0, output_tps=0.0, measured_tps=100.0, rows_done=0)
    macs = (new, replace(new, name="idle", rows_done=7), replace(new, name="begun", output_tps=3.0))
    (column,) = [column for column in mac_columns(macs) if column.title == "TOK/S"]
    assert column.cells == ("-", "0/100", "3/100")


def test_until_the_present_model_has_shown_its_speed_there_is_a_dash() -> None:
    anew = replace(mac(0), output_tps=0.0, measured_tps=0.0, rows_done=7)
    (column,) = [column for column in mac_columns((anew,)) if column.title == "TOK/S"]
    assert column.cells == ("-",)


def test_of_thirty_macs_those_in_trouble_come_first_and_the_rest_is_counted() -> None:
    text = shown(fleet(30), 80, 24)
    rest = next(line for line in text if "more Macs" in line)
    named = text.index(rest) - next(n for n, line in enumerate(text) if line.startswith("MAC")) - 1
    assert named + int(rest.split()[1]) == 30
    assert sum("stale" in line for line in text) == 3
    assert "12 working" in rest


def test_of_many_jobs_those_at_work_come_first_and_the_rest_is_counted() -> None:
    jobs = tuple(replace(job, state="finished") for job in fleet(0, 19).jobs)
    running = replace(jobs[0], id=20, state="running")
    text = shown(replace(EMPTY, jobs=(*jobs, running), macs=fleet(8).macs), 80, 24)
    assert line_of("20", text)
    assert [line for line in text if "more job" in line] == ["… 10 more jobs: 10 finished"]


def test_where_nothing_bounds_the_lines_only_late_events_are_told() -> None:
    assert sum(" ago  " in line for line in shown(fleet(1, 1, events=300))) == 10


def test_a_fleet_without_jobs_and_macs_says_how_to_get_them() -> None:
    text = shown(EMPTY)
    assert text[0] == "fleet on studio  0 Macs, 0 at work"
    assert "fleet submit" in text[2]
    assert "fleet join" in text[4]


def test_the_newest_event_comes_first_with_its_age() -> None:
    events = (Event(at=NOW - 7300, text="air joined"), Event(at=NOW - 12, text="air lost"))
    assert shown(replace(EMPTY, events=events))[-2:] == ["12 s ago  air lost", " 2 h ago  air joined"]


def test_a_notice_stands_under_the_title() -> None:
    assert shown(EMPTY, notice="no answer")[1] == "no answer"


def test_names_notes_and_errors_of_other_machines_cannot_move_the_cursor() -> None:
    evil = "a\x1b[2Jb\nc\r\u202e"
    snapshot = replace(
        EMPTY,
        coordinator=evil,
        jobs=(JobLine(id=1, task=evil, model=evil, state="failed", error=evil),),
        macs=(MacLine(id="w", name=evil, state=MacState.PAUSED, note=evil, chip=evil, model=evil),),
        events=(Event(at=NOW, text=evil),),
    )
    assert all(line.isprintable() for line in shown(snapshot, 200, notice=evil))


def test_wide_letters_are_counted_as_wide() -> None:
    named = replace(EMPTY, macs=(replace(mac(0), name="書斎のマックスタジオ" * 3), mac(1)))
    text = shown(named, 80)
    assert max(map(cell_len, text)) <= 80
    assert any(MORE in line and "書斎" in line for line in text)


def test_a_failed_job_says_why_as_far_as_there_is_room() -> None:
    text = shown(fleet(1, jobs=4), 200, 50)
    assert "failed: no worker can load the model: mini has 16 GB" in line_of("4", text)
    assert "failed: n" in line_of("4", shown(fleet(1, jobs=4), 80, 50))


def test_printed_below_each_other_why_a_job_failed_stands_below_the_jobs_whole() -> None:
    # It made the column of states, and every line, as long as itself.
    text = shown(fleet(1, jobs=4), 40)
    at = text.index(line_of("4", text))
    assert " ".join(text[at + 1].split() + text[at + 2].split()) == (
        "job 4 failed: no worker can load the model: mini has 16 GB"
    )
    assert "no worker" not in line_of("4", shown(fleet(1, jobs=4), 200))


def test_costs_are_those_of_the_macs_at_work() -> None:
    tariff = Tariff(watts=watts("100,studio=300"), price=0.36)
    working = replace(mac(0), output_tps=100.0)
    snapshot = replace(EMPTY, macs=(working, mac(3)), jobs=fleet(0, 1).jobs)
    head, row = [line for line in shown(snapshot, tariff=tariff) if line.startswith(("JOB", "  1"))]
    assert row[: head.index("COST/1M") + len("COST/1M")].split()[-1] == "0.30"  # 300 W x 10,000 s x 0.36 a kWh


@pytest.mark.parametrize(
    ("eta", "words"),
    [
        (None, ""),
        ((40.2, 55.0), "40-55 s"),
        ((0.0, 0.0), "0 s"),
        ((60.0, 179.0), "60-179 s"),
        ((3900.0, 4800.0), "65-80 min"),
        ((3600.0, 12_600.0), "1.0-3.5 h"),
        ((12_600.0, 12_610.0), "3.5 h"),
        ((86_400.0, 259_200.0), "1.0-3.0 d"),
    ],
)
def test_time_left_is_a_range_in_one_unit(eta: tuple[float, float] | None, words: str) -> None:
    assert left(eta) == words


def drawn(terminal: bool, environ: dict[str, str]) -> str:
    stream = io.StringIO()
    Console(file=stream, force_terminal=terminal, width=80, _environ=environ).print(StatusScreen(fleet(8)))
    return stream.getvalue()


def test_a_terminal_gets_colours_unless_it_was_asked_not_to_and_a_pipe_gets_none() -> None:
    colours = re.compile(r"\x1b\[[\d;]*3\dm")
    assert colours.search(drawn(True, {"TERM": "xterm-256color"}))
    assert not colours.search(drawn(True, {"TERM": "xterm-256color", "NO_COLOR": "1"}))
    assert "\x1b" not in drawn(False, {})


# -- columns ---------------------------------------------------------------------------------------


def column(title: str, *cells: str, rank: int = 0, least: int = 0, right: bool = False) -> Column:
    return Column(title=title, cells=cells, rank=rank, least=least, right=right)


def test_columns_shrink_before_one_goes_and_the_highest_rank_goes_first() -> None:
    columns = [column("A", "aaaaaaaaaa", least=4), column("B", "bb", rank=1), column("C", "cc", rank=2)]
    assert fit(columns, 18).widths == (10, 2, 2)
    assert fit(columns, 14).row(0) == ("aaaaa…", "bb", "cc")
    narrow = fit(columns, 11)
    assert (narrow.row(0), narrow.head, narrow.cut) == (("aaa…", "bb"), ("A   ", "B ", MORE), True)


def test_a_column_without_a_word_takes_no_room_and_is_not_missed() -> None:
    table = fit([column("A", "x"), column("B", "")], 80)
    assert ([c.title for c in table.columns], table.cut) == (["A"], False)


def test_figures_stand_to_the_right() -> None:
    assert fit([column("N", "1", "100", right=True)], 80).row(0) == ("  1",)


@pytest.mark.parametrize(("width", "text"), [(3, "abc"), (2, "a…"), (1, "…")])
def test_a_cut_text_says_so(width: int, text: str) -> None:
    assert shortened("abc", width) == text


def test_unprintable_signs_become_blanks() -> None:
    assert printable("a\tb\x00\x7fé") == "a b  é"
