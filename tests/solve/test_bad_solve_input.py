"""Bad arguments of delays, `solve` and systems. More of `solve` is in test_errors.py."""

import diffrax
import jax
import numpy as np
import pytest
from helpers.refusals import HUGE, INF, NAN, check_call

import lagrax
from lagrax import Hold, Lag, Learn, systems


def field(t, y, args, *, history):
    return -y + sum(history)


def solve(f=field, t0=0.0, t1=2.0, y0=1.0, **options):
    options.setdefault("delays", [Hold(1.0)])
    return lagrax.solve(f, t0, t1, y0, **options)


def controlled(**options):
    return diffrax.PIDController(**{"rtol": 1e-3, "atol": 1e-3} | options)


CALLS = {
    "tau an object": (lambda: Hold(object()), ValueError, ["Hold got tau=<object", "positive"]),
    "tau complex": (lambda: Lag(1j), ValueError, ["Lag got tau=1j", "one positive number"]),
    "tau true": (lambda: Hold(True), ValueError, ["tau=True", "one positive number"]),
    "times a text": (lambda: Hold(times="abc"), ValueError, ["times='abc'", "instants"]),
    "times ragged": (lambda: Hold(times=[[1.0], [1.0, 2.0]]), ValueError, ["times=[[1.0], [1."]),
    "holds fractional": (lambda: lagrax.holds(1.0, 2.5), ValueError, ["n=2.5", "whole number"]),
    "learn a text": (lambda: Learn("1"), ValueError, ["start='1'", "positive number"]),
    "learn infinite": (lambda: Learn(1.0, high=INF), ValueError, ["high=inf"]),
    "learn complex": (lambda: Learn(np.complex64(1 + 1j)), ValueError, ["start=", "1+1j"]),
    "tau NumPy's complex": (lambda: Hold(np.complex64(1j)), ValueError, ["Hold got tau=", "1j"]),
    "times complex": (lambda: Hold(times=np.array([1j, 2])), ValueError, ["times=", "instants"]),
    "times as texts": (lambda: Hold(times=["1", "2"]), ValueError, ["times=['1', '2']"]),
    "a lag without end": (lambda: Hold(1.0, lag=HUGE), ValueError, ["lag=1000", "2,147,483,647"]),
    "a lag of pages": (lambda: Hold(1.0, lag=10**5000), ValueError, ["lag=a number of 16610 bits"]),
    "a million holds": (
        lambda: lagrax.holds(1.0, 10**6),
        ValueError,
        ["n=1000000", "at most 1,000", "minutes", "Hold(tau, lag=n)"],
    ),
    "a list of thousands": (
        lambda: solve(delays=[Hold(1.0)] * 2000),
        ValueError,
        ["2,000 delays", "at most 1,000", "minutes"],
    ),
    "a long lag over many intervals": (
        lambda: solve(t1=4e5, delays=[Hold(1.0, lag=10**6)]),
        ValueError,
        ["Hold(1.0, lag=1000000)", "400,000 intervals", "1.6e+11 times", "smaller lag"],
    ),
    "t0 a text": (lambda: solve(t0="0"), ValueError, ["t0='0'", "one finite time"]),
    "t1 none": (lambda: solve(t1=None), ValueError, ["t1=None", "one finite time"]),
    "t1 complex": (lambda: solve(t1=2j), ValueError, ["t1=2j"]),
    "dt0 negative": (lambda: solve(dt0=-0.1), ValueError, ["dt0=-0.1", "positive"]),
    "dt0 zero": (lambda: solve(dt0=0.0), ValueError, ["dt0=0.0", "Leave it out"]),
    "dt0 a text": (lambda: solve(dt0="small"), ValueError, ["dt0='small'"]),
    "milliseconds for years": (
        lambda: solve(t1=1e12, delays=[Hold(1e-3)]),
        ValueError,
        ["Hold(0.001)", "1e+15 intervals", "same unit"],
    ),
    "state of texts": (lambda: solve(y0=np.array(["a"])), TypeError, ["y0", "<U1", "astype"]),
    "state of objects": (lambda: solve(y0=np.array([None])), TypeError, ["y0", "object"]),
    "no state": (lambda: solve(y0=None), ValueError, ["y0=None holds no numbers"]),
    "no fields": (lambda: solve([]), ValueError, ["0 fields", "2 intervals"]),
    "no field": (lambda: solve(None), TypeError, ["field=None", "cannot be called"]),
    "a bar as progress": (lambda: solve(progress_meter="bar"), TypeError, ["progress_meter='bar'"]),
    "intervals a text": (lambda: solve(intervals="2"), TypeError, ["intervals='2'"]),
    "t1 NumPy's complex": (lambda: solve(t1=np.complex64(2)), ValueError, ["t1=", "2+0j"]),
    "dt0 complex": (lambda: solve(dt0=np.complex64(1)), ValueError, ["dt0=", "1+0j"]),
    "times to save complex": (
        lambda: solve(saveat=diffrax.SaveAt(ts=np.array([1 + 1j]))),
        ValueError,
        ["saveat.ts=", "1.+1.j", "real times"],
    ),
    "times to save traced and complex": (
        lambda: jax.jit(lambda ts: solve(saveat=diffrax.SaveAt(ts=ts)).ys)(np.array([1j])),
        ValueError,
        ["saveat.ts=", "real times"],
    ),
    "steps without end": (lambda: solve(steps=HUGE), ValueError, ["steps=1000", "Dopri8"]),
    "steps of hours": (lambda: solve(steps=2**30), ValueError, ["steps=1073741824", "Dopri8"]),
    "max_steps without end": (
        lambda: solve(max_steps=HUGE),
        ValueError,
        ["max_steps=1000", "at most 2,147,483,647", "32 bits"],
    ),
    "intervals without end": (
        lambda: jax.jit(lambda tau: solve(delays=[Hold(tau)], intervals=10**12).ys)(1.0),
        ValueError,
        ["intervals=1000000000000", "100,000,000", "same unit"],
    ),
    "a tolerance in words": (
        lambda: solve(stepsize_controller=controlled(rtol="a")),
        ValueError,
        ["PIDController got rtol='a'", "positive numbers"],
    ),
    "a tolerance that is none": (
        lambda: solve(stepsize_controller=controlled(atol=NAN)),
        ValueError,
        ["PIDController got atol=nan"],
    ),
    "a tolerance below zero": (
        lambda: solve(stepsize_controller=controlled(rtol=-1e-3)),
        ValueError,
        ["PIDController got rtol=-0.001"],
    ),
    "a complex tolerance": (
        lambda: solve(stepsize_controller=controlled(rtol=1j)),
        ValueError,
        ["PIDController got rtol=1j"],
    ),
    "a coefficient in words": (
        lambda: solve(stepsize_controller=controlled(pcoeff="a")),
        ValueError,
        ["PIDController got pcoeff='a'"],
    ),
    "a clipped tolerance in words": (
        lambda: solve(
            stepsize_controller=diffrax.ClipStepSizeController(controlled(rtol="a"), [0.3])
        ),
        ValueError,
        ["PIDController got rtol='a'"],
    ),
    "a tolerance of the adjoint in words": (
        lambda: solve(gradient=lagrax.Adjoint(stepsize_controller=controlled(rtol="a"))),
        ValueError,
        ["PIDController got rtol='a'"],
    ),
    "max_steps none": (lambda: solve(max_steps=None), ValueError, ["max_steps=None"]),
    "saveat none": (lambda: solve(saveat=None), TypeError, ["saveat=None", "diffrax.SaveAt"]),
    "delays a text": (lambda: solve(delays="hold"), TypeError, ["delays='hold'", "list of Hold"]),
    "a rate in words": (lambda: systems.Population("much"), TypeError, ["Population got a='much'"]),
    "a rate that is none": (lambda: systems.Population(NAN), ValueError, ["a=nan", "finite"]),
    "a complex rate": (lambda: systems.Population(1j), TypeError, ["a=1j", "real numbers"]),
    "a rate of true": (lambda: systems.Population(True), TypeError, ["a=True", "real numbers"]),
    "a rate too large": (lambda: systems.Population(10**400), TypeError, ["a=a number of 1329"]),
    "a traced complex rate": (
        lambda: jax.jit(lambda a: systems.Population(a).y0)(1j),
        TypeError,
        ["Population got a of complex64"],
    ),
    "A with NaN": (
        lambda: systems.Linear(A=[[NAN]], Bs=[[[1.0]]]),
        ValueError,
        ["Linear got A=[[nan]]", "finite"],
    ),
    "A complex": (
        lambda: systems.Linear(A=np.array([[1j]]), Bs=[[[1.0]]]),
        TypeError,
        ["Linear got A=array([[0.+1.j]])", "real numbers"],
    ),
    "Bs infinite": (
        lambda: systems.Linear(A=[[1.0]], Bs=[[[INF]]]),
        ValueError,
        ["Linear got Bs[0]=[[inf]]"],
    ),
    "Bs a number": (lambda: systems.Linear(Bs=3), TypeError, ["Linear got Bs=3", "Bs=[B]"]),
    "K with NaN": (
        lambda: systems.DigitalControl(K=[[NAN, 1.0]]),
        ValueError,
        ["DigitalControl got K=[[nan, 1.0]]"],
    ),
    "a lag of a system without end": (
        lambda: systems.Population(lag=10**9),
        ValueError,
        ["Population got lag=1000000000", "at most 999", "minutes"],
    ),
    "a complex knot": (
        lambda: systems.Population().knot_map(1j),
        TypeError,
        ["knot_map got y=1j", "real numbers"],
    ),
    "a start of a solution that is none": (
        lambda: systems.Population().solution(1.0, NAN),
        ValueError,
        ["solution got y0=nan"],
    ),
    "a complex start of a solution": (
        lambda: systems.Population().solution(1.0, 1j),
        TypeError,
        ["solution got y0=1j"],
    ),
    "times of a solution in words": (
        lambda: systems.Population().solution("a"),
        TypeError,
        ["solution got ts='a'"],
    ),
    "intervals of a solution without end": (
        lambda: systems.Population().solution(1.0, intervals=HUGE),
        ValueError,
        ["solution got intervals=1000", "32 bits"],
    ),
    "several rates": (
        lambda: systems.Population(np.ones(2)),
        ValueError,
        ["Population got a of shape (2,)", "filter_vmap"],
    ),
    "a period in words": (
        lambda: systems.Hutchinson(tau="1"),
        ValueError,
        ["Hutchinson got tau=1"],
    ),
    "no period": (lambda: systems.MackeyGlass(tau=None), ValueError, ["MackeyGlass got tau=None"]),
    "an exponent in words": (lambda: systems.MackeyGlass(n="ten"), TypeError, ["n='ten'"]),
    "a frequency without end": (
        lambda: systems.HeldOscillator(omega=INF),
        ValueError,
        ["HeldOscillator got omega=inf"],
    ),
    "lag of a system": (lambda: systems.Population(lag=-1), ValueError, ["lag=-1", "Hutchinson"]),
    "A a row": (lambda: systems.Linear(A=[1.0]), ValueError, ["Linear got A of shape (1,)"]),
    "no Bs": (lambda: systems.Linear(Bs=[]), ValueError, ["Linear got no Bs"]),
    "Bs of another size": (lambda: systems.Linear(Bs=[[[1.0]]]), ValueError, ["Bs[0] of shape"]),
    "Bs in words": (lambda: systems.Linear(Bs=["x"]), TypeError, ["Linear got Bs[0]='x'"]),
    "B of another size": (lambda: systems.DigitalControl(B=[[1.0]]), ValueError, ["B of shape"]),
    "K a row": (lambda: systems.DigitalControl(K=[0.5, 1.0]), ValueError, ["K of shape (2,)"]),
    "a solution at no time": (lambda: systems.Population().solution(NAN), ValueError, ["to nan"]),
    "a solution at the end of time": (
        lambda: systems.Population().solution(np.array([1.0, 1e300])),
        ValueError,
        ["times up to 1e+300", "tau=1.0"],
    ),
    "intervals of a solution": (
        lambda: systems.Population().solution(1.0, intervals=1.5),
        ValueError,
        ["intervals=1.5"],
    ),
    "a start of another size": (
        lambda: systems.Linear().solution(1.0, np.ones(3)),
        ValueError,
        ["2 states", "shape (3,)"],
    ),
    "knots of a system": (
        lambda: systems.Population().knot_map(0.5, 0.4),
        ValueError,
        ["knot_map got 2 knots; expected 1"],
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_calls_are_refused(case, unchecked, tmp_path, monkeypatch):
    check_call(CALLS[case], tmp_path, monkeypatch)
