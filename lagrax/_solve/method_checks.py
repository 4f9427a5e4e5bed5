"""Checks of the solver, the control of its steps, and the gradient, for `solve`.

Every message says what was got, what was expected, and what to do.
"""

from collections.abc import Sequence
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx

from .arguments import MOST_COUNT, format_value, is_number, is_real, is_traced, is_whole, real_array
from .delays import Entry, LagEntry, describe, is_function
from .gradients import Adjoint, Checkpointed, Direct, Gradient
from .saving import list_subs

# Equal steps in one interval. More take minutes, and their rounding errors outweigh the gain.
MOST_STEPS = 10**8


def check_solver(solver: Any) -> None:
    if not isinstance(solver, diffrax.AbstractSolver):
        hint = f"{solver.__name__}()" if isinstance(solver, type) else "diffrax.Tsit5()"
        raise TypeError(f"solver={solver!r}; expected a solver of diffrax, such as {hint}.")
    structure = solver.term_structure
    if not (isinstance(structure, type) and issubclass(structure, diffrax.AbstractTerm)):
        raise ValueError(
            f"{type(solver).__name__} is for equations of several parts or with noise; expected a "
            "solver for dy/dt = f, such as diffrax.Tsit5()."
        )


def check_steps(steps: Any, max_steps: Any, controller: Any, dt0: Any) -> None:
    if not is_whole(max_steps) or max_steps < 1:
        raise ValueError(
            f"max_steps={max_steps!r}; expected a whole number, at least 1. Memory is set "
            "aside for this many steps."
        )
    if max_steps > MOST_COUNT:
        raise ValueError(
            f"max_steps={format_value(max_steps)}; expected at most {MOST_COUNT:,}: steps are "
            "counted in 32 bits."
        )
    if dt0 is not None and not is_traced(dt0) and not (is_number(dt0) and dt0 > 0):
        raise ValueError(
            f"dt0={dt0!r}; expected one positive number, the length of the first step. Leave it "
            "out to have it found."
        )
    if steps is None:
        return
    if not is_whole(steps) or steps < 1:
        raise ValueError(
            f"steps={steps!r}; expected a whole number of equal steps an interval, at least 1. For "
            "adaptive steps leave it out."
        )
    if steps > MOST_STEPS:
        raise ValueError(
            f"steps={format_value(steps)}; expected at most {MOST_STEPS:,} in each interval. Fewer "
            "of a solver of higher order do better, such as diffrax.Dopri8()."
        )
    given = "stepsize_controller" if controller is not None else "dt0"
    if controller is not None or dt0 is not None:
        raise ValueError(
            f"Got steps={steps} and {given}: equal steps need no control. Leave one of the two out."
        )


def check_vanishing(delays: Sequence[Entry], steps: Any) -> None:
    """Checks that lags that may vanish come with adaptive steps, which can be iterated."""
    vanishing = [d for d in delays if is_function(d) and d.low == 0]
    if vanishing and steps is not None:
        raise ValueError(
            f"Got steps={steps} and {describe(vanishing)}, which may vanish: equal steps cannot be "
            "iterated. Leave `steps` out, or give stepsize_controller=diffrax.ConstantStepSize() "
            "and dt0=... for steps of one length."
        )


def take_times(controller: Any) -> tuple[Any, Any, Any]:
    """Takes the times out of a `diffrax.ClipStepSizeController`.

    Returns the controller within, its `step_ts`, at which steps end as they do at breakpoints, and
    its `jump_ts`, which become breakpoints.
    """
    if not isinstance(controller, diffrax.ClipStepSizeController):
        return controller, None, None
    if controller.store_rejected_steps is not None:
        raise ValueError(
            f"ClipStepSizeController has store_rejected_steps={controller.store_rejected_steps}, "
            "which is for equations with noise. Leave it out."
        )
    inner, step_ts, jump_ts = take_times(controller.controller)
    return (
        inner,
        _merge_times(step_ts, controller.step_ts),
        _merge_times(jump_ts, controller.jump_ts),
    )


def _merge_times(first: Any, second: Any) -> Any:
    if first is None or second is None:
        return second if first is None else first
    xp = jnp if is_traced(first, second) else np
    return xp.sort(xp.concatenate([first, second]))


def check_controller(
    solver: diffrax.AbstractSolver, controller: Any, dt0: Any
) -> diffrax.AbstractStepSizeController:
    if controller is None:
        controller = diffrax.PIDController(rtol=1e-5, atol=1e-7)
    if not isinstance(controller, diffrax.AbstractStepSizeController):
        raise TypeError(
            f"stepsize_controller={controller!r}; expected one of diffrax's, such as "
            "diffrax.PIDController(rtol=1e-5, atol=1e-7)."
        )
    _check_numbers_of(controller)
    if isinstance(controller, diffrax.StepTo):
        raise ValueError(
            "StepTo counts its steps and would lose count where a knot adds one. Use "
            "diffrax.ClipStepSizeController(..., step_ts=...), or steps=K equal steps an interval."
        )
    if isinstance(controller, diffrax.ConstantStepSize):
        if dt0 is None:
            raise ValueError(
                "ConstantStepSize needs the length of its steps: give dt0=..., or steps=K equal "
                "steps an interval."
            )
        return controller
    if not isinstance(solver, diffrax.AbstractAdaptiveSolver):
        raise ValueError(
            f"{type(solver).__name__} has no error estimate, so its steps cannot be adapted. Give "
            "steps=K equal steps an interval, or use a solver such as diffrax.Tsit5()."
        )
    return controller.wrap(direction=1)


# diffrax checks these within the compiled program, if at all.
_NOT_NEGATIVE = ("rtol", "atol", "dtmin", "dtmax", "safety", "factormin", "factormax")
_NUMBERS = (*_NOT_NEGATIVE, "pcoeff", "icoeff", "dcoeff", "step_ts", "jump_ts")


def _check_numbers_of(controller: Any) -> None:
    inner = getattr(controller, "controller", None)
    if isinstance(inner, diffrax.AbstractStepSizeController):
        _check_numbers_of(inner)
    for name in _NUMBERS:
        for value in jax.tree.leaves(getattr(controller, name, None)):
            if is_traced(value) and is_real(value):
                continue
            numbers = None if is_traced(value) else real_array(value)
            negative = name in _NOT_NEGATIVE and numbers is not None and np.any(numbers < 0)
            if numbers is None or negative or np.any(np.isnan(numbers)):
                kind = "positive numbers" if name in _NOT_NEGATIVE else "numbers"
                raise ValueError(
                    f"{type(controller).__name__} got {name}={value!r:.60}; expected {kind}, such "
                    "as diffrax.PIDController(rtol=1e-5, atol=1e-7)."
                )


def set_tolerances(solver: diffrax.AbstractSolver, controller: Any, dtype: Any):
    """Gives the root finder of an implicit solver the tolerances of the step size control.

    `diffrax.diffeqsolve` does the same. diffrax's root finder gives up after two iterations, and
    equal steps cannot be shortened then, so they get a root finder that iterates on.
    """
    if not isinstance(solver, diffrax.AbstractImplicitSolver):
        return solver
    if isinstance(solver, diffrax.HalfSolver):
        inner = set_tolerances(solver.solver, controller, dtype)
        return eqx.tree_at(lambda s: s.solver, solver, inner)
    finder = solver.root_finder
    names = [
        name
        for name in ("rtol", "atol", "norm")
        if isinstance(getattr(finder, name, None), _TOLERANCE_OF_STEPS)
    ]
    if not names:
        return solver
    if not hasattr(controller, "rtol"):
        tight = 1e-9 if dtype == jnp.float64 else 1e-5
        return eqx.tree_at(lambda s: s.root_finder, solver, optx.Chord(rtol=tight, atol=tight))
    return eqx.tree_at(
        lambda s: [getattr(s.root_finder, n) for n in names],
        solver,
        [getattr(controller, n) for n in names],
    )


# The type of diffrax's placeholder for tolerances, which diffrax does not export.
_TOLERANCE_OF_STEPS = type(diffrax.with_stepsize_controller_tols(optx.Chord)().rtol)


def check_gradient(
    gradient: Any, delays: Sequence[Entry], solver: Any, controller: Any, saveat: Any, dtype: Any
) -> Gradient:
    """Returns the gradient; an `Adjoint` gets the solver and the control of its backward pass."""
    if not isinstance(gradient, (Direct, Checkpointed, Adjoint)):
        hint = f"{gradient.__name__}()" if isinstance(gradient, type) else "lagrax.Checkpointed()"
        raise TypeError(
            f"gradient={gradient!r}; expected Direct(), Checkpointed() or Adjoint(), such as "
            f"{hint}."
        )
    if not isinstance(gradient, Adjoint):
        return gradient
    lag = next((d for d in delays if isinstance(d, LagEntry)), None)
    if lag is not None:
        raise ValueError(
            f"Adjoint() does not support a {type(lag).__name__} (delays {describe(delays)}), since "
            "Theorem 2 is about held states. Use gradient=Checkpointed(), which is exact."
        )
    if saveat.dense or any(sub.steps for sub in list_subs(saveat)):
        output = "dense output" if saveat.dense else "all steps"
        raise ValueError(
            f"saveat asks for {output}, to which Adjoint() has no gradient. Use "
            "gradient=Checkpointed(), or save at times: SaveAt(ts=...)."
        )
    backward = solver if gradient.solver is None else gradient.solver
    check_solver(backward)
    if gradient.stepsize_controller is not None:
        # The times are those of the solve, and the backward pass runs in reversed time.
        inner, _, _ = take_times(gradient.stepsize_controller)
        controller = check_controller(backward, inner, None)
    elif isinstance(controller, diffrax.ConstantStepSize):
        raise ValueError(
            "Adjoint() cannot go back in steps of dt0. Give it a control of its own, "
            "Adjoint(stepsize_controller=diffrax.PIDController(...)), or use steps=K equal steps."
        )
    elif controller is not None:
        check_controller(backward, controller, None)
    return Adjoint(set_tolerances(backward, controller, dtype), controller)
