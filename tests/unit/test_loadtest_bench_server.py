"""`bench`: failures that h2load does not see, and the table of REST."""

import pytest
from rich.console import Console

from loadtest.commands.bench import print_rest
from loadtest.measure.bench_server import check_data
from loadtest.measure.latency import figures
from loadtest.measure.rest_rates import RestFigure
from serving.base.errors import Unavailable


def test_data_of_all_answers_passes():
    check_data(1_000, answer_bytes=105, data_bytes=105_000)


def test_missing_answers_are_counted():
    with pytest.raises(Unavailable, match=r"1000 requests got 104790 bytes .* about 2 failed"):
        check_data(1_000, answer_bytes=105, data_bytes=104_790)


def test_rest_rates_are_compared_with_fastapi():
    console = Console(record=True, width=120)
    print_rest([], console)
    print_rest([RestFigure(100, 3_000.0, 250.0, figures([2_000_000] * 500))], console)
    text = console.export_text()
    assert "│ 100  │ 3,000  │ 250                     │ 12.0  │" in text
    assert "│ 100 rows │ 500      │ 2.00" in text
