"""Classical delay equations, with exact solutions if they are known.

Each system is the field of its equation and has its delays and a sensible start:

```python
system = lagrax.systems.Population(a=3.2)
sol = lagrax.solve(system, 0.0, 20.0, system.y0, delays=system.delays)
```

Parameters are array leaves, so `eqx.filter_grad` differentiates with respect to all of them. A
Python number as `tau` is static. An array is a leaf too, and needs `intervals=N` if it is traced.
"""

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree, Real
from numpy.typing import NDArray

from ._solve.arguments import (
    check_whole,
    format_value,
    is_number,
    is_real,
    is_traced,
    is_whole,
    real_array,
)
from ._solve.delays import MOST_DELAYS, TOO_MANY, Delay, Lag, RealScalar, holds

State = Float[Array, "..."]
History = Sequence[State]
Matrix = Real[ArrayLike, "..."] | Sequence[Sequence[RealScalar]]
Matrices = Sequence[Matrix] | Real[Array, "..."] | Real[NDArray, "..."]

# By default accelerators multiply float32 matrices in fewer bits.
_dot = partial(jnp.matmul, precision="highest")


class System(eqx.Module):
    """A delay equation that is its own field, `system(t, y, args, history=...)`.

    This is the base of all systems. Write a subclass to keep field, delays and start in one place.
    For a single solve a function is enough.
    """

    tau: eqx.AbstractVar[RealScalar]

    @property
    @abstractmethod
    def delays(self) -> list[Delay]:
        """The delays, for `lagrax.solve`."""

    @property
    @abstractmethod
    def y0(self) -> State:
        """A start from which the equation shows its typical behaviour."""

    @abstractmethod
    def __call__(self, t: RealScalar, y: State, args: PyTree, *, history: History) -> State:
        """dy/dt. The parameters are those of the system, and `args` is not used."""


class HeldSystem(System):
    """A system whose past enters only through samples at multiples of `tau`, solved exactly.

    Everything else follows from `flow`, the exact solution within one interval. Write a subclass
    with a `flow` for an equation whose closed form you know.
    """

    @abstractmethod
    def flow(self, s: RealScalar) -> eqx.Partial:
        """The map from the last knots, newest first, to the state a time `s` after the newest one.

        Here 0 <= s <= tau. The map is a pytree, so that `eqx.filter_vmap` can make many at once.
        """

    def knot_map(self, y: Real[ArrayLike, "..."], *older: Real[ArrayLike, "..."]) -> State:
        """Maps the last knots to the next one, z_k, z_{k−1}, … ↦ z_{k+1}.

        There is one argument for each delay, the newest knot first.
        """
        if 1 + len(older) != len(self.delays):
            raise ValueError(
                f"knot_map got {1 + len(older)} knots; expected {len(self.delays)}, one for each "
                "delay. Give the state at the last knot first, then the older ones."
            )
        for name, knot in (("y", y), *(("older", knot) for knot in older)):
            # Infinite knots are accepted, since an orbit may run away.
            if not is_real(knot) and (is_traced(knot) or real_array(knot) is None):
                raise TypeError(f"knot_map got {name}={knot!r:.60}; expected real numbers.")
        return self.flow(self.tau)(y, *older)

    def solution(
        self,
        ts: Real[ArrayLike, "..."],
        y0: Real[ArrayLike, "..."] | None = None,
        *,
        intervals: int | None = None,
    ) -> State:
        """The exact solution at times `ts`, started at t = 0 from a constant past.

        The shape is that of `ts` followed by that of `y0`. The cost is one knot map for each
        interval, and one `flow` for each time.

        **Arguments:**

        - `ts`: the times, in any order. The answer is NaN before 0 and after `intervals` intervals.
        - `y0`: the start, by default that of the system.
        - `intervals`: the number of intervals up to the last time. It is required if `ts` or `tau`
          is traced.
        """
        y0 = self.y0 if y0 is None else _numbers(y0, "solution", "y0")
        if not is_real(ts) and (is_traced(ts) or real_array(ts) is None):
            raise TypeError(f"solution got ts={ts!r:.60}; expected real times.")
        dtype = jnp.result_type(float, y0, *jax.tree.leaves(eqx.filter(self, eqx.is_inexact_array)))
        if intervals is None:
            intervals = _intervals_until(ts, self.tau)
        if not is_whole(intervals) or intervals < 1:
            raise ValueError(f"solution got intervals={intervals}; expected 1 or more, or None.")
        check_whole("solution", "intervals", intervals, 1)
        ts, y0 = jnp.asarray(ts, dtype), y0.astype(dtype)
        return _solution(self, ts.ravel(), y0, int(intervals)).reshape(ts.shape + y0.shape)


def _intervals_until(ts: Real[ArrayLike, "..."], tau: RealScalar) -> int:
    if is_traced(ts, tau):
        raise ValueError(
            f"{'ts' if is_traced(ts) else 'tau'} is traced (inside jit, grad or vmap), so the "
            "number of intervals is not known when the program is compiled. Give "
            "solution(ts, intervals=N), where N periods tau reach the last time."
        )
    last = float(np.max(np.asarray(ts, float), initial=0.0))
    # The counter of a longer loop would overflow.
    if not last / float(np.asarray(tau)) < 2**31:
        raise ValueError(
            f"solution got times up to {last:g} with tau={tau}; expected finite ones, at most 2^31 "
            "periods."
        )
    return max(1, int(np.ceil(last / float(np.asarray(tau)))))


@eqx.filter_jit
def _solution(
    system: HeldSystem, ts: Float[Array, " times"], y0: Float[Array, "*state"], intervals: int
) -> Float[Array, "times *state"]:
    # The solution is continuous, so rounding may move a time across a knot. The knot at the end
    # belongs to the last interval.
    tau = system.tau
    number = jnp.clip(jnp.floor(ts / tau), 0, intervals - 1).astype(int)
    # Matrix exponentials take long to compile, so the knot map and all times are one batch.
    flows = eqx.filter_vmap(system.flow)(jnp.append(ts - number * tau, tau))
    advance, flows = _at(flows, -1), _at(flows, slice(-1))

    def step(history, _):
        return (advance(*history), *history[:-1]), history[0]

    lags = range(len(system.delays))
    _, knots = jax.lax.scan(step, tuple(y0 for _ in lags), length=intervals)
    history = [knots[jnp.maximum(number - j, 0)] for j in lags]
    ys = eqx.filter_vmap(lambda flow, history: flow(*history))(flows, history)
    end = intervals * tau * (1 + 8 * jnp.finfo(ts.dtype).eps)
    inside = ((ts >= 0) & (ts <= end)).reshape(-1, *[1] * y0.ndim)
    return jnp.where(inside, ys, jnp.nan)


def _at(flows: eqx.Partial, index: int | slice) -> eqx.Partial:
    return jax.tree.map(lambda x: x[index] if eqx.is_array(x) else x, flows)


class Population(HeldSystem):
    """A population that grows continuously but is limited once a season.

    Its equation is x′ = a x(t) (1 − x(⌊t/τ⌋τ)).

    Between knots x(t) = x_k exp(a (1 − x_k) (t − kτ)), and the knots follow Ricker's map
    x ↦ x exp(aτ (1 − x)). The fixed point 1 loses its stability at aτ = 2. Then periods double, and
    at aτ = 3.1167 there is a stable period three, with chaos nearby. Choose it to try a new idea,
    since one parameter gives all of these dynamics and the solution is exact. The paper learns it
    at a = 2 and a = 3.2.

    With `lag` j the limit is that of j seasons before, x(⌊(t − jτ)/τ⌋τ), as in species that carry
    it in their eggs. The fixed point then loses its stability at aτ = 2 cos(jπ/(2j + 1)), which is
    1 for j = 1, to a slow wave instead of a cycle of two seasons. The wave lasts six seasons for
    j = 1.

    L. A. V. Carvalho, K. L. Cooke, *A nonlinear equation with piecewise continuous argument*,
    Differential and Integral Equations 1 (1988); K. L. Cooke, J. Wiener, *A survey of differential
    equations with piecewise continuous arguments*, Lecture Notes in Mathematics 1475 (1991); with a
    lag, S. A. Levin, R. M. May, *A note on difference-delay equations*, Theoretical Population
    Biology 9 (1976).
    """

    a: Float[Array, ""]
    tau: RealScalar
    lag: int = eqx.field(static=True)

    def __init__(self, a: RealScalar = 3.2, tau: RealScalar = 1.0, lag: int = 0):
        self.a = _scalar(a, "Population", "a")
        self.tau = _period(tau, "Population")
        if not is_whole(lag) or lag < 0:
            raise ValueError(
                f"Population got lag={lag!r}; expected a whole number, 0 or more, of samples "
                "before the last. For a lag in time, x(t - tau), use `Hutchinson`."
            )
        check_whole("Population", "lag", lag, 0, MOST_DELAYS - 1, TOO_MANY)
        self.lag = int(lag)

    @property
    def delays(self) -> list[Delay]:
        return [*holds(self.tau, self.lag + 1)]

    @property
    def y0(self) -> State:
        return jnp.asarray(0.5, self.a.dtype)

    def __call__(self, t: RealScalar, y: State, args: PyTree, *, history: History) -> State:
        return self.a * y * (1 - history[-1])

    def flow(self, s: RealScalar) -> eqx.Partial:
        return eqx.Partial(_grow, self.a * s)


def _grow(growth: Float[Array, ""], *knots: State) -> State:
    return knots[0] * jnp.exp(growth * (1 - knots[-1]))


class LinearSystem(HeldSystem):
    """A linear system, solved exactly by matrix exponentials.

    Write a subclass with `matrices` for an equation whose matrices depend on your own parameters.
    If the matrices are given, use `Linear`.
    """

    @abstractmethod
    def matrices(self) -> tuple[Float[Array, "n n"], Float[Array, "lags n n"]]:
        """A, and B_0, B_1, ... stacked."""

    @property
    def delays(self) -> list[Delay]:
        return [*holds(self.tau, self.matrices()[1].shape[0])]

    @property
    def y0(self) -> State:
        A, _ = self.matrices()
        return jnp.ones(A.shape[0], A.dtype)

    def __call__(self, t: RealScalar, y: State, args: PyTree, *, history: History) -> State:
        A, Bs = self.matrices()
        return _dot(A, y) + _apply_matrices(Bs, *history)

    def weights(self, s: RealScalar) -> Float[Array, "lags n n"]:
        """The matrices W_j of x(kτ + s) = Σ_j W_j(s) x(kτ − jτ)."""
        A, Bs = self.matrices()
        phi, gamma = _transition(A, s)
        return _dot(gamma, Bs).at[0].add(phi)

    def flow(self, s: RealScalar) -> eqx.Partial:
        return eqx.Partial(_apply_matrices, self.weights(s))

    @property
    def knot_matrix(self) -> Float[Array, "knots knots"]:
        """The knot map as a matrix on the stacked knots z_k, z_{k−1}, ….

        The solution decays from every start exactly if all eigenvalues lie inside the unit circle.
        """
        newest = jnp.concatenate(self.weights(self.tau), axis=1)
        n, width = newest.shape
        return jnp.concatenate([newest, jnp.eye(width - n, width, dtype=newest.dtype)])


def _apply_matrices(matrices: Float[Array, "lags n n"], *history: State) -> State:
    n = matrices.shape[-1]
    for z in history:
        if z.ndim == 0 or z.shape[0 if z.ndim == 1 else -2] != n:
            raise ValueError(
                f"A linear system of {n} states got a state of shape {z.shape}; expected ({n},), "
                "or one column for each of several starts."
            )
    return reduce(jnp.add, [_dot(M, z) for M, z in zip(matrices, history, strict=True)])


def _transition(
    A: Float[Array, "n n"], s: RealScalar
) -> tuple[Float[Array, "n n"], Float[Array, "n n"]]:
    """Phi = expm(A s) and Gamma = int_0^s expm(A r) dr.

    One exponential of a block matrix gives both, without the inverse of A (C. F. Van Loan, IEEE
    Trans. Automatic Control 23, 1978).
    """
    n = A.shape[0]
    zero, one = jnp.zeros_like(A), jnp.eye(n, dtype=A.dtype)
    both = jax.scipy.linalg.expm(jnp.block([[A, one], [zero, zero]]) * s)
    return both[:n, :n], both[:n, n:]


class Linear(LinearSystem):
    """The general linear equation with held arguments, x′ = A x + Σ_j B_j x(⌊(t − jτ)/τ⌋τ).

    The knots follow x_{k+1} = Φ x_k + Γ Σ_j B_j x_{k−j}, where Φ = exp(Aτ) and Γ is the integral of
    exp(As) from 0 to τ. A may be singular. Choose it to test solvers and gradients with any number
    of states and lags; `knot_matrix` shows the stability. The default is a rotation that two held
    arguments damp.

    K. L. Cooke, J. Wiener, *Retarded differential equations with piecewise constant delays*, J.
    Math. Anal. Appl. 99 (1984), and their survey of 1991 (see `Population`).
    """

    A: Float[Array, "n n"]
    Bs: Float[Array, "lags n n"]
    tau: RealScalar

    def __init__(
        self,
        A: Matrix = ((0.0, 1.0), (-1.0, 0.0)),
        Bs: Matrices = (((0.0, 0.0), (0.0, -0.4)), ((0.0, 0.0), (0.0, -0.2))),
        tau: RealScalar = 1.0,
    ):
        self.A = _square(A, "Linear")
        try:
            given = list(Bs)
        except TypeError:
            raise TypeError(
                f"Linear got Bs={Bs!r:.60}; expected a list of matrices, Bs=[B]."
            ) from None
        matrices = [_floating(B, "Linear", f"Bs[{j}]") for j, B in enumerate(given)]
        if not matrices:
            raise ValueError(
                "Linear got no Bs; expected one matrix for each held argument, Bs=[B_0, B_1, ...]. "
                "For an equation without delays write the field alone."
            )
        for j, B in enumerate(matrices):
            if B.shape != self.A.shape:
                raise ValueError(
                    f"Linear got Bs[{j}] of shape {B.shape}; expected that of A, {self.A.shape}. "
                    "Give a list of matrices, Bs=[B] for a single one."
                )
        self.Bs = jnp.stack(matrices)
        self.tau = _period(tau, "Linear")

    def matrices(self) -> tuple[Float[Array, "n n"], Float[Array, "lags n n"]]:
        return self.A, self.Bs


class DigitalControl(LinearSystem):
    """A linear plant with a digital controller, x′ = A x + B u with u = −K x(⌊t/τ⌋τ).

    The state is measured at multiples of `tau`, and the command is held until the next one.
    `knot_matrix` is Φ − Γ B K, the closed loop of the plant discretised with a zero-order hold.
    Choose it to find how slowly a controller may sample, since a gain that is stable in continuous
    time is not stable for every `tau`. The default brings a mass (position, velocity) to rest.

    K. J. Åström, B. Wittenmark, *Computer-Controlled Systems*, 3rd edition, Prentice Hall (1997),
    chapter 2.
    """

    A: Float[Array, "n n"]
    B: Float[Array, "n inputs"]
    K: Float[Array, "inputs n"]
    tau: RealScalar

    def __init__(
        self,
        A: Matrix = ((0.0, 1.0), (0.0, 0.0)),
        B: Matrix = ((0.0,), (1.0,)),
        K: Matrix = ((0.5, 1.0),),
        tau: RealScalar = 1.0,
    ):
        self.A = _square(A, "DigitalControl")
        n = self.A.shape[0]
        self.B, self.K = (_floating(x, "DigitalControl", n) for x, n in ((B, "B"), (K, "K")))
        if self.B.ndim != 2 or self.B.shape[0] != n:
            raise ValueError(
                f"DigitalControl got B of shape {self.B.shape}; expected ({n}, inputs), one row "
                "for each state of A. A single input is one column: B=[[0.0], [1.0]]."
            )
        if self.K.shape != self.B.shape[::-1]:
            raise ValueError(
                f"DigitalControl got K of shape {self.K.shape}; expected {self.B.shape[::-1]}, one "
                "row for each input and one column for each state. A single input is one row: "
                "K=[[0.5, 1.0]]."
            )
        self.tau = _period(tau, "DigitalControl")

    def matrices(self) -> tuple[Float[Array, "n n"], Float[Array, "lags n n"]]:
        return self.A, -_dot(self.B, self.K)[None]


class HeldOscillator(LinearSystem):
    """An oscillator with held feedback, x″ + 2ζω x′ + ω² x = −k x(⌊t/τ⌋τ); the state is (x, x′).

    Held feedback acts late, by half of `tau` on average, which reduces the damping. With small
    `tau` the oscillation grows if kτ is above about 4ζω. It is the smallest model in which sampling
    makes a loop unstable.

    J. Wiener, *Generalized Solutions of Functional Differential Equations*, World Scientific
    (1993); K. J. Åström, B. Wittenmark (see `DigitalControl`).
    """

    omega: Float[Array, ""]
    zeta: Float[Array, ""]
    k: Float[Array, ""]
    tau: RealScalar

    def __init__(
        self,
        omega: RealScalar = 1.0,
        zeta: RealScalar = 0.1,
        k: RealScalar = 0.3,
        tau: RealScalar = 1.0,
    ):
        self.omega = _scalar(omega, "HeldOscillator", "omega")
        self.zeta = _scalar(zeta, "HeldOscillator", "zeta")
        self.k = _scalar(k, "HeldOscillator", "k")
        self.tau = _period(tau, "HeldOscillator")

    @property
    def y0(self) -> State:
        return jnp.array([1.0, 0.0], self.omega.dtype)

    def matrices(self) -> tuple[Float[Array, "n n"], Float[Array, "lags n n"]]:
        A = jnp.array([[0.0, 1.0], [-(self.omega**2), -2 * self.zeta * self.omega]])
        B = jnp.array([[0.0, 0.0], [-self.k, 0.0]])
        return A, B[None]


class Hutchinson(System):
    """The delayed logistic equation, x′ = a x(t) (1 − x(t − τ)).

    For aτ > π/2 the fixed point 1 gives way to a limit cycle, whose peaks get sharper as aτ grows.
    Compare it with `Population`, in which the same limit acts once a season and leads to chaos.
    There is no closed form.

    G. E. Hutchinson, *Circular causal systems in ecology*, Annals of the New York Academy of
    Sciences 50 (1948).
    """

    a: Float[Array, ""]
    tau: RealScalar

    def __init__(self, a: RealScalar = 1.8, tau: RealScalar = 1.0):
        self.a = _scalar(a, "Hutchinson", "a")
        self.tau = _period(tau, "Hutchinson")

    @property
    def delays(self) -> list[Delay]:
        return [Lag(self.tau)]

    @property
    def y0(self) -> State:
        return jnp.asarray(0.5, self.a.dtype)

    def __call__(self, t: RealScalar, y: State, args: PyTree, *, history: History) -> State:
        (lagged,) = history
        return self.a * y * (1 - lagged)


class MackeyGlass(System):
    """Production of blood cells with a delay, x′ = β x(t − τ)/(1 + x(t − τ)ⁿ) − γ x(t).

    It is chaotic at the default parameters, periodic for shorter `tau`, and steady for very short
    `tau`. It is a standard benchmark for forecasting. There is no closed form. Starts must be
    positive.

    M. C. Mackey, L. Glass, *Oscillation and chaos in physiological control systems*, Science 197
    (1977).
    """

    beta: Float[Array, ""]
    gamma: Float[Array, ""]
    n: Float[Array, ""]
    tau: RealScalar

    def __init__(
        self,
        beta: RealScalar = 0.2,
        gamma: RealScalar = 0.1,
        n: RealScalar = 10.0,
        tau: RealScalar = 17.0,
    ):
        self.beta = _scalar(beta, "MackeyGlass", "beta")
        self.gamma = _scalar(gamma, "MackeyGlass", "gamma")
        self.n = _scalar(n, "MackeyGlass", "n")
        self.tau = _period(tau, "MackeyGlass")

    @property
    def delays(self) -> list[Delay]:
        return [Lag(self.tau)]

    @property
    def y0(self) -> State:
        return jnp.asarray(1.2, self.beta.dtype)

    def __call__(self, t: RealScalar, y: State, args: PyTree, *, history: History) -> State:
        (lagged,) = history
        return self.beta * lagged / (1 + lagged**self.n) - self.gamma * y


def _floating(x: Any, system: str, name: str) -> Float[Array, "..."]:
    """Converts a parameter to an array leaf that can be trained.

    It is floating point and not weakly typed, since an update would change a weak type.
    """
    x = _numbers(x, system, name)
    return jax.lax.convert_element_type(x, jnp.result_type(float, x))


def _numbers(x: Any, who: str, name: str) -> Real[Array, "..."]:
    """Converts to an array of real numbers, finite unless they are traced."""
    if is_traced(*jax.tree.leaves(x)):
        if not is_real(array := jnp.asarray(x)):
            raise TypeError(f"{who} got {name} of {array.dtype}; expected real numbers.")
        return array
    # Checked by NumPy, since within `jit` JAX would trace even known numbers.
    known = real_array(x)
    if known is None or isinstance(x, bool):
        raise TypeError(f"{who} got {name}={format_value(x)}; expected real numbers.")
    if not np.all(np.isfinite(known)):
        raise ValueError(f"{who} got {name}={x!s:.60}; expected finite numbers.")
    given = np.asarray(x)
    return jnp.asarray(known if given.dtype.kind in "Obiu" else given)


def _scalar(x: Any, system: str, name: str) -> Float[Array, ""]:
    x = _floating(x, system, name)
    if x.ndim:
        raise ValueError(
            f"{system} got {name} of shape {x.shape}; expected one number. For several systems at "
            f"once write eqx.filter_vmap({system})({name})."
        )
    return x


def _square(A: Any, system: str) -> Float[Array, "n n"]:
    A = _floating(A, system, "A")
    if A.ndim != 2 or A.shape[0] != A.shape[1] or not A.size:
        raise ValueError(
            f"{system} got A of shape {A.shape}; expected a square matrix, one row and one column "
            "for each state. A single state has A=[[a]]."
        )
    return A


def _period(tau: Any, system: str) -> RealScalar:
    if np.ndim(tau):
        raise ValueError(
            f"{system} got tau of shape {np.shape(tau)}; expected one positive number. Delays that "
            "are not multiples of one tau need a field of your own, with several lagrax.Hold."
        )
    if not is_traced(tau) and not (is_number(tau) and tau > 0):
        raise ValueError(
            f"{system} got tau={tau!s:.60}; expected a positive, finite number. For an "
            "equation without a delay use diffrax."
        )
    return float(tau) if isinstance(tau, (int, float)) else tau


SYSTEMS: dict[str, type[System]] = {
    "population": Population,
    "linear": Linear,
    "digital-control": DigitalControl,
    "held-oscillator": HeldOscillator,
    "hutchinson": Hutchinson,
    "mackey-glass": MackeyGlass,
}
"""The systems, by their names in the command `lagrax`."""
