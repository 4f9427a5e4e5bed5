"""Bad arguments of `lagrax.analysis`."""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.refusals import HUGE, INF, NAN, check_call

from lagrax import Hold, Lag, Learn, analysis, systems


def field(t, y, args, *, history):
    return -y + sum(history)


def two(x, older):
    return 1 - 1.4 * x**2 + 0.3 * older


def henon():
    return analysis.KnotMap(two, 0.1, lags=2)


def ricker():
    return analysis.KnotMap(lambda x: x * jnp.exp(3 * (1 - x)), 0.5)


def lagged(t, y, args, *, history):
    return -history[0]


def equation(field=lagged, y0=0.5, delays=(Lag(1.0),)):
    return analysis.LaggedEquation(field, y0, delays=delays)


def branch():
    points = [jnp.zeros(1), jnp.ones(1)]
    roots = np.zeros((2, 1), complex)
    return analysis.Branch(np.ones(2), points, roots, np.ones(2, bool), [])


def diagram():
    zeros = jnp.zeros((2, 3, 1))
    return analysis.Bifurcation(jnp.ones(2), zeros, jnp.zeros(2), np.zeros(2, int))


CALLS = {
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
    "a diagram of one equation": (
        lambda: analysis.bifurcation(systems.Population(2.0), [1.0, 2.0]),
        TypeError,
        ["bifurcation got the equation Population(", "function", "such as Population."],
    ),
    "a critical value of one map": (
        lambda: analysis.critical(ricker(), 2.0),
        TypeError,
        ["critical got the equation KnotMap(", "lambda a: KnotMap(...)"],
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
    "an equation of no function": (lambda: equation(3), TypeError, ["field=3", "f(t, y, args"]),
    "an equation of one lag": (
        lambda: equation(delays=Lag(1.0)),
        TypeError,
        ["delays=Lag(", "a list of Lag"],
    ),
    "an equation of holds": (
        lambda: equation(delays=[Hold(1.0)]),
        TypeError,
        ["Hold(", "expected Lag alone", "knot_map"],
    ),
    "an equation of a lag to learn": (
        lambda: equation(delays=[Lag(Learn(1.0))]),
        TypeError,
        ["Learn(", "constant lags"],
    ),
    "an equation from NaN": (lambda: equation(y0=NAN), ValueError, ["y0=nan", "finite"]),
    "an equation from words": (lambda: equation(y0="a"), TypeError, ["y0='a'", "real"]),
    "an equation of nothing": (lambda: equation(y0=()), ValueError, ["empty y0"]),
    "an equation to another shape": (
        lambda: equation(lambda t, y, args, *, history: jnp.ones(2)),
        ValueError,
        ["2 numbers for a state of 1", "structure of y0"],
    ),
    "an equation that depends on time": (
        lambda: equation(lambda t, y, args, *, history: jnp.sin(t) - y),
        ValueError,
        ["depends on time", "autonomous"],
    ),
    "an equilibrium of a system with holds": (
        lambda: analysis.find_equilibrium(systems.Population()),
        TypeError,
        ["Hold(", "expected Lag alone"],
    ),
    "an equilibrium of a field": (
        lambda: analysis.find_equilibrium(lagged),
        TypeError,
        ["as an equation", "LaggedEquation(field"],
    ),
    "an equilibrium that is not there": (
        lambda: analysis.find_equilibrium(equation(lambda t, y, args, *, history: 1 + y**2)),
        ValueError,
        ["find_equilibrium found none", "closer"],
    ),
    "an equilibrium from another shape": (
        lambda: analysis.find_equilibrium(equation(), np.ones(2)),
        ValueError,
        ["a state of shape [2]; expected that of the equation's y0, []"],
    ),
    "no roots": (
        lambda: analysis.characteristic_roots(equation(), count=0),
        ValueError,
        ["characteristic_roots got count=0"],
    ),
    "roots at one node": (
        lambda: analysis.characteristic_roots(equation(), nodes=1),
        ValueError,
        ["nodes=1"],
    ),
    "a Hopf point from NaN": (
        lambda: analysis.find_hopf(systems.Hutchinson, NAN),
        ValueError,
        ["find_hopf got parameter=nan"],
    ),
    "a fold from words": (
        lambda: analysis.find_fold(systems.Hutchinson, "a", start=1.0),
        ValueError,
        ["find_fold got parameter='a'"],
    ),
    "a chart of one value": (
        lambda: analysis.stability_chart(systems.Hutchinson, [1.0], [1.0, 2.0]),
        ValueError,
        ["stability_chart got x of shape (1,)", "at least two"],
    ),
    "a chart of no roots": (
        lambda: analysis.stability_chart(systems.Hutchinson, [1.0, 2.0], [1.0, 2.0], count=0),
        ValueError,
        ["stability_chart got count=0"],
    ),
    "a cycle of two intervals": (
        lambda: analysis.find_cycle(equation(), intervals=2),
        ValueError,
        ["find_cycle got intervals=2"],
    ),
    "a cycle of a high degree": (
        lambda: analysis.find_cycle(equation(), degree=50),
        ValueError,
        ["degree=50", "at most 12", "intervals"],
    ),
    "a cycle from a function alone": (
        lambda: analysis.find_cycle(equation(), jnp.cos),
        ValueError,
        ["period=None", "a function of time with its period"],
    ),
    "a cycle of negative period": (
        lambda: analysis.find_cycle(equation(), jnp.cos, period=-1.0),
        ValueError,
        ["period=-1.0", "positive"],
    ),
    "a cycle without a time scale": (
        lambda: analysis.find_cycle(equation(lambda t, y, args: -y, delays=())),
        ValueError,
        ["without lags", "settle"],
    ),
    "a branch of one value": (
        lambda: analysis.continue_branch(systems.Hutchinson, 1.0, 1.0),
        ValueError,
        ["first=1.0 and last=1.0", "a range"],
    ),
    "a branch from NaN": (
        lambda: analysis.continue_branch(systems.Hutchinson, NAN, 1.0),
        ValueError,
        ["continue_branch got first=nan"],
    ),
    "a branch of no steps": (
        lambda: analysis.continue_branch(systems.Hutchinson, 1.0, 2.0, step=0.0),
        ValueError,
        ["step=0.0", "(0, 1]"],
    ),
    "a component of a branch too far": (
        lambda: branch().figure(component=1),
        ValueError,
        ["component=1", "from 0 to 0"],
    ),
    "a region with NaN": (
        lambda: analysis.stability_region(systems.Linear, [1.0, 2.0], [1.0, NAN]),
        ValueError,
        ["stability_region got y", "finite"],
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_calls_are_refused(case, unchecked, tmp_path, monkeypatch):
    check_call(CALLS[case], tmp_path, monkeypatch)
