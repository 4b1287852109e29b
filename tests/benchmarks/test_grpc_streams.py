import pytest

from benchmarks.grpc_streams import Sample, targets


def test_streams_are_measured_against_unary_calls_of_the_same_turn(capsys: pytest.CaptureFixture[str]) -> None:
    rate, cpu = targets(
        {
            "unary": [Sample(100, 20), Sample(50, 20), Sample(100, 20)],
            "streamed": [Sample(160, 14), Sample(100, 10), Sample(140, 18)],
        }
    )
    assert (rate.measured.median, rate.measured.minimum, rate.measured.maximum) == (1.6, 1.4, 2)
    assert (rate.bound, rate.at_least, rate.met) == (1.5, True, True)
    assert (cpu.measured.median, cpu.at_least, cpu.met) == (0.7, False, True)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:4]] == ["unary", "streamed"]
