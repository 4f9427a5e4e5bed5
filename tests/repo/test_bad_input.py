"""Bad input of every kind, to everything that is public: what is done, what it ends with, and words
that the message must hold: the culprit and, as a rule, the remedy. Nothing is written or lost.

Calls of `solve` are in test_errors.py, tables in test_table.py, data sets in test_data.py.
"""

import json
import os

import by_hand
import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from affine import ADAM, DATA, loss, make
from by_hand import CHECKPOINT, checkpoint, line, listing, model, run, write
from test_errors import CASES as SOLVES, solve

import lagrax
from lagrax import Hold, Identifier, Lag, Learn, analysis, nn, plotting, systems
from lagrax._cli.table import TableError, read_table
from lagrax.identify import IdentifyError
from lagrax.identify._selection import select_delays
from lagrax.plotting import Figure, Line, Panel, Points
from lagrax.training import train
from lagrax.training._files import WriteError
from lagrax.training._runs import RunError, RunFolder
from reproduction import DataError, ResultError, data, plan, read_result, write_report

NAN, INF = float("nan"), float("inf")
# More than a machine counts to.
HUGE = 10**30
KEY = jax.random.key(0)
ONES = jnp.ones((3, 2))
TS, SINE = np.arange(30.0), np.sin(np.arange(30.0))


def says(message, words):
    for word in words:
        assert word in message, message


# --- calls ----------------------------------------------------------------------------------------


def field(t, y, args, *, history):
    return -y + sum(history)


def two(x, older):
    return 1 - 1.4 * x**2 + 0.3 * older


def mlp(history=0, **options):
    return nn.MLP(2, (4,), history=history, key=KEY, **options)


def henon():
    return analysis.KnotMap(two, 0.1, lags=2)


def ricker():
    return analysis.KnotMap(lambda x: x * jnp.exp(3 * (1 - x)), 0.5)


def diagram():
    zeros = jnp.zeros((2, 3, 1))
    return analysis.Bifurcation(jnp.ones(2), zeros, jnp.zeros(2), np.zeros(2, int))


def fit(*series, **arguments):
    return Identifier(**{"progress": False} | arguments).fit(*(series or (TS, SINE)))


def trained(loss=loss, make=make, data=DATA, optimiser=ADAM, **options):
    return train(loss, make, data, optimiser, **{"steps": 1, "progress": False} | options)


def a_panel(**options):
    return Panel([Line([1, 2], [1, 2])], **options)


def drawn(*marks, path="a.png"):
    return plotting.draw(Figure("a", "", [Panel(marks)]), path)


def controlled(**options):
    return diffrax.PIDController(**{"rtol": 1e-3, "atol": 1e-3} | options)


def with_metric(model, batch):
    return loss(model, batch), {"z": 1j * model.weight}


def key_as_metric(model, test):
    return {"key": jax.random.key(0)}


DEVICE = jax.devices()[0]


CALLS = {
    # delays
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
    # solve
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
    # networks
    "no channels": (lambda: nn.MLP(0, key=KEY), ValueError, ["MLP got channels=0"]),
    "channels fractional": (lambda: nn.MLP(1.5, key=KEY), ValueError, ["MLP got channels=1.5"]),
    "a layer of none": (lambda: nn.MLP(2, (4, 0), key=KEY), ValueError, ["MLP got widths=0"]),
    "no layers": (lambda: nn.MLP(2, (), key=KEY), ValueError, ["MLP got no widths", "(64, 64)"]),
    "one width": (lambda: nn.MLP(2, 8, key=KEY), TypeError, ["MLP got widths=8", "list"]),
    "history negative": (lambda: mlp(-1), ValueError, ["MLP got history=-1"]),
    "nothing to look at": (lambda: mlp(uses_state=False), ValueError, ["uses_state=False"]),
    "a seed as key": (lambda: nn.MLP(2, key=0), TypeError, ["MLP got key=0", "jax.random.key(0)"]),
    "no key": (lambda: nn.Conv(3, 4, key=None), TypeError, ["Conv got key=None", "jax.random"]),
    "no filters": (lambda: nn.Conv(3, 0, key=KEY), ValueError, ["Conv got filters=0"]),
    "no inputs": (lambda: nn.Affine(0, 1, key=KEY), ValueError, ["Affine got inputs=0"]),
    "augment negative": (lambda: nn.Augment(-1), ValueError, ["Augment got p=-1"]),
    "p negative": (lambda: nn.ANODE(mlp(), -1), ValueError, ["Augment got p=-1"]),
    "one delay of a flow": (lambda: nn.Flow(mlp(1), Hold(1.0)), TypeError, ["one delay", "list"]),
    "a number as delay of a flow": (lambda: nn.Flow(mlp(1), [1.0]), TypeError, ["1.0", "Hold(1.0"]),
    "a flow's unknown option": (lambda: nn.NODE(mlp(), step=3), TypeError, ["'step'"]),
    "no intervals": (lambda: nn.NPCDDE(mlp(1), 0), ValueError, ["NPCDDE got n=0"]),
    "intervals of a layer fractional": (lambda: nn.NPCDDE(mlp(1), 1.5), ValueError, ["n=1.5"]),
    "a field of another history": (
        lambda: nn.NPCDDE(mlp(1), 2),
        ValueError,
        ["history=1", "2 held states", "history=2"],
    ),
    "no lags": (lambda: nn.NPCDDE(field, 2, lags=0), ValueError, ["n=0", "at least 1"]),
    "unshared without fields": (lambda: nn.UNPCDDE([]), ValueError, ["the number of fields=0"]),
    "unshared fields a number": (lambda: nn.UNPCDDE(3), TypeError, ["UNPCDDE got fields=3"]),
    "a layer's lag zero": (lambda: nn.NDDE(mlp(1), tau=0.0), ValueError, ["Lag got tau=0.0"]),
    "a layer of no field": (lambda: nn.NODE(3)(ONES), TypeError, ["field=3", "cannot be called"]),
    "a layer's T negative": (lambda: nn.NODE(mlp(), T=-1.0)(ONES), ValueError, ["t1=-1.0"]),
    "a state of other channels": (
        lambda: nn.NODE(mlp(), steps=1)(jnp.ones((3, 1))),
        ValueError,
        ["MLP got a state of shape (3, 1)", "channels"],
    ),
    "too little history": (
        lambda: nn.NDDE(mlp(2), steps=1)(ONES),
        ValueError,
        ["MLP was made for 2 history entries and got 1"],
    ),
    "head of a number": (lambda: nn.Head(3, key=KEY), TypeError, ["Head got shape=3"]),
    "no classes": (lambda: nn.Head((2,), 0, key=KEY), ValueError, ["Head got classes=0"]),
    "head of another state": (
        lambda: nn.Head((2, 2), key=KEY)(ONES),
        ValueError,
        ["Head got a state of shape (3, 2)", "(2, 2)"],
    ),
    "no such model": (lambda: nn.paper_model("RESNET", "mnist", key=KEY), ValueError, ["'RESNET'"]),
    "no such images": (lambda: nn.paper_size("NODE", "imagenet"), ValueError, ["'imagenet'"]),
    "intervals of no model": (lambda: nn.paper_intervals("net"), ValueError, ["'net'", "NODE"]),
    "a model of a seed": (lambda: nn.paper_model("NODE", "mnist", key=1), TypeError, ["key=1"]),
    # systems
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
    # analysis
    "a map of no function": (lambda: analysis.KnotMap(3, 0.5), TypeError, ["step=3", "function"]),
    "a map of no knots": (lambda: analysis.KnotMap(two, 0.5, 0), ValueError, ["lags=0"]),
    "a complex map": (lambda: analysis.KnotMap(two, 1j, 2), ValueError, ["complex64", "Split"]),
    "a map to another shape": (
        lambda: analysis.KnotMap(lambda x: jnp.ones(2), 0.5),
        ValueError,
        ["shape [2] for y0 of shape []"],
    ),
    "a map of a field alone": (lambda: analysis.knot_map(field), ValueError, ["without y0"]),
    "a map of one delay": (
        lambda: analysis.knot_map(field, 0.5, delays=Hold(1.0)),
        TypeError,
        ["delays=Hold(1.0) is one delay", "list"],
    ),
    "a map of a number as delay": (
        lambda: analysis.knot_map(field, 0.5, delays=[1.0]),
        TypeError,
        ["delays holds 1.0"],
    ),
    "a map of a lag": (
        lambda: analysis.knot_map(field, 0.5, delays=[Lag(1.0)]),
        ValueError,
        ["Lag(1.0)", "holds of one period"],
    ),
    "a map of steps and tolerance": (
        lambda: analysis.knot_map(field, 0.5, delays=[Hold(1.0)], steps=2, rtol=1e-3),
        ValueError,
        ["steps=2 and rtol=0.001"],
    ),
    "a map of a tolerance below zero": (
        lambda: analysis.knot_map(field, 0.5, delays=[Hold(1.0)], rtol=-1.0),
        ValueError,
        ["rtol=-1.0", "positive"],
    ),
    "a map from NaN": (
        lambda: analysis.knot_map(systems.Population(), NAN),
        ValueError,
        ["y0=nan", "finite"],
    ),
    "a map from words": (lambda: analysis.KnotMap(two, "a", 2), TypeError, ["'a'", "real"]),
    "a cobweb from NaN": (lambda: analysis.cobweb(ricker(), NAN), ValueError, ["start=nan"]),
    "a cobweb from words": (lambda: analysis.cobweb(ricker(), "a"), TypeError, ["'a'", "real"]),
    "a complex point": (lambda: ricker().point(1j), TypeError, ["point got", "1j", "real"]),
    "exponents from NaN": (
        lambda: analysis.lyapunov(henon(), (NAN, 0.0)),
        ValueError,
        ["start=nan"],
    ),
    "a diagram from NaN": (
        lambda: analysis.bifurcation(systems.Population, [2.0], NAN),
        ValueError,
        ["start=nan"],
    ),
    "a diagram over NaN": (
        lambda: analysis.bifurcation(systems.Population, [2.0, NAN]),
        ValueError,
        ["bifurcation got values=[2.0, nan]", "finite"],
    ),
    "a diagram over words": (
        lambda: analysis.bifurcation(systems.Population, ["a"]),
        ValueError,
        ["bifurcation got values=['a']"],
    ),
    "a complex region": (
        lambda: analysis.stability_region(systems.Linear, [1j, 2j], [1.0, 2.0]),
        ValueError,
        ["stability_region got x=[1j, 2j]", "real"],
    ),
    "starts with NaN": (
        lambda: analysis.periodic_orbits(ricker(), starts=[NAN]),
        ValueError,
        ["starts=[nan]"],
    ),
    "critical from NaN": (
        lambda: analysis.critical(systems.Population, NAN),
        ValueError,
        ["critical got parameter=nan"],
    ),
    "a complex multiplier": (
        lambda: analysis.critical(systems.Population, 1.9, multiplier=1j),
        ValueError,
        ["critical got multiplier=1j"],
    ),
    "an orbit without end": (
        lambda: ricker().orbit(iterates=HUGE),
        ValueError,
        ["orbit got iterates=1000", "at most 2,147,483,647"],
    ),
    "an orbit beyond memory": (
        lambda: ricker().orbit(iterates=2 * 10**9),
        ValueError,
        ["iterates=2000000000", "keeps 2e+09 numbers"],
    ),
    "an orbit that skips all": (lambda: ricker().orbit(skip=HUGE), ValueError, ["skip=1000"]),
    "exponents without end": (
        lambda: analysis.lyapunov(ricker(), iterates=HUGE),
        ValueError,
        ["lyapunov got iterates=1000", "32 bits"],
    ),
    "a diagram that keeps all": (
        lambda: analysis.bifurcation(systems.Population, [2.0], keep=HUGE),
        ValueError,
        ["bifurcation got keep=1000"],
    ),
    "a diagram beyond memory": (
        lambda: analysis.bifurcation(systems.Population, np.ones(10**4), keep=10**6),
        ValueError,
        ["keep=1000000 for 10,000 values", "1e+10 numbers"],
    ),
    "a cobweb without end": (
        lambda: analysis.cobweb(ricker(), iterates=HUGE),
        ValueError,
        ["cobweb got iterates=1000"],
    ),
    "basins without memory": (
        lambda: analysis.basins(henon(), (0, 1), (0, 1), resolution=10**5),
        ValueError,
        ["resolution=100000", "numbers"],
    ),
    "basins of iterates without end": (
        lambda: analysis.basins(henon(), (0, 1), (0, 1), iterates=HUGE),
        ValueError,
        ["basins got iterates=1000"],
    ),
    "a period without end": (
        lambda: analysis.periodic_orbits(ricker(), HUGE),
        ValueError,
        ["periodic_orbits got period=1000"],
    ),
    "an orbit of no points": (lambda: ricker().orbit(iterates=0), ValueError, ["iterates=0"]),
    "an orbit that skips half": (lambda: ricker().orbit(skip=0.5), ValueError, ["skip=0.5"]),
    "a point of three knots": (
        lambda: henon().point(1, 2, 3),
        ValueError,
        ["3 states; expected 2"],
    ),
    "a point of another shape": (
        lambda: ricker().point(np.ones(2)),
        ValueError,
        ["a state of shape [2]; expected that of the map's y0, []"],
    ),
    "period zero": (lambda: analysis.periodic_orbits(ricker(), 0), ValueError, ["period=0"]),
    "starts of another shape": (
        lambda: analysis.periodic_orbits(henon(), starts=np.ones((4, 3))),
        ValueError,
        ["starts of shape (4, 3)", "of 2 numbers"],
    ),
    "period of a critical orbit": (
        lambda: analysis.critical(systems.Population, 1.9, period=0),
        ValueError,
        ["critical got period=0"],
    ),
    "no iterates": (lambda: analysis.lyapunov(ricker(), iterates=0), ValueError, ["iterates=0"]),
    "iterates fractional": (
        lambda: analysis.lyapunov(ricker(), iterates=1.5),
        ValueError,
        ["iterates=1.5", "whole numbers"],
    ),
    "no values": (
        lambda: analysis.bifurcation(systems.Population, []),
        ValueError,
        ["values of shape (0,)", "linspace"],
    ),
    "nothing to keep": (
        lambda: analysis.bifurcation(systems.Population, [2.0], keep=0),
        ValueError,
        ["bifurcation got keep=0"],
    ),
    "a component too far": (lambda: diagram().figure(component=1), ValueError, ["component=1"]),
    "a cobweb of the plane": (lambda: analysis.cobweb(henon()), ValueError, ["map of 2 numbers"]),
    "a cobweb of nothing": (
        lambda: analysis.cobweb(ricker(), iterates=0),
        ValueError,
        ["cobweb got iterates=0"],
    ),
    "basins of the line": (
        lambda: analysis.basins(ricker(), (0, 1), (0, 1)),
        ValueError,
        ["map of 1 numbers", "planar"],
    ),
    "basins of no range": (
        lambda: analysis.basins(henon(), 3, (0, 1)),
        ValueError,
        ["x=3", "(low, high)"],
    ),
    "basins without end": (
        lambda: analysis.basins(henon(), (0, INF), (0, 1)),
        ValueError,
        ["x=(0, inf)", "finite"],
    ),
    "basins of one cell": (
        lambda: analysis.basins(henon(), (0, 1), (0, 1), resolution=1),
        ValueError,
        ["resolution=1"],
    ),
    "a region of one value": (
        lambda: analysis.stability_region(systems.Linear, [1.0], [1.0, 2.0]),
        ValueError,
        ["x of shape (1,)", "at least two"],
    ),
    "a region with NaN": (
        lambda: analysis.stability_region(systems.Linear, [1.0, 2.0], [1.0, NAN]),
        ValueError,
        ["stability_region got y", "finite"],
    ),
    # identification
    "no learning": (lambda: fit(learning_rate=0.0), ValueError, ["learning_rate=0.0", "positive"]),
    "learning in words": (lambda: fit(learning_rate="fast"), ValueError, ["learning_rate='fast'"]),
    "validation in words": (
        lambda: fit(validation="a fifth"),
        ValueError,
        ["validation='a fifth'"],
    ),
    "delays none": (lambda: fit(delays=None), TypeError, ["Identifier got delays=None", "list"]),
    "delays a period": (lambda: fit(delays=1.0), TypeError, ["Identifier got delays=1.0", "list"]),
    "a solver's class": (lambda: fit(solver=diffrax.Tsit5), TypeError, ["Tsit5()"]),
    "no iterations": (lambda: fit(iterations=0), ValueError, ["iterations=0"]),
    "degree one hundred": (
        lambda: fit(field="library", degree=100),
        ValueError,
        ["Identifier got degree=100", "at most 20", "floating point"],
    ),
    "a library without end": (
        lambda: fit(field="library", degree=20, delays=lagrax.holds(6.0, 4)),
        ValueError,
        ["degree 20 in 5 variables", "5.31e+04 terms", "lower degree"],
    ),
    "a library beyond a day": (
        lambda: fit(
            np.arange(2000.0),
            np.sin(np.arange(2000.0)),
            np.cos(np.arange(2000.0)[:, None] * [1, 2, 3, 4]),
            field="library",
            degree=7,
            window=8,
        ),
        ValueError,
        ["which of 792 terms", "hours", "less than a day", "lower degree"],
    ),
    "candidates of degree one hundred": (
        lambda: select_delays(TS, SINE, [[]], degree=100),
        ValueError,
        ["select_delays got degree=100", "at most 20"],
    ),
    "a window without end": (
        lambda: select_delays(TS, SINE, [[]], window=HUGE),
        ValueError,
        ["select_delays got window=1000"],
    ),
    "a billion members": (
        lambda: fit(ensemble=10**9),
        ValueError,
        ["Identifier got ensemble=1000000000", "at most 1,000", "as long"],
    ),
    "networks beyond memory": (
        lambda: fit(width=5000, depth=50, ensemble=10),
        ValueError,
        ["width=5000, depth=50 and ensemble=10", "1.25e+10 weights", "16 GB"],
    ),
    "a layer beyond memory": (lambda: fit(width=10**9), ValueError, ["width=1000000000"]),
    "layers without end": (lambda: fit(depth=10**9), ValueError, ["depth=1000000000"]),
    "iterations without end": (lambda: fit(iterations=HUGE), ValueError, ["iterations=1000"]),
    "steps of a model without end": (lambda: fit(steps=HUGE), ValueError, ["steps=1000"]),
    "a complex series": (lambda: fit(TS, SINE + 1j), TypeError, ["ys is ndarray", "real ones"]),
    "a folder with NUL": (
        lambda: Identifier.load("a\0b"),
        ValueError,
        ["Identifier.load got 'a\\x00b'", "NUL"],
    ),
    "a seed too large": (lambda: fit(seed=2**31), ValueError, ["seed=2147483648", "2^31"]),
    "steps fractional of a model": (lambda: fit(steps=1.5), ValueError, ["steps=1.5"]),
    "times in words": (lambda: fit("then", SINE), TypeError, ["ts is str", "array"]),
    "an argument that is none": (
        lambda: Identifier().set_params(widht=3),
        ValueError,
        ["'widht'", "width"],
    ),
    "equations of no fit": (lambda: Identifier().equations(), IdentifyError, ["call fit"]),
    "a model nowhere": (
        lambda: Identifier.load("nowhere"),
        IdentifyError,
        ["nowhere holds no mod"],
    ),
    "no candidates": (lambda: select_delays(TS, SINE, []), ValueError, ["no candidates", "Hold("]),
    "one delay as candidates": (
        lambda: select_delays(TS, SINE, Hold(1.0)),
        TypeError,
        ["candidates=Hold(tau=1.0", "lists of delays"],
    ),
    "delays as candidates": (
        lambda: select_delays(TS, SINE, [Hold(1.0)]),
        TypeError,
        ["candidates=[Hold(tau=1.0", "lists of delays"],
    ),
    "a period as candidate": (
        lambda: select_delays(TS, SINE, {"a": [4.0]}),
        TypeError,
        ["The candidate 'a' holds 4.0"],
    ),
    "degree zero": (lambda: select_delays(TS, SINE, [[]], degree=0), ValueError, ["degree=0"]),
    "window zero": (lambda: select_delays(TS, SINE, [[]], window=0), ValueError, ["window=0"]),
    # training
    "no loss": (lambda: trained(loss=None), TypeError, ["train got loss=None", "function"]),
    "a model in place of make": (
        lambda: trained(make={"a": 1.0}),
        TypeError,
        ["train got make={'a': 1.0}", "function"],
    ),
    "no optimiser": (lambda: trained(optimiser=None), TypeError, ["optimiser=None", "optax.adam"]),
    "a rate as optimiser": (lambda: trained(optimiser=0.1), TypeError, ["optimiser=0.1"]),
    "data in words": (lambda: trained(data=["abc"]), TypeError, ["train got data with 'abc'"]),
    "test data in words": (
        lambda: trained(test_data="abc"),
        TypeError,
        ["train got test_data with 'abc'"],
    ),
    "a list as config": (lambda: trained(config=[1]), TypeError, ["config=[1]", "dictionary"]),
    "seconds in words": (
        lambda: trained(checkpoint_seconds="often"),
        ValueError,
        ["checkpoint_seconds='often'"],
    ),
    "devices in words": (lambda: trained(devices="two"), TypeError, ["devices='two'"]),
    "devices that are not there": (
        lambda: trained(devices=4096),
        ValueError,
        ["devices=4096", "as many as JAX sees"],
    ),
    "one device twice": (
        lambda: trained(devices=[DEVICE, DEVICE]),
        ValueError,
        ["train got devices=[", "only once"],
    ),
    "none of the devices": (
        lambda: trained(devices=[]),
        ValueError,
        ["devices=[]", "at least one"],
    ),
    "devices of true": (lambda: trained(devices=True), TypeError, ["devices=True", "how many"]),
    "steps of true": (lambda: trained(steps=True), ValueError, ["steps=True", "whole number"]),
    "steps of training without end": (
        lambda: trained(steps=HUGE),
        ValueError,
        ["train got steps=1000", "32 bits"],
    ),
    "a block without end": (lambda: trained(block=HUGE), ValueError, ["train got block=1000"]),
    "a block beyond memory": (
        lambda: trained(block=10**9, steps=10**9),
        ValueError,
        ["train got block=1,000,000,000", "10,000,000 steps in one compiled call"],
    ),
    "a complex metric": (
        lambda: trained(loss=with_metric),
        ValueError,
        ["the metric 'z' as an array of complex64", "real ones"],
    ),
    "a key as metric": (
        lambda: trained(evaluate=key_as_metric),
        ValueError,
        ["the metric 'key' as an array of key<fry>", "real ones"],
    ),
    "a complex loss": (
        lambda: trained(loss=lambda model, batch: loss(model, batch) + 0j),
        TypeError,
        ["loss returned an array of complex64", "real value"],
    ),
    "a training in NUL": (
        lambda: trained(folder="a\0b"),
        ValueError,
        ["train's folder got 'a\\x00b'", "NUL"],
    ),
    "a training in a number": (lambda: trained(folder=3), TypeError, ["folder got 3", "path"]),
    "stop without an event": (
        lambda: trained(stop=True),
        TypeError,
        ["train got stop=True", "threading.Event"],
    ),
    "evaluate a number": (lambda: trained(evaluate=3), TypeError, ["evaluate=3", "function"]),
    "a loss without return": (
        lambda: trained(loss=lambda model, batch: None),
        TypeError,
        ["loss returned None"],
    ),
    "a model without parameters": (
        lambda: trained(make=lambda key: {"n": 3}),
        ValueError,
        ["make returned {'n': 3}", "nothing to train"],
    ),
    "steps in words": (lambda: trained(steps="3"), ValueError, ["steps='3'", "whole number"]),
    "seeds in words": (lambda: trained(seeds="one"), ValueError, ["seeds=one"]),
    "a training in a file": (
        lambda: trained(folder=__file__),
        WriteError,
        [__file__, "a file is where a folder should be"],
    ),
    # figures
    "no such colour": (lambda: Line([1], [1], colour="red"), ValueError, ["'red'", "orange"]),
    "a line of two lengths": (lambda: Line([1, 2], [1]), ValueError, ["x (2,), y (1,)"]),
    "a line in words": (lambda: Line(["a"], [1]), ValueError, ["`x` of line is ['a']", "numbers"]),
    "points in words": (lambda: Points([1], ["b"]), ValueError, ["`y` of points is ['b']"]),
    "a line of texts": (lambda: Line(["1"], [1]), ValueError, ["`x` of line is ['1']"]),
    "a complex line": (
        lambda: Line([1], np.array([1j])),
        ValueError,
        ["`y` of line is array([0.+1.j])", "numbers"],
    ),
    "a line too long to draw": (
        lambda: drawn(Line([0, 1], [1e308, -1e308])),
        ValueError,
        ["`y` of line goes up to 1e+308", "another unit"],
    ),
    "a width in words": (lambda: Line([1], [1], width="a"), ValueError, ["`width` of line is 'a'"]),
    "a size that is none": (lambda: Points([1], [1], size=NAN), ValueError, ["`size` of points"]),
    "a mark that is none": (lambda: Panel([3]), TypeError, ["marks=[3]", "Line and Points"]),
    "a range with NaN": (lambda: a_panel(xlim=(NAN, 1)), ValueError, ["xlim=(nan, 1)"]),
    "a range of one end": (lambda: a_panel(ylim=(1,)), ValueError, ["ylim=(1,)", "two"]),
    "a range too long": (lambda: a_panel(xlim=(-1e308, 1e308)), ValueError, ["xlim=(-1e+308"]),
    "a million columns": (
        lambda: Figure("a", "", [a_panel()], 10**6),
        ValueError,
        ["columns=1000000", "at most 100"],
    ),
    "a column and a half": (lambda: Figure("a", "", [a_panel()], 1.5), ValueError, ["1.5 columns"]),
    "a picture in NUL": (
        lambda: drawn(Line([1], [1]), path="a\0.png"),
        ValueError,
        ["draw got 'a\\x00.png'", "NUL"],
    ),
    "half a band": (lambda: Line([1], [1], low=[0]), ValueError, ["`low` and `high`"]),
    "the logarithm of zero": (
        lambda: a_panel(xlog=True, xlim=(0, 1)),
        ValueError,
        ["positive `xlim`, not (0, 1)"],
    ),
    "a figure's name": (lambda: Figure("../a", "", [a_panel()]), ValueError, ["'../a'"]),
    "a figure without panels": (lambda: Figure("a", "", []), ValueError, ["'a' has 0 panels"]),
    "no columns": (lambda: Figure("a", "", [a_panel()], 0), ValueError, ["in 0 columns"]),
    "rows that are not there": (
        lambda: Figure("a", "", [a_panel()], rows=["x", "y"]),
        ValueError,
        ["names 2 rows", "fill 1"],
    ),
    "a picture as text": (
        lambda: plotting.draw(Figure("a", "", [a_panel()]), "a.txt"),
        ValueError,
        ["a.txt is no picture", ".png"],
    ),
    "no figure": (lambda: plotting.draw(3, "a.png"), TypeError, ["draw got 3", "Figure"]),
    "a description of nothing": (lambda: plotting.from_json([]), ValueError, ["A figure is", "[]"]),
    "a mark of no kind": (
        lambda: plotting.from_json({"name": "a", "caption": "", "panels": [{"marks": [3]}]}),
        ValueError,
        ["line, points", "None"],
    ),
    # the paper
    "a data set in no home": (
        lambda: data.load("mnist", "~nobody-at-all/data"),
        DataError,
        ["~nobody-at-all/data", "LAGRAX_DATA"],
    ),
    "a plan of no model": (lambda: plan(["mnist"], ["NET"]), ValueError, ["'NET'", "NODE"]),
}


@pytest.mark.parametrize("case", CALLS)
def test_calls(case, unchecked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, kind, words = CALLS[case]
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    says(str(caught.value), words)
    assert listing(tmp_path) == {}


# --- files ----------------------------------------------------------------------------------------


def opened(folder):
    with RunFolder(folder, by_hand.CONFIG) as run:
        return run.restore(by_hand.STATE)


def reported(folder):
    return write_report([folder], folder / "report.html")


def table(folder, **options):
    return read_table(folder / "x.csv", **options)


def loop(folder):
    os.symlink("x.csv", folder / "x.csv")


def of_a_result(**content):
    return {"result.json": json.dumps({"experiment": "a"} | content)}


OTHER = {"['weight']": np.zeros(4, np.float32)}
DOUBLE = {"['weight']": np.zeros(3)}
RENAMED = {"['wait']": np.zeros(3, np.float32)}
MANY = "9" * 400

# What lies in a folder (or a function that makes it), what is done with it, the error, its words.
FILES = {
    # tables
    "a table that leads to itself": (loop, table, TableError, ["x.csv cannot be read", "symbolic"]),
    "a table that is a folder": ({"x.csv": None}, table, TableError, ["x.csv is a folder"]),
    "a table that is a picture": (
        {"x.csv": b"\x89PNG\r\n\x1a\n\0\0\0"},
        table,
        TableError,
        ["x.csv is a binary file", "CSV"],
    ),
    "a table with spaces between": (
        {"x.csv": "t x\n" + "".join(f"{n} {n}\n" for n in range(12))},
        table,
        TableError,
        ["x.csv has one column, 't x'", "commas"],
    ),
    # models
    "a model without its words": (
        {"model.safetensors": model()["model.safetensors"]},
        Identifier.load,
        IdentifyError,
        ["holds no model.json"],
    ),
    "a model without its numbers": (
        {"model.json": model()["model.json"]},
        Identifier.load,
        IdentifyError,
        ["holds no model.safetensors"],
    ),
    "a model of the next version": (
        model(format=2),
        Identifier.load,
        IdentifyError,
        ["model.json is not of a format"],
    ),
    "a model in another encoding": (
        model() | {"model.json": "{“a”: 1}".encode("utf-16")},
        Identifier.load,
        IdentifyError,
        ["is damaged", "utf-8"],
    ),
    "a model cut short": (
        model() | {"model.safetensors": model()["model.safetensors"][:-5]},
        Identifier.load,
        IdentifyError,
        ["is damaged", "it cannot be read"],
    ),
    "a model with one bit turned": (
        model() | {"model.safetensors": model()["model.safetensors"][:-1] + b"\x01"},
        Identifier.load,
        IdentifyError,
        ["is damaged", "does not match its digest"],
    ),
    "a model with another's numbers": (
        model(arrays={"['members'].field.coefficients": np.zeros((1, 3, 1), np.float32)}),
        Identifier.load,
        IdentifyError,
        [".field.coefficients has shape (3, 1)"],
    ),
    "a model without a series": (
        model(arrays={"['series'][0]['ts']": None}),
        Identifier.load,
        IdentifyError,
        ["KeyError", "ts"],
    ),
    "a model without its error": (
        model(arrays={"['error']": None}),
        Identifier.load,
        IdentifyError,
        ["['error']"],
    ),
    "a model with an unknown argument": (
        model({"colour": "red"}),
        Identifier.load,
        IdentifyError,
        ["'colour'"],
    ),
    "a model with a delay of no kind": (
        model({"delays": [{"tau": 1.0}]}),
        Identifier.load,
        IdentifyError,
        ["KeyError: 'kind'"],
    ),
    "a model with a wrong delay": (
        model({"delays": [{"kind": "Lag", "tau": -1.0}]}),
        Identifier.load,
        IdentifyError,
        ["Lag got tau=-1.0"],
    ),
    "a model of no solver": (
        model({"solver": "Tsit55"}),
        Identifier.load,
        IdentifyError,
        ["'Tsit55'"],
    ),
    "a model of a function that is no solver": (
        model({"solver": "diffeqsolve"}),
        Identifier.load,
        IdentifyError,
        ["'diffeqsolve'"],
    ),
    "a model with its own field, and none given": (
        model({"field": "own"}),
        Identifier.load,
        IdentifyError,
        ["field of its own", "field=..."],
    ),
    "a model without one, and one given": (
        model(),
        lambda folder: Identifier.load(folder, field=field),
        IdentifyError,
        ["'library'", "leave `field` out"],
    ),
    "a model that is a list": (
        model() | {"model.json": "[1]"},
        Identifier.load,
        IdentifyError,
        ["model.json is not of a format"],
    ),
    "a model with periods for nothing": (
        model(periods=[1.0]),
        Identifier.load,
        IdentifyError,
        ["does not hold what"],
    ),
    # runs
    "a run configured otherwise": (
        run(**{"config.json": '{"config": {"steps": 30, "seeds": 0}}'}),
        opened,
        RunError,
        ["steps was 30, now 20", "--no-resume"],
    ),
    "a run with a list as configuration": (
        run(**{"config.json": "[1, 2]"}),
        opened,
        RunError,
        ["config.json cannot be read", "configuration"],
    ),
    "a run with half a configuration": (
        run(**{"config.json": '{"config": {"steps"'}),
        opened,
        RunError,
        ["config.json cannot be read", "line 1 column"],
    ),
    "a run with a folder as configuration": (
        {k: v for k, v in run().items() if k != "config.json"} | {"config.json": None},
        opened,
        RunError,
        ["config.json cannot be read", "directory"],
    ),
    "a run with another's checkpoint": (
        run(**{CHECKPOINT: checkpoint(OTHER)}),
        opened,
        RunError,
        [CHECKPOINT, "another model"],
    ),
    "a checkpoint of another type": (
        run(**{CHECKPOINT: checkpoint(DOUBLE)}),
        opened,
        RunError,
        [CHECKPOINT, "another model"],
    ),
    "a checkpoint of other names": (
        run(**{CHECKPOINT: checkpoint(RENAMED)}),
        opened,
        RunError,
        [CHECKPOINT, "another model"],
    ),
    # results
    "a result with a number too long": (
        {"result.json": f'{{"experiment": "a", "seconds": {MANY}}}'},
        read_result,
        ResultError,
        ["result.json cannot be read", "`seconds` of a result is 99999"],
    ),
    "a result of bytes": ({"result.json": b"\xff\xfe"}, read_result, ResultError, ["result.json"]),
    "a result that is a folder": ({"result.json": None}, read_result, ResultError, ["directory"]),
    "a result with a claim in words": (
        of_a_result(claims=[{"claim": "b", "holds": "yes"}]),
        reported,
        ResultError,
        ["result.json cannot be read", "`holds` of a claim is 'yes'"],
    ),
    "a result of runs without names": (
        of_a_result(runs=[{"seconds": 3}]),
        reported,
        ResultError,
        ["result.json cannot be read", "a run lacks `name`"],
    ),
    # lines of runs
    "half a line": (
        {"a.jsonl": line() + line()[:40]},
        reported,
        ResultError,
        ["Line 2 of ", "a.jsonl", "column 41"],
    ),
    "a line without a key": (
        {"a.jsonl": line("seconds")},
        reported,
        ResultError,
        ["Line 1 of ", "a.jsonl", "it lacks 'seconds'"],
    ),
    "a line of no number": (
        {"a.jsonl": line(seconds="long")},
        reported,
        ResultError,
        ["Line 1 of ", "'long'"],
    ),
    "a line with a number too long": (
        {"a.jsonl": line(seconds=int(MANY))},
        reported,
        ResultError,
        ["Line 1 of ", "too large"],
    ),
    "a line with a list as steps": (
        {"lines/a.jsonl": line(steps=[1])},
        reported,
        ResultError,
        ["Line 1 of ", "its steps is [1]"],
    ),
    "a line of too few epochs": (
        {"a.jsonl": line(test_loss=[1.0])},
        reported,
        ResultError,
        ["Line 1 of ", "`test_loss` has 1 values for 3 epochs"],
    ),
    "a line without any accuracy": (
        {"a.jsonl": line(test_accuracy=[None] * 3)},
        reported,
        ResultError,
        ["Line 1 of ", "`test_accuracy` has no number at all"],
    ),
    "lines in a folder": (
        {"a.jsonl": None},
        reported,
        ResultError,
        ["a.jsonl cannot be read", "directory"],
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_files(case, unchecked, tmp_path):
    files, act, kind, words = FILES[case]
    files(tmp_path) if callable(files) else write(tmp_path, files)
    before = listing(tmp_path)
    with pytest.raises(kind) as caught:
        act(tmp_path)
    says(str(caught.value), [str(tmp_path), *words])
    assert listing(tmp_path) == before


def test_what_is_made_by_hand_is_right(tmp_path):
    """Or the tables above would test something else."""
    loaded = Identifier.load(write(tmp_path / "model", model()))
    assert loaded.equations() == ["x′ = 0 − 1 x"]
    step, state, seconds = opened(write(tmp_path / "run", run()))
    assert (step, seconds) == (2, 1.5)
    np.testing.assert_array_equal(state["weight"], by_hand.STATE["weight"])
    write(tmp_path / "lines", {"a.jsonl": line()})
    assert "53" in reported(tmp_path / "lines").read_text()


NOT_JSON = b'{"step": 1, "loss": 0.5}\n{"step": 2, "lo\n'
NO_STEP = b'{"loss": 0.5}\n'

# Checkpoints that are damaged are set aside, and so is what counts on damaged metrics.
ASIDE = {
    "not safetensors": (run(**{CHECKPOINT: b"PK\x03\x04" * 9}), ["it cannot be read"]),
    "an empty one": (run(**{CHECKPOINT: b""}), ["it cannot be read"]),
    "half of one": (run(**{CHECKPOINT: checkpoint()[:90]}), ["it cannot be read"]),
    "another digest": (
        run(**{CHECKPOINT: by_hand.tensors({}, {"step": "2"}, "0" * 64)}),
        ["does not match its digest"],
    ),
    "without a step": (run(**{CHECKPOINT: checkpoint(step=None)}), ["its step is None"]),
    "a step in words": (run(**{CHECKPOINT: checkpoint(step="two")}), ["its step is 'two'"]),
    "bytes below zero": (run(**{CHECKPOINT: checkpoint(bytes="-5")}), ["its bytes is '-5'"]),
    "seconds without end": (
        run(**{CHECKPOINT: checkpoint(seconds="inf")}),
        ["its seconds is 'inf'"],
    ),
    "without its metrics": (run(**{"metrics.jsonl": b""}), ["metrics.jsonl does not hold"]),
    "metrics of another run": (
        run(**{"metrics.jsonl": by_hand.METRICS.replace(b"0.5", b"0.6")}),
        ["metrics.jsonl does not hold the lines"],
    ),
    "metrics with a broken line": (
        run(**{"metrics.jsonl": NOT_JSON, CHECKPOINT: checkpoint(metrics=NOT_JSON)}),
        ["metrics.jsonl cannot be read"],
    ),
    "metrics without a step": (
        run(**{"metrics.jsonl": NO_STEP, CHECKPOINT: checkpoint(metrics=NO_STEP)}),
        ["metrics.jsonl holds a line without a step"],
    ),
}


@pytest.mark.parametrize("case", ASIDE)
def test_set_aside(case, unchecked, tmp_path, capsys):
    files, words = ASIDE[case]
    before = listing(write(tmp_path, files))
    step, _, _ = opened(tmp_path)
    assert step == 0
    says(capsys.readouterr().err, [str(tmp_path / CHECKPOINT), "set aside", *words])
    after = listing(tmp_path)
    damaged = CHECKPOINT.replace(".safetensors", ".damaged")
    assert after[damaged] == before[CHECKPOINT]
    assert after["config.json"] == before["config.json"]


# --- command lines --------------------------------------------------------------------------------

ROWS = [f"{t / 5:.1f},{np.sin(t / 5):.4f},{t % 4}" for t in range(60)]


def csv(*changes, header="t,x,u", rows=ROWS):
    """A table, with some of its rows replaced; row 1 is the header."""
    lines = [header, *rows]
    for number, text in changes:
        lines[number - 1] = text
    return "\n".join(lines) + "\n"


# What lies in the folder in which all commands are run.
AROUND = {
    "x.csv": csv(),
    "empty.csv": "",
    "bare.csv": csv(rows=ROWS[1:], header=ROWS[0]),
    "short.csv": csv(rows=ROWS[:5]),
    "word.csv": csv((7, "1.0,many,0")),
    "again.csv": csv((7, "0.8,0.1,0")),
    "back.csv": csv((7, "0.1,0.1,0")),
    "gap.csv": csv((7, "1.0,0.1,NA")),
    "inf.csv": csv((7, "1.0,inf,0")),
    "ragged.csv": csv((7, "1.0,0.1")),
    "latin.csv": csv((7, "1.0,ä,0")).encode("latin-1"),
    "nul.csv": csv((7, "1.0,0\0,0")),
    "flat.csv": csv(rows=[f"{t},1.0,1.0" for t in range(60)]),
    "folder.csv": None,
    "file": "mine",
    "full/thesis.tex": "years",
    "answer/summary.json": '{"command": "analyse", "files": []}',
    **{f"model/{name}": content for name, content in model().items()},
    **{f"torn/{name}": content for name, content in model().items()},
    "torn/model.safetensors": b"not safetensors",
    "deep/model.json": "[" * 100_000,
    "deep/model.safetensors": b"",
    "broken/population/result.json": "{",
    "lines/a.jsonl": line() + b"{}\n",
    "page.html/inside": "mine",
    "mnist/train-images-idx3-ubyte": b"\0\0\x08\x03",
}

# What is typed, the exit code, and words of the only line on stderr.
LINES = {
    "fit folder.csv": (2, ["folder.csv is a folder"]),
    "fit empty.csv": (2, ["empty.csv is empty", "header"]),
    "fit bare.csv": (2, ["bare.csv has no header", "its row 1 is 0.0, 0.0000, 0"]),
    "fit short.csv": (2, ["short.csv has too few rows of values: 5"]),
    "fit word.csv": (2, ["word.csv, row 7, column 'x': 'many' is no number"]),
    "fit again.csv": (2, ["again.csv, row 7, column 't': the time '0.8' repeats '0.8' in row 6"]),
    "fit back.csv": (2, ["back.csv, row 7, column 't': the time '0.1' comes after"]),
    "fit gap.csv --input u": (2, ["gap.csv, row 7, column 'u': the value is missing"]),
    "fit inf.csv": (2, ["inf.csv, row 7, column 'x': 'inf' is infinite"]),
    "fit ragged.csv": (2, ["ragged.csv, row 7: 2 cells; expected 3"]),
    "fit latin.csv": (2, ["latin.csv, row 7: the text is in another encoding"]),
    "fit nul.csv": (2, ["nul.csv is a binary file"]),
    "fit flat.csv": (2, ["flat.csv, column 'x': the value is 1 wherever it is known"]),
    "fit x.csv --time x": (2, ["x.csv, row", "column 'x': the time"]),
    "fit x.csv --column t": (2, ["x.csv: the column 't' is asked for twice"]),
    "fit x.csv --input nothing": (2, ["x.csv has no column 'nothing'"]),
    "fit x.csv --hold much": (2, ["'--hold'", "positive number"]),
    "fit x.csv --lags 0 --hold 1": (2, ["'--lags'", "greater than or equal to 1"]),
    "fit x.csv --degree 7": (2, ["'--degree'", "less than or equal to 6"]),
    "fit x.csv --seed -1": (2, ["'--seed'", "greater than or equal to 0"]),
    "fit x.csv --seed 2147483648": (2, ["'--seed'", "less than or equal to"]),
    "fit x.csv --forecast 1000000000": (2, ["--forecast 1e+09", "1,000,000"]),
    "fit x.csv --ensemble 1000000": (2, ["'--ensemble'", "less than or equal to"]),
    "fit x.csv --hold inf": (2, ["'--hold'", "positive number"]),
    "fit x.csv --out answer": (2, ["--out answer", "other than an answer of `lagrax fit`"]),
    "fit x.csv --out file/inside": (1, ["file/inside", "file"]),
    "fit x.csv other/x.csv": (2, ["Two tables are called x"]),
    "analyse absent": (2, ["No equation and no folder 'absent'"]),
    "analyse torn": (2, ["The model in torn is damaged"]),
    "analyse deep": (2, ["The model in deep is damaged", "nested too deeply"]),
    "analyse model": (2, ["model: The equation looks back at nothing"]),
    "analyse population --param a 1 2 --values 1000000": (2, ["--values 1000000", "states"]),
    "analyse population --skip 1000000000000": (
        2,
        ["'--skip'", "less than or equal"],
    ),
    "analyse population --keep 1000000000000": (2, ["'--keep'", "less than or equal"]),
    "analyse population --lag 1000000000": (2, ["Population got lag=1000000000", "at most 999"]),
    "fit x.csv --iterations 1000000000000": (2, ["'--iterations'", "less than or equal"]),
    "analyse linear --param tau 1 2 --values 0": (2, ["'--values'"]),
    "analyse digital-control --param gain 1 2 --param tau 1 2 --values 100000": (
        2,
        ["--values 100000 makes 1e+10 pairs"],
    ),
    "analyse population --param a 1 inf": (2, ["a = 1 to inf", "finite"]),
    "analyse population --param lag 0 3": (2, ["lag is a whole number", "--lag 1"]),
    "analyse linear --lag 2": (2, ["linear has no parameter lag"]),
    "analyse population --a many": (2, ["'--a'", "valid number"]),
    "analyse population --out full": (2, ["--out full", "other than an answer"]),
    "analyse": (2, ["Missing argument"]),
    "simulate population --a nan": (2, ["Population got a=nan", "finite"]),
    "simulate population --a inf": (2, ["Population got a=inf", "finite"]),
    "simulate population --lag -1": (2, ["Population got lag=-1", "whole number"]),
    "simulate population --lag 0.5": (2, ["'--lag'", "valid integer"]),
    "simulate mackey-glass --tau -1": (2, ["MackeyGlass got tau=-1.0", "positive"]),
    "simulate hutchinson --tau nan": (2, ["Hutchinson got tau=nan"]),
    "simulate held-oscillator --zeta inf": (2, ["HeldOscillator got zeta=inf"]),
    "simulate population --y0 nan": (2, ["--y0 nan: expected one number"]),
    "simulate population --y0 ,": (2, ["--y0 ,: expected one number"]),
    "simulate population --t1 0": (2, ["--t1 0: expected a positive"]),
    "simulate population --tau 1e-9": (2, ["--tau 1e-09", "intervals"]),
    "simulate population --samples 2000000": (2, ["'--samples'", "less than or equal"]),
    "simulate population --samples many": (2, ["'--samples'", "valid integer"]),
    "simulate population --out page": (2, ["--out page: expected a name that ends in .png"]),
    "simulate population --csv full": (2, ["--csv full is a folder"]),
    "simulate population --out x.png --csv full": (2, ["--csv full is a folder"]),
    "simulate population extra": (2, ["extra"]),
    "simulate --t1 3": (2, ["--t1"]),
    "report full": (2, ["full holds no result.json"]),
    "report file": (2, ["file is no folder"]),
    "report broken": (2, ["broken/population/result.json cannot be read"]),
    "report lines": (2, ["Line 2 of lines/a.jsonl", "it lacks 'protocol'"]),
    "report lines absent": (2, ["absent is no folder"]),
    "report broken --out page.html": (2, ["--out page.html is a folder"]),
    "reproduce images --quick --data file": (2, ["file is no folder"]),
    "reproduce images --quick --data full": (2, ["full holds no MNIST"]),
    "reproduce images --quick --data mnist": (2, ["mnist lacks train-labels-idx1-ubyte"]),
    "reproduce images --devices 4096": (2, ["--devices 4096: JAX sees"]),
    "reproduce images --devices 0": (2, ["'--devices'", "greater than or equal to 1"]),
    "reproduce images --launcher slurm": (2, ["No launcher 'slurm'", "ray"]),
    "reproduce images --rtol nan": (2, ["rtol=nan", "positive"]),
    "reproduce images --epochs 0": (2, ["'--epochs'"]),
    "reproduce multiples --quick --out file": (1, ["file/multiples-quick"]),
    "reproduce multiples --launcher ray": (2, ["--launcher is for images alone"]),
    "reproduce multiples annuli": (2, ["annuli"]),
    "explore --port 70000": (2, ["'--port'", "less than or equal to 65535"]),
    "explore --port eighty": (2, ["'--port'", "valid integer"]),
    "models NODE": (2, ["NODE"]),
    "info --verbose": (2, ["No such option", "--verbose"]),
    "--versoin": (2, ["No such option", "--versoin"]),
}


@pytest.mark.parametrize("typed", LINES)
def test_command_lines(typed, lagrax_command, tmp_path):
    code, words = LINES[typed]
    before = listing(write(tmp_path, AROUND))
    got, out, err = lagrax_command(*typed.split())
    assert (got, out) == (code, ""), err
    *progress, sentence = err.splitlines()
    says(sentence, words)
    assert progress in ([], ["Reading MNIST"])
    assert listing(tmp_path) == before


def test_there_are_enough_of_them():
    tables = [SOLVES, CALLS, FILES, ASIDE, LINES]
    assert sum(map(len, tables)) >= 120
    assert not set(SOLVES) & set(CALLS)
