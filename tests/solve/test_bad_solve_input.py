"""Bad arguments of delays, `solve` and systems raise a message with the cause and the remedy."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.refusals import HUGE, INF, NAN, check_call

import lagrax
from lagrax import (
    Adjoint,
    Distributed,
    Hold,
    Input,
    Jump,
    Lag,
    LagMatrix,
    Learn,
    Slope,
    holds,
    systems,
)


def field(t, y, args, *, history):
    return -y + sum(history)


def solve(f=field, t0=0.0, t1=2.0, y0=1.0, **options):
    options.setdefault("delays", [Hold(1.0)])
    return lagrax.solve(f, t0, t1, y0, **options)


def make_control(**options):
    return diffrax.PIDController(**{"rtol": 1e-3, "atol": 1e-3} | options)


def at(*ts):
    return diffrax.SaveAt(ts=np.array(ts))


ONES = np.ones(3)
TERM = diffrax.ODETerm(lambda t, y, args: -y)


def _two(history):
    a, b = history
    return a, b


def _one(history):
    (a,) = history
    return a


# The call, the type of its error, and words of the message: the culprit and the remedy.
CALLS = {
    "tau zero": (lambda: Hold(0.0), ValueError, ["tau=0.0", "positive", "delays=()"]),
    "tau negative": (lambda: Hold(-1.0), ValueError, ["tau=-1.0", "positive"]),
    "tau nan": (lambda: Hold(NAN), ValueError, ["nan", "finite"]),
    "tau infinite": (lambda: Lag(INF), ValueError, ["Lag", "inf", "finite"]),
    "lag zero": (lambda: Lag(0.0), ValueError, ["Lag", "tau=0.0", "positive"]),
    "no low": (lambda: Lag(lambda t, y, args: 1.0), ValueError, ["without low", "low=0.5"]),
    "low negative": (lambda: Lag(abs, low=-1.0), ValueError, ["low=-1.0", "at least 0"]),
    "low nan": (lambda: Lag(abs, low=NAN), ValueError, ["low=nan", "at least 0"]),
    "low infinite": (lambda: Lag(abs, low=INF), ValueError, ["low=inf", "at least 0"]),
    "high below low": (lambda: Lag(abs, low=2, high=1), ValueError, ["high=1", "low <= high"]),
    "high a string": (lambda: Lag(abs, low=2, high="3"), ValueError, ["high='3'", "at least 0"]),
    "high zero": (lambda: Lag(abs, low=0, high=0), ValueError, ["high=0", "positive"]),
    "a lag that vanishes, with equal steps": (
        lambda: solve(delays=[Lag(lambda t, y, args: t / 2, low=0)], steps=4),
        ValueError,
        ["steps=4", "low=0", "ConstantStepSize"],
    ),
    "low of a number": (lambda: Lag(1.0, low=0.5), ValueError, ["fixed lag", "Leave them out"]),
    "low traced": (
        lambda: jax.jit(lambda low: Lag(abs, low=low).low)(1.0),
        ValueError,
        ["low=", "known when the program is compiled"],
    ),
    "lag function of a row": (
        lambda: solve(delays=[Lag(lambda t, y, args: jnp.ones(2), low=1)]),
        ValueError,
        ["function of a Lag", "shape (2,)", "one number"],
    ),
    "lag function of a pytree": (
        lambda: solve(delays=[Lag(lambda t, y, args: (t, y), low=1)]),
        ValueError,
        ["function of a Lag", "pytree", "one number"],
    ),
    "lag function complex": (
        lambda: solve(delays=[Lag(lambda t, y, args: 1j * t, low=1)]),
        ValueError,
        ["function of a Lag", "complex64", "real number"],
    ),
    "lag function nan": (
        lambda: solve(delays=[Lag(lambda t, y, args: t / 0 * 0, low=1)]),
        lagrax.SolveError,
        ["function of a Lag returned NaN", "t = 0"],
    ),
    "lag function adjoint": (
        lambda: solve(delays=[Lag(lambda t, y, args: 1 + y**2, low=1)], gradient=Adjoint()),
        ValueError,
        ["Adjoint", "Lag(<lambda>, low=1)", "Checkpointed"],
    ),
    "a lag of a row negative": (
        lambda: Lag([1.0, -2.0]),
        ValueError,
        ["Lag", "tau[1]=-2.0", "positive", "1 of 2"],
    ),
    "adjoint with a matrix of lags": (
        lambda: solve(delays=[LagMatrix(np.ones((1, 1)))], y0=ONES[:1], gradient=Adjoint()),
        ValueError,
        ["Adjoint()", "LagMatrix", "Checkpointed()"],
    ),
    "part not a function": (lambda: Lag(1.0, of="level"), TypeError, ["Lag", "of='level'"]),
    "part of a hold not a function": (lambda: Hold(1.0, of=0), TypeError, ["Hold", "of=0"]),
    "part of whole numbers": (
        lambda: solve(delays=[Lag(1.0, of=lambda y: 1)]),
        ValueError,
        ["`of`", "Lag", "int32", "floating point"],
    ),
    "a row of no lags": (lambda: Lag([]), ValueError, ["Lag", "[]", "at least one"]),
    "a matrix as lags": (lambda: Lag(np.ones((2, 2))), ValueError, ["Lag", "or a row"]),
    "slope of lag zero": (lambda: Slope(0.0), ValueError, ["Slope", "tau=0.0", "positive"]),
    "slope to be learned": (lambda: Slope(Learn(1.0)), TypeError, ["Slope", "Learn", "number"]),
    "kernel a number": (lambda: Distributed(2.0, 1.0), TypeError, ["kernel=2.0", "function"]),
    "upto negative": (
        lambda: Distributed(jnp.exp, -1.0),
        ValueError,
        ["Distributed", "upto=-1.0", "positive"],
    ),
    "one node": (
        lambda: Distributed(jnp.exp, 1.0, nodes=1),
        ValueError,
        ["Distributed", "nodes=1", ">= 2"],
    ),
    "many nodes": (
        lambda: Distributed(jnp.exp, 1.0, nodes=10**4),
        ValueError,
        ["nodes=10000", "at most 200"],
    ),
    "kernel of another shape": (
        lambda: solve(delays=[Distributed(lambda s: s * ONES, 1.0)], y0=jnp.ones(2)),
        ValueError,
        ["kernel", "(3,)", "(2,)"],
    ),
    "kernel complex": (
        lambda: solve(delays=[Distributed(lambda s: s * 1j, 1.0)]),
        ValueError,
        ["kernel", "complex64", "float32"],
    ),
    "matrix of lags not square": (
        lambda: LagMatrix(np.ones((2, 3))),
        ValueError,
        ["(2, 3)", "square", "links=(i, j)"],
    ),
    "matrix of lags with text": (lambda: LagMatrix([["a"]]), ValueError, ["LagMatrix", "square"]),
    "matrix of lags negative": (
        lambda: LagMatrix([[1.0, -1.0], [1.0, 1.0]]),
        ValueError,
        ["tau[0, 1]=-1.0", "positive", "links=tau > 0"],
    ),
    "matrix of lags with zero": (
        lambda: LagMatrix(1.0 - np.eye(2)),
        ValueError,
        ["tau[0, 0]=0.0", "2 of 4", "links=tau > 0"],
    ),
    "links of another shape": (
        lambda: LagMatrix(np.ones((2, 2)), links=np.ones(2, bool)),
        ValueError,
        ["(2,)", "boolean", "(2, 2)"],
    ),
    "no links": (
        lambda: LagMatrix(np.ones((2, 2)), links=np.zeros((2, 2), bool)),
        ValueError,
        ["at least one link"],
    ),
    "fewer lags than links": (
        lambda: LagMatrix([1.0], links=([0, 1], [1, 0])),
        ValueError,
        ["(1,)", "(2,)", "as many lags"],
    ),
    "links to negative nodes": (
        lambda: LagMatrix([1.0], links=([0], [-1])),
        ValueError,
        ["whole numbers from 0"],
    ),
    "matrix of another size": (
        lambda: solve(delays=[LagMatrix(np.ones((2, 2)))], y0=jnp.ones(3)),
        ValueError,
        ["LagMatrix", "2 nodes", "(3,)"],
    ),
    "matrix for a pytree": (
        lambda: solve(delays=[LagMatrix(np.ones((2, 2)))], y0=(jnp.ones(2), jnp.ones(2))),
        ValueError,
        ["LagMatrix", "one array"],
    ),
    "link from a node that is not there": (
        lambda: solve(delays=[LagMatrix([1.0], links=([0], [3]))], y0=jnp.ones(2)),
        ValueError,
        ["LagMatrix", "4 nodes", "(2,)"],
    ),
    "several taus": (lambda: Hold(np.array([1.0, 2.0])), ValueError, ["one positive number"]),
    "tau a string": (lambda: Hold("1.0"), ValueError, ["'1.0'", "positive number"]),
    "tau and times": (lambda: Hold(1.0, times=[1.0]), ValueError, ["either", "Hold(times="]),
    "neither": (lambda: Hold(), ValueError, ["either a period or instants"]),
    "times unsorted": (lambda: Hold(times=[0.0, 2.0, 1.0]), ValueError, ["increasing", "Sort"]),
    "times repeated": (lambda: Hold(times=[0.0, 1.0, 1.0]), ValueError, ["increasing", "repeated"]),
    "times nan": (lambda: Hold(times=[0.0, NAN]), ValueError, ["finite"]),
    "times empty": (lambda: Hold(times=[]), ValueError, ["at least one instant"]),
    "times a matrix": (lambda: Hold(times=np.ones((2, 2))), ValueError, ["(2, 2)"]),
    "input times unsorted": (lambda: Input([0.0, 2.0, 1.0], ONES), ValueError, ["Input", "Sort"]),
    "input times repeated": (lambda: Input([0.0, 1.0, 1.0], ONES), ValueError, ["repeated"]),
    "input time nan": (lambda: Input([0.0, 1.0, NAN], ONES), ValueError, ["ts=", "finite"]),
    "input of fewer samples": (
        lambda: Input([0.0, 1.0], ONES),
        ValueError,
        ["2 times", "(3,)", "one sample for each time"],
    ),
    "input of one number": (lambda: Input([0.0], 1.0), ValueError, ["1 times", "()", "first axis"]),
    "input sample nan": (
        lambda: Input([0.0, 1.0, 2.0], np.array([1.0, NAN, 1.0])),
        ValueError,
        ["1 NaN", "Drop"],
    ),
    "input of text": (lambda: Input([0.0], np.array(["a"])), ValueError, ["<U1", "numbers"]),
    "input of nothing": (lambda: Input([0.0], None), ValueError, ["us=None", "no samples"]),
    "input of whole numbers, linear": (
        lambda: Input([0.0, 1.0, 2.0], np.ones(3, int), linear=True),
        ValueError,
        ["int64", ".astype(float)"],
    ),
    "input delayed by nan": (lambda: Input([0.0], ONES[:1], NAN), ValueError, ["delay=nan"]),
    "input delayed by several": (
        lambda: Input([0.0], ONES[:1], np.ones(2)),
        ValueError,
        ["delay=", "one finite number"],
    ),
    "input too fine": (
        lambda: solve(delays=[Input([1.0, 1.0 + 1e-9], ONES[:2])]),
        ValueError,
        ["Input", "too close", "float64"],
    ),
    "one input, not in a list": (
        lambda: solve(delays=Input([0.0], ONES[:1])),
        TypeError,
        ["Input(1 samples)", "delays=[...]"],
    ),
    "jump times unsorted": (lambda: Jump([2.0, 1.0], add=1.0), ValueError, ["Jump", "Sort"]),
    "jump times repeated": (lambda: Jump([1.0, 1.0], add=1.0), ValueError, ["Jump", "repeated"]),
    "jump time nan": (lambda: Jump([1.0, NAN], add=1.0), ValueError, ["Jump", "finite"]),
    "jump times infinite between": (
        lambda: Jump([1.0, INF, 2.0], add=1.0),
        ValueError,
        ["Jump", "increasing"],
    ),
    "jump without a change": (lambda: Jump([1.0]), ValueError, ["Jump(times, add=amounts)"]),
    "jump twice": (lambda: Jump([1.0], jnp.sin, add=1.0), ValueError, ["either", "add=1.0"]),
    "jump by position": (lambda: Jump([1.0], 2.0), TypeError, ["function=2.0", "add=amounts"]),
    "jump too fine": (
        lambda: solve(jumps=[Jump([1.0, 1.0 + 1e-9], add=1.0)]),
        ValueError,
        ["Jump", "too close", "float64"],
    ),
    "jumps not in a list": (
        lambda: solve(jumps=Jump([1.0], add=1.0)),
        TypeError,
        ["one Jump", "jumps=[...]"],
    ),
    "a jump among delays": (
        lambda: solve(delays=[Jump([1.0], add=1.0)]),
        TypeError,
        ["Jump", "jumps=[...]"],
    ),
    "a delay among jumps": (
        lambda: solve(jumps=[Hold(1.0)]),
        TypeError,
        ["Hold", "delays=[...]"],
    ),
    "jumps of numbers": (lambda: solve(jumps=[1.0]), TypeError, ["[1.0]", "list of lagrax.Jump"]),
    "amounts of another shape": (
        lambda: solve(jumps=[Jump([0.5, 1.5], add=ONES)]),
        ValueError,
        ["(3,)", "()", "(2,)", "2 instants"],
    ),
    "amounts of another structure": (
        lambda: solve(jumps=[Jump([1.0], add={"gut": 1.0})]),
        ValueError,
        ["'gut'", "structure of the state"],
    ),
    "amount nan": (
        lambda: solve(jumps=[Jump([0.5, 1.5], add=np.array([1.0, NAN]))]),
        ValueError,
        ["1 amounts", "NaN", "Drop"],
    ),
    "amount complex": (
        lambda: solve(jumps=[Jump([1.0], add=1j)]),
        ValueError,
        ["complex128", "float32", "real"],
    ),
    "a jump of another shape": (
        lambda: solve(jumps=[Jump([1.0], lambda t, y, args: jnp.ones(2))]),
        ValueError,
        ["function of a Jump", "(2,)", "()"],
    ),
    "a jump of another type": (
        lambda: solve(jumps=[Jump([1.0], lambda t, y, args: 1j * y)]),
        ValueError,
        ["function of a Jump", "complex64", "float32"],
    ),
    "a jump of another structure": (
        lambda: solve(jumps=[Jump([1.0], lambda t, y, args: (y, y))]),
        ValueError,
        ["function of a Jump", "pytree", "whole state"],
    ),
    "a jump of two arguments": (
        lambda: solve(jumps=[Jump([1.0], lambda t, y: y)]),
        TypeError,
        ["function(t, y, args)"],
    ),
    "lag number negative": (lambda: Hold(1.0, lag=-1), ValueError, ["lag=-1", "whole number"]),
    "lag number fractional": (lambda: Hold(1.0, lag=0.5), ValueError, ["lag=0.5", "Lag(tau)"]),
    "no holds": (lambda: holds(1.0, 0), ValueError, ["n=0", "at least 1"]),
    "t1 before t0": (lambda: solve(t0=1.0, t1=0.5), ValueError, ["t0=1.0", "t1=0.5", "t1 >= t0"]),
    "t1 nan": (lambda: solve(t1=NAN), ValueError, ["t1=nan", "finite"]),
    "t0 a vector": (lambda: solve(t0=np.zeros(2)), ValueError, ["t0", "one finite time"]),
    "ts outside": (lambda: solve(saveat=at(0.5, 2.5)), ValueError, ["2.5", "[0.0, 2.0]"]),
    "ts before": (lambda: solve(saveat=at(-0.5, 1.0)), ValueError, ["outside", "-0.5"]),
    "ts unsorted": (lambda: solve(saveat=at(1.5, 0.5)), ValueError, ["not sorted", "1.5", "0.5"]),
    "ts nan": (lambda: solve(saveat=at(0.5, NAN)), ValueError, ["NaN"]),
    "ts and steps": (
        lambda: solve(saveat=diffrax.SaveAt(ts=np.array([1.0]), steps=True)),
        ValueError,
        ["both `ts` and `steps`", "SubSaveAt"],
    ),
    "saveat of the solver's state": (
        lambda: solve(saveat=diffrax.SaveAt(t1=True, solver_state=True)),
        ValueError,
        ["solver_state=True", "y0=earlier.evaluate"],
    ),
    "saveat an array": (lambda: solve(saveat=np.array([1.0])), TypeError, ["diffrax.SaveAt"]),
    "another shape": (
        lambda: solve(lambda t, y, args, *, history: jnp.ones(3)),
        ValueError,
        ["(3,)", "()", "shape of y"],
    ),
    "another structure": (
        lambda: solve(lambda t, y, args, *, history: (y, y)),
        ValueError,
        ["pytree", "structure of y"],
    ),
    "another dtype": (
        lambda: solve(lambda t, y, args, *, history: 1j * y),
        ValueError,
        ["complex64", "float32", "Convert"],
    ),
    "too many entries unpacked": (
        lambda: solve(lambda t, y, args, *, history: sum(_two(history))),
        ValueError,
        ["unpack", "tuple of 1", "Hold(tau)"],
    ),
    "a system without its delays": (
        lambda: lagrax.solve(systems.Population(2.0), 0.0, 2.0, 0.5),
        IndexError,
        ["no `delays`", "delays=field.delays"],
    ),
    "no return": (
        lambda: solve(lambda t, y, args, *, history: None),
        ValueError,
        ["pytree PyTreeDef(None)", "lack a `return`?"],
    ),
    "history without delays": (
        lambda: solve(lambda t, y, args, *, history: _one(history), delays=()),
        ValueError,
        ["unpack", "history=()", "no `delays`"],
    ),
    "a field of two arguments": (
        lambda: solve(lambda t, y: -y, delays=()),
        TypeError,
        ["3 were given", "called the field as field(t, y, args)"],
    ),
    "the positions of diffeqsolve": (
        lambda: lagrax.solve(field, 0.0, 2.0, 0.1, 1.0, None),
        TypeError,
        ["field, t0, t1, y0, args in this order", "got 6 arguments", "dt0=0.1"],
    ),
    "the positions of odeint": (
        lambda: lagrax.solve(field, 1.0, np.linspace(0, 1, 5)),
        TypeError,
        ["missing y0.", "field, t0, t1, y0, args in this order"],
    ),
    "a field as state": (
        lambda: solve(y0=lambda t, y, args: -y),
        TypeError,
        ["missing 2 required", "y0 as a function of time, y0(t0)"],
    ),
    "no times": (lambda: lagrax.solve(field, y0=1.0), TypeError, ["missing t0 and t1."]),
    "terms of diffrax": (
        lambda: solve(diffrax.MultiTerm(diffrax.ODETerm(field)), delays=()),
        TypeError,
        ["MultiTerm", "cannot be called; expected f(t, y, args, *, history). lagrax solves dy/dt"],
    ),
    "an entry beyond the last": (
        lambda: solve(lambda t, y, args, *, history: history[1]),
        IndexError,
        ["index out of range", "history is a tuple of 1", "Hold("],
    ),
    "too few entries unpacked": (
        lambda: solve(lambda t, y, args, *, history: _one(history), delays=holds(1.0, 2)),
        ValueError,
        ["unpack", "tuple of 2", "Hold(tau, lag=1)"],
    ),
    "no history": (lambda: solve(lambda t, y, args: y), TypeError, ["history", "keyword"]),
    "field no function": (lambda: solve(3.0), TypeError, ["cannot be called", "f(t, y, args"]),
    "too few fields": (lambda: solve([field]), ValueError, ["1 fields", "2 intervals", "Give 2"]),
    "too many fields": (lambda: solve([field] * 3), ValueError, ["3 fields", "2 intervals"]),
    "traced tau": (
        lambda: jax.jit(lambda tau: solve(delays=[Hold(tau)]).ys)(1.0),
        ValueError,
        ["delay is traced", "intervals=N"],
    ),
    "traced t1": (
        lambda: jax.grad(lambda t1: solve(t1=t1).ys[-1])(2.0),
        ValueError,
        ["t0 or t1 is traced", "intervals=N"],
    ),
    "intervals too few": (
        lambda: solve(intervals=1),
        ValueError,
        ["intervals=1", "Hold(1.0)", "needs 2"],
    ),
    "intervals zero": (lambda: solve(intervals=0), ValueError, ["intervals=0", "at least 1"]),
    "intervals fractional": (lambda: solve(intervals=2.0), TypeError, ["2.0", "whole number"]),
    "integer state": (lambda: solve(y0=1), TypeError, ["int32", "y0=1.0"]),
    "boolean state": (lambda: solve(y0=np.array([True])), TypeError, ["bool", "floating point"]),
    "text as state": (lambda: solve(y0="a"), TypeError, ["y0='a'", "array"]),
    "empty state": (lambda: solve(y0=()), ValueError, ["no numbers"]),
    "unknown option": (lambda: solve(rtol=1e-3), TypeError, ["'rtol'", "PIDController"]),
    "misspelt option": (lambda: solve(step=3), TypeError, ["'step'", "steps="]),
    "diffrax's name": (lambda: solve(adjoint=None), TypeError, ["'adjoint'", "gradient="]),
    "strange option": (lambda: solve(xyzzy=3), TypeError, ["'xyzzy'", "Its options are field, t0"]),
    "steps and control": (
        lambda: solve(steps=2, stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-3)),
        ValueError,
        ["steps=2", "stepsize_controller", "Leave one"],
    ),
    "steps and dt0": (lambda: solve(steps=2, dt0=0.1), ValueError, ["steps=2", "dt0"]),
    "no steps": (lambda: solve(steps=0), ValueError, ["steps=0", "at least 1"]),
    "steps negative": (lambda: solve(steps=-3), ValueError, ["steps=-3"]),
    "steps fractional": (lambda: solve(steps=2.5), ValueError, ["steps=2.5", "whole number"]),
    "adjoint dense": (
        lambda: solve(gradient=Adjoint(), saveat=diffrax.SaveAt(dense=True)),
        ValueError,
        ["dense output", "Checkpointed()"],
    ),
    "adjoint steps": (
        lambda: solve(gradient=Adjoint(), saveat=diffrax.SaveAt(steps=True)),
        ValueError,
        ["all steps", "SaveAt(ts=...)"],
    ),
    "max_steps zero": (lambda: solve(max_steps=0), ValueError, ["max_steps=0"]),
    "solver a class": (lambda: solve(solver=diffrax.Tsit5), TypeError, ["Tsit5()"]),
    "solver a string": (lambda: solve(solver="tsit5"), TypeError, ["'tsit5'", "diffrax"]),
    "control a string": (lambda: solve(stepsize_controller="pid"), TypeError, ["PIDController"]),
    "Euler adaptive": (
        lambda: solve(solver=diffrax.Euler()),
        ValueError,
        ["Euler", "no error estimate", "steps=K"],
    ),
    "constant steps without length": (
        lambda: solve(stepsize_controller=diffrax.ConstantStepSize()),
        ValueError,
        ["dt0=", "steps=K"],
    ),
    "gradient a class": (lambda: solve(gradient=Adjoint), TypeError, ["Adjoint()"]),
    "gradient a string": (lambda: solve(gradient="adjoint"), TypeError, ["Checkpointed()"]),
    "adjoint with constant steps": (
        lambda: solve(gradient=Adjoint(), stepsize_controller=diffrax.ConstantStepSize(), dt0=0.1),
        ValueError,
        ["Adjoint", "PIDController"],
    ),
    "adjoint without error estimate": (
        lambda: solve(gradient=Adjoint(solver=diffrax.Euler())),
        ValueError,
        ["Euler", "no error estimate"],
    ),
    "adjoint with a number": (
        lambda: solve(gradient=Adjoint(stepsize_controller=1e-3)),
        TypeError,
        ["0.001", "PIDController"],
    ),
    "a solver for two parts": (
        lambda: solve(solver=diffrax.SemiImplicitEuler(), steps=2),
        ValueError,
        ["SemiImplicitEuler", "Tsit5()"],
    ),
    "StepTo": (
        lambda: solve(stepsize_controller=diffrax.StepTo(np.array([0.0, 0.7, 2.0]))),
        ValueError,
        ["StepTo", "step_ts"],
    ),
    "a term as field": (
        lambda: solve(diffrax.ODETerm(lambda t, y, args: y)),
        TypeError,
        ["term.vector_field"],
    ),
    "adjoint with a lag": (
        lambda: solve(delays=[Lag(1.0)], gradient=Adjoint()),
        ValueError,
        ["Lag", "Theorem 2", "Checkpointed()"],
    ),
    "a class as delay": (lambda: solve(delays=[Lag]), TypeError, ["Lag'>", "example Lag(1.0)."]),
    "times of SciPy": (lambda: solve(t_eval=ONES), TypeError, ["'t_eval'", "SaveAt(ts=times)"]),
    "one delay, no list": (lambda: solve(delays=Hold(1.0)), TypeError, ["one delay", "list"]),
    "a number as delay": (lambda: solve(delays=[1.0]), TypeError, ["1.0", "Hold(1.0)"]),
    "delays a number": (lambda: solve(delays=1.0), TypeError, ["list of Hold, Lag, Input"]),
    "evaluate without dense": (lambda: solve().evaluate(0.5), ValueError, ["dense=True"]),
    "a solution called": (lambda: solve()(1.5), TypeError, ["sol.evaluate(t)", "dense=True"]),
    "a solution as past": (lambda: solve(y0=solve()), TypeError, ["sol.evaluate(t)"]),
    "diffeqsolve's order": (
        lambda: lagrax.solve(TERM, diffrax.Tsit5(), 0.0, 1.0, 0.1, 1.0),
        TypeError,
        ["field, t0, t1, y0, args", "term.vector_field", "solver=solver"],
    ),
    "diffeqsolve's order with names": (
        lambda: lagrax.solve(TERM, diffrax.Tsit5(), t0=0.0, t1=1.0, dt0=0.1, y0=1.0),
        TypeError,
        ["field, t0, t1, y0, args", "dt0=dt0"],
    ),
    "y0 left out": (lambda: lagrax.solve(field, 0.0, 1.0), TypeError, ["missing", "y0"]),
    "event": (lambda: solve(event=None), TypeError, ["'event'", "sol.evaluate"]),
    "discrete event": (lambda: solve(discrete_terminating_event=None), TypeError, ["saved states"]),
    "terms": (lambda: solve(terms=TERM), TypeError, ["'terms'", "term.vector_field"]),
    "solver state": (lambda: solve(solver_state=0), TypeError, ["y0=earlier.evaluate"]),
    "controller state": (lambda: solve(controller_state=0), TypeError, ["y0=earlier.evaluate"]),
    "made_jump": (lambda: solve(made_jump=True), TypeError, ["jump_ts"]),
    "a list of numbers negated": (
        lambda: lagrax.solve(lambda t, y, args: -y, 0.0, 1.0, [1.0, 2.0]),
        TypeError,
        ["list of 2 numbers", "y0=jnp.array"],
    ),
    "an array for a list of numbers": (
        lambda: lagrax.solve(lambda t, y, args: jnp.array(y), 0.0, 1.0, [1.0, 2.0]),
        ValueError,
        ["structure of y", "list of 2 numbers", "y0=jnp.array"],
    ),
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
        ["Hold(1.0, lag=1000000)", "400,000 intervals", "1.6e+11 moves", "smaller lag"],
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
        lambda: solve(stepsize_controller=make_control(rtol="a")),
        ValueError,
        ["PIDController got rtol='a'", "positive numbers"],
    ),
    "a tolerance that is none": (
        lambda: solve(stepsize_controller=make_control(atol=NAN)),
        ValueError,
        ["PIDController got atol=nan"],
    ),
    "a tolerance below zero": (
        lambda: solve(stepsize_controller=make_control(rtol=-1e-3)),
        ValueError,
        ["PIDController got rtol=-0.001"],
    ),
    "a complex tolerance": (
        lambda: solve(stepsize_controller=make_control(rtol=1j)),
        ValueError,
        ["PIDController got rtol=1j"],
    ),
    "a coefficient in words": (
        lambda: solve(stepsize_controller=make_control(pcoeff="a")),
        ValueError,
        ["PIDController got pcoeff='a'"],
    ),
    "a clipped tolerance in words": (
        lambda: solve(
            stepsize_controller=diffrax.ClipStepSizeController(make_control(rtol="a"), [0.3])
        ),
        ValueError,
        ["PIDController got rtol='a'"],
    ),
    "a tolerance of the adjoint in words": (
        lambda: solve(gradient=lagrax.Adjoint(stepsize_controller=make_control(rtol="a"))),
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


def test_an_error_of_the_field_itself_is_passed_on():
    def broken(t, y, args, *, history):
        raise ValueError("my own trouble")

    with pytest.raises(ValueError, match="my own trouble") as caught:
        solve(broken)
    assert "one entry for each delay" in caught.value.__notes__[0]


def test_a_list_of_numbers_is_a_pytree():
    sol = lagrax.solve(lambda t, y, args: [y[1], -y[0]], 0.0, 1.0, [0.0, 1.0])
    np.testing.assert_allclose(sol.ys, np.array([[np.sin(1.0)], [np.cos(1.0)]]), rtol=1e-4)
