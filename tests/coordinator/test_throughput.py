"""Counters add up over engine restarts, rates come from differences."""

from coordinator.scheduling.throughput import FIRST_DECODE_TPS, Throughput
from fleet.messages import Figures


def test_an_engine_that_starts_anew_adds_to_the_total() -> None:
    throughput = Throughput()
    throughput.report(Figures(output_tokens=100, prompt_tokens=50, steps=10, peak_bytes=7), 0.0)
    throughput.report(Figures(output_tokens=30, prompt_tokens=20, steps=3, peak_bytes=5), 3.0)
    assert throughput.total == Figures(output_tokens=130, prompt_tokens=70, steps=13, peak_bytes=7)


def test_the_rate_is_over_the_last_minute() -> None:
    throughput = Throughput()
    for second in range(0, 100, 10):
        throughput.report(Figures(output_tokens=second * (1 if second < 50 else 2), steps=second), float(second))
    assert throughput.output_tps == (180 - 30) / 60


def test_speeds_are_modest_until_an_engine_has_worked() -> None:
    throughput = Throughput()
    assert throughput.decode_tps == FIRST_DECODE_TPS
    throughput.report(Figures(output_tokens=400, decode_s=2.0, steps=1), 1.0)
    assert throughput.decode_tps == 200.0


def test_where_nothing_is_decoded_tokens_read_are_told() -> None:
    throughput = Throughput()
    throughput.report(Figures(prompt_tokens=100, prefill_s=1.0), 0.0)
    throughput.report(Figures(prompt_tokens=700, prefill_s=2.0), 3.0)
    assert (throughput.told_tps, throughput.usual_tps) == (200.0, 350.0)
    throughput.report(Figures(prompt_tokens=700, prefill_s=2.0, output_tokens=60, decode_s=1.0, steps=6), 6.0)
    assert (throughput.told_tps, throughput.usual_tps) == (10.0, 60.0)
