"""How long is one training step of the paper's image models on a GPU?

A step consists of loss, gradient and Adam for NODE, NPCDDE5 and UNPCDDE5 with the paper's filters,
on random data of CIFAR-10's shape, batch 256. torchdiffeq, diffrax with a loop over the intervals,
and lagrax with adaptive and with fixed steps use the same function, parameters and data. Another
program trains an epoch. The others compute the field as plain convolutions. lagrax uses its `Conv`,
which has a hand-written derivative and computes the 3x3 weight gradient on f16 operands also in
f32. According to gpu_field_study.py this makes f32 1.8 times as fast; no row here isolates it.

One NVIDIA H200, JAX 0.11.2, PyTorch 2.11, torchdiffeq 0.2.5, diffrax 0.7.2; medians of five timings
in one run. Milliseconds a step:

    program                       inside the field      NODE  NPCDDE5  UNPCDDE5
    torchdiffeq dopri5, direct    f32 (tf32)            53.5    221.3    145.7
    torchdiffeq dopri5, adjoint   f32 (tf32)            86.6    488.4    357.3
    diffrax Dopri5                f32 (tf32)            61.8    366.5    124.5
    lagrax Dopri5                 f32 (tf32)            22.3     49.3     30.2
    lagrax Dopri5                 f16                   13.7     33.8     21.1
    lagrax fixed steps            f32 (tf32)             9.0      7.8      5.1
    lagrax fixed steps            bf16                   5.7      5.0      3.1
    lagrax fixed steps            f16                    5.6      4.9      3.2

Adaptive rows use rtol = atol = 1e-3. Fixed steps are two Tsit5 steps (NODE) or one midpoint step an
interval. results/gpu_step.json holds evaluations, TFLOP/s and the goals. NOTES.md lists all
attempts.

`python benchmarks/gpu_step.py` needs a CUDA GPU with JAX, PyTorch and torchdiffeq and takes about
five minutes. It prints a table and the goals, and writes results/gpu_step.json. It names rows whose
packages are missing. `--tiny` checks that everything runs, anywhere.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# PyTorch needs room on the same card.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from measuring import RESULTS, at_least, hardware, versions

import lagrax
from reproduction.models import paper_filters, paper_model

QUESTION = "How long is one training step of the paper's image models on a GPU?"
MODELS = ("NODE", "NPCDDE5", "UNPCDDE5")
DTYPES = {"f32 (tf32)": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16}
TOLERANCE = 1e-3
FIXED = {
    "NODE": {"solver": diffrax.Tsit5(), "steps": 2},
    "NPCDDE5": {"solver": diffrax.Midpoint(), "steps": 1},
    "UNPCDDE5": {"solver": diffrax.Midpoint(), "steps": 1},
}
ADAPTIVE = {
    "solver": diffrax.Dopri5(),
    "stepsize_controller": diffrax.PIDController(rtol=TOLERANCE, atol=TOLERANCE),
}


@dataclass(frozen=True)
class Size:
    batch: int
    epoch: int  # images
    seconds: float  # that a timing lasts, about


FULL, TINY = Size(256, 50_000, 1.0), Size(1, 3, 0.0)


def arguments_of(name: str) -> list[int]:
    """How many states the field of each interval looks at."""
    return {"NODE": [1], "NPCDDE5": [6] * 5, "UNPCDDE5": [2, 3, 4, 5, 6]}[name]


def teraflops(name: str, batch: int, evaluations: float) -> float:
    """Of a training step on the unpadded mathematics: three times forward, two a multiply-add."""
    pixels, k = batch * 32 * 32, paper_filters(name, "cifar10")
    each = [2 * pixels * (3 * n * k + 9 * k * k + 3 * k) for n in arguments_of(name)]
    return 3 * (statistics.mean(each) * evaluations + 2 * pixels * 3 * 10) / 1e12


def batches(size: Size, number: int = 4) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        (
            rng.random((size.batch, 32, 32, 3), np.float32),
            rng.integers(0, 10, size.batch).astype(np.int32),
        )
        for _ in range(number)
    ]


def milliseconds(call: Callable[[int], Any], wait: Callable, seconds: float) -> float:
    """The median of five timings of several calls each, after three calls to warm up; of no
    seconds, one call."""
    wait([call(i) for i in range(3 if seconds else 0)])
    start = time.perf_counter()
    wait(call(3))
    if not seconds:
        return 1e3 * (time.perf_counter() - start)
    inner = max(1, int(seconds / 5 / (time.perf_counter() - start)))
    times = []
    for _ in range(5):
        start = time.perf_counter()
        wait([call(i) for i in range(inner)])
        times.append((time.perf_counter() - start) / inner)
    return 1e3 * statistics.median(times)


# --- JAX ------------------------------------------------------------------------------------------


def cross_entropy(logits, labels):
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
    return -jnp.mean(chosen)


def adam(state, gradient):
    p, m, v, t = state
    t = t + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, gradient)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, gradient)
    size = 1e-3 * jnp.sqrt(1 - 0.999**t) / (1 - 0.9**t)
    p = jax.tree.map(lambda p, m, v: p - size * m / (jnp.sqrt(v) + 1e-8), p, m, v)
    return p, m, v, t


def first_state(model):
    zeros = jax.tree.map(jnp.zeros_like, model)
    return jax.tree.map(jnp.array, (model, zeros, zeros, jnp.zeros(())))


def training_step(logits: Callable) -> Callable:
    def step(state, x, y):
        value, gradient = jax.value_and_grad(lambda p: cross_entropy(logits(p, x), y))(state[0])
        return adam(state, gradient), value

    return step


def time_jax(model, logits: Callable, size: Size) -> dict:
    data = [jax.device_put(b) for b in batches(size)]
    step = jax.jit(training_step(logits), donate_argnums=0)
    box = [first_state(model)]

    def call(i):
        box[0], value = step(box[0], *data[i % len(data)])
        return value

    start = time.perf_counter()
    loss = float(call(0))
    compiled = time.perf_counter() - start
    ms = milliseconds(call, jax.block_until_ready, size.seconds)
    return {"ms": ms, "first_loss": loss, "compile_s": compiled}


def lagrax_model(name: str, dtype, **options):
    return paper_model(name, "cifar10", key=jax.random.key(0), compute_dtype=dtype, **options)


def time_lagrax(name: str, dtype, size: Size, **options) -> dict:
    model = lagrax_model(name, dtype, **options)
    x, _ = batches(size)[0]
    evaluations = int(jax.jit(lambda m, x: m.flow.solve(x).stats["num_evaluations"])(model, x))
    return {"evaluations": evaluations} | time_jax(model, lambda m, x: m(x), size)


def plain_field(layers, *arguments):
    h = jnp.concatenate(arguments, -1)
    for i, layer in enumerate(layers):
        w = layer.weight if layer.weight.ndim == 4 else layer.weight[None, None]
        h = jax.nn.relu(h) if i else h
        axes = ("NHWC", "HWIO", "NHWC")
        h = lax.conv_general_dilated(h, w, (1, 1), "SAME", dimension_numbers=axes) + layer.bias
    return h


def plain_solve(name: str, fields, x):
    """A loop of `diffeqsolve` over the intervals; the final state and the number of steps."""
    past, steps = [x] * 5, 0
    intervals = len(arguments_of(name))
    for i, n in enumerate(arguments_of(name)):
        layers = (fields[i] if isinstance(fields, list) else fields).layers
        held = tuple(past[: n - 1])
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: plain_field(args[0], y, *args[1])),
            ADAPTIVE["solver"],
            t0=0.0,
            t1=1 / intervals,
            dt0=None,
            y0=past[0],
            args=(layers, held),
            stepsize_controller=ADAPTIVE["stepsize_controller"],
        )
        assert solution.ys is not None
        past, steps = [solution.ys[-1], *past], steps + solution.stats["num_steps"]
    return past[0], steps


def time_diffrax(name: str, size: Size) -> dict:
    model = lagrax_model(name, None)
    x, _ = batches(size)[0]
    steps = jax.jit(lambda m, x: plain_solve(name, m.flow.flow.field, x)[1])(model, x)
    # Dopri5: six evaluations a step, and an interval's first slope and search for its first step.
    evaluations = 6 * int(steps) + 3 * len(arguments_of(name))
    logits = lambda m, x: m.head(plain_solve(name, m.flow.flow.field, x)[0])
    return {"evaluations": evaluations} | time_jax(model, logits, size)


# --- PyTorch --------------------------------------------------------------------------------------


def torch_model(name: str, adjoint: bool):
    """The same parameters, channels first as PyTorch has them, in its own memory format for them
    last. The field counts its evaluations."""
    import torch  # pyright: ignore
    from torchdiffeq import odeint, odeint_adjoint  # pyright: ignore

    class Field(torch.nn.Module):
        def __init__(self, layers):
            super().__init__()
            self.layers = torch.nn.ModuleList([torch_layer(layer) for layer in layers])
            self.evaluations = 0

        def forward(self, y, held):
            self.evaluations += 1
            h = torch.cat([y, *held], 1)
            for i, layer in enumerate(self.layers):
                h = layer(torch.relu(h) if i else h)
            return h

    class Model(torch.nn.Module):
        def __init__(self, source):
            super().__init__()
            fields = source.flow.flow.field
            fields = fields if isinstance(fields, list) else [fields]
            self.fields = torch.nn.ModuleList([Field(f.layers) for f in fields])
            affine = source.head.affine
            self.head = torch.nn.Linear(*affine.weight.shape)
            copy_to(self.head, affine.weight.T, affine.bias)

        def forward(self, x):
            past, intervals = [x] * 5, len(arguments_of(name))
            times = torch.tensor([0.0, 1 / intervals], device=x.device)
            for i, n in enumerate(arguments_of(name)):
                field, held = self.fields[i % len(self.fields)], past[: n - 1]
                past = [interval(field, past[0], held, times), *past]
            return self.head(past[0].permute(0, 2, 3, 1).flatten(1))

    def interval(field, y, held, times):
        options = {"rtol": TOLERANCE, "atol": TOLERANCE, "method": "dopri5"}
        if not adjoint:
            return odeint(lambda t, y: field(y, held), y, times, **options)[-1]
        # What the adjoint gives a gradient to must be a state: held ones have no slope.
        zeros = [torch.zeros_like(h) for h in held]
        f = lambda t, state: (field(state[0], state[1:]), *zeros)
        weights = {"adjoint_params": tuple(field.parameters())}
        return odeint_adjoint(f, (y, *held), times, **options, **weights)[0][-1]

    return Model(lagrax_model(name, None))


def copy_to(layer, weight, bias) -> None:
    import torch  # pyright: ignore

    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(np.array(weight)))
        layer.bias.copy_(torch.from_numpy(np.array(bias)))


def torch_layer(layer):
    import torch  # pyright: ignore

    weight = np.asarray(layer.weight)
    weight = (weight if weight.ndim == 4 else weight[None, None]).transpose(3, 2, 0, 1)
    outputs, inputs, side, _ = weight.shape
    conv = torch.nn.Conv2d(inputs, outputs, side, padding=side // 2)
    copy_to(conv, weight, layer.bias)
    return conv


def time_torch(name: str, size: Size, adjoint: bool) -> dict:
    import torch  # pyright: ignore

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layout = torch.channels_last
    model: Any = torch_model(name, adjoint).to(device, memory_format=layout)
    optimiser = torch.optim.Adam(model.parameters(), 1e-3, fused=device == "cuda")
    data = [
        (
            torch.from_numpy(x).permute(0, 3, 1, 2).to(device, memory_format=layout),
            torch.from_numpy(y).long().to(device),
        )
        for x, y in batches(size)
    ]
    count = lambda: sum(f.evaluations for f in model.fields)

    def call(i):
        x, y = data[i % len(data)]
        value = torch.nn.functional.cross_entropy(model(x), y)
        forward = count()
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        return value, forward

    value, forward = call(0)
    row: dict[str, float] = {"evaluations": forward, "backward_evaluations": count() - forward}
    row["first_loss"] = value.item()

    def wait(_):
        if device == "cuda":
            torch.cuda.synchronize()

    row["ms"] = milliseconds(call, wait, size.seconds)
    del model, optimiser
    if device == "cuda":
        torch.cuda.empty_cache()
    return row


# --- an epoch, and the machine --------------------------------------------------------------------


def time_epoch(name: str, dtype, size: Size) -> dict:
    """All images once in a new order: one program, the images on the device as bytes."""
    rng = np.random.default_rng(0)
    images = jax.device_put(rng.integers(0, 256, (size.epoch, 32, 32, 3), np.uint8))
    labels = jax.device_put(rng.integers(0, 10, size.epoch).astype(np.int32))
    full, rest = divmod(size.epoch, size.batch)
    step = training_step(lambda m, x: m(x))

    def on(state, chosen):
        return step(state, images[chosen].astype(jnp.float32) / 255, labels[chosen])

    def epoch(state, key):
        order = jax.random.permutation(key, size.epoch)
        whole = order[: full * size.batch].reshape(full, size.batch)
        state, losses = lax.scan(on, state, whole)
        return on(state, order[-rest:]) if rest else (state, losses[-1])

    epoch = jax.jit(epoch, donate_argnums=0)
    box = [first_state(lagrax_model(name, dtype, gradient=lagrax.Direct(), **FIXED[name]))]

    def call(i):
        box[0], value = epoch(box[0], jax.random.key(i))
        return value

    ms = milliseconds(call, jax.block_until_ready, 0.0)
    return {"ms": ms, "images_per_s": 1e3 * size.epoch / ms}


def peak_teraflops(side: int) -> float:
    a, b = (jax.random.normal(jax.random.key(i), (side, side), jnp.bfloat16) for i in range(2))
    product = jax.jit(jnp.dot)
    ms = milliseconds(lambda _: product(a, b), jax.block_until_ready, 0.5)
    return 2 * side**3 / ms / 1e9


# --- all of it ------------------------------------------------------------------------------------


def jobs(size: Size) -> list[tuple[str, str, str, Callable]]:
    """(model, program, arithmetic, its measurement)."""
    out = []
    tf32, direct = "f32 (tf32)", {"gradient": lagrax.Direct()}
    for name in MODELS:
        out.append((name, "diffrax Dopri5", tf32, lambda n=name: time_diffrax(n, size)))
        for arithmetic in (tf32, "f16"):
            call = lambda n=name, d=DTYPES[arithmetic]: time_lagrax(n, d, size, **ADAPTIVE)
            out.append((name, "lagrax Dopri5", arithmetic, call))
        for arithmetic, dtype in DTYPES.items():
            call = lambda n=name, d=dtype: time_lagrax(n, d, size, **direct, **FIXED[n])
            out.append((name, "lagrax fixed steps", arithmetic, call))
    for arithmetic in ("bf16", "f16"):
        call = lambda d=DTYPES[arithmetic]: time_epoch("NPCDDE5", d, size)
        out.append(("NPCDDE5", "lagrax epoch", arithmetic, call))
    for how in ("direct", "adjoint"):
        for name in MODELS:
            call = lambda n=name, a=how == "adjoint": time_torch(n, size, a)
            out.append((name, f"torchdiffeq dopri5, {how}", tf32, call))
    return out


def goals_of(rows: list[dict]) -> list[dict]:
    def find(model, program, arithmetic, what="ms"):
        wanted = {"model": model, "program": program, "arithmetic": arithmetic}
        (row,) = [r for r in rows if wanted.items() <= r.items()] or [{}]
        return row.get(what, float("nan"))

    tf32, fixed, out = "f32 (tf32)", "lagrax fixed steps", []

    def add(name, value, goal):
        out.append(at_least(name, value, goal))

    # At equal tolerances.
    for arithmetic in (tf32, "f16"):
        adaptive = find("NPCDDE5", "lagrax Dopri5", arithmetic)
        for other, goal in (
            ("torchdiffeq dopri5, direct", 5),
            ("torchdiffeq dopri5, adjoint", 5),
            ("diffrax Dopri5", 10),
        ):
            ratio = find("NPCDDE5", other, tf32) / adaptive
            own = "f32" if arithmetic == tf32 else "f16 (another arithmetic)"
            add(f"NPCDDE5, Dopri5 at 1e-3: {other} in f32 over lagrax in {own}", ratio, goal)
    for arithmetic, goal in (("bf16", 250), (tf32, 150)):
        for name in ("NODE", "NPCDDE5"):
            value = find(name, fixed, arithmetic, "tflops")
            add(f"{name}, fixed steps, {arithmetic}: TFLOP/s", value, goal)
    for arithmetic in ("bf16", "f16"):
        images = find("NPCDDE5", "lagrax epoch", arithmetic, "images_per_s")
        of_steps = find("NPCDDE5", fixed, arithmetic, "images_per_s")
        add(f"NPCDDE5, {arithmetic}: an epoch's images/s over the step's", images / of_steps, 0.95)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu_step.json", help="the JSON file")
    parser.add_argument("--tiny", action="store_true", help="a few images, timings without meaning")
    options = parser.parse_args()
    size = TINY if options.tiny else FULL
    peak = peak_teraflops(256 if options.tiny else 8192)
    answer = {
        "question": QUESTION,
        "hardware": hardware(),
        "versions": versions("torch", "torchdiffeq"),
    }
    answer |= {"batch": size.batch, "bf16_peak_tflops": peak, "rows": [], "goals": []}
    print(*answer.items(), sep="\n")
    print(
        "model     program                      arithmetic   evaluations       ms  TFLOP/s  share"
    )
    for model, program, arithmetic, call in jobs(size):
        row: dict[str, Any] = {"model": model, "program": program, "arithmetic": arithmetic}
        try:
            row |= call()
        except Exception as error:  # one that fails must not cost the others
            row["failed"] = f"{type(error).__name__}: {error}"[:300]
        if "evaluations" in row and "ms" in row:
            row["tflops"] = teraflops(model, size.batch, row["evaluations"]) / row["ms"] * 1e3
            row["share_of_peak"] = row["tflops"] / peak
            row["images_per_s"] = 1e3 * size.batch / row["ms"]
        answer["rows"].append(row)
        numbers = [row.get(n, float("nan")) for n in ("evaluations", "ms", "tflops")]
        print(
            f"{model:9s} {program:28s} {arithmetic:12s} {numbers[0]:11.0f} {numbers[1]:8.2f}",
            f"{numbers[2]:8.1f} {row.get('share_of_peak', float('nan')):6.1%}",
            row.get("failed", ""),
            flush=True,
        )
        answer["goals"] = goals_of(answer["rows"])
        options.out.write_text(json.dumps(answer, indent=1) + "\n")
    for goal in answer["goals"]:
        met = "met" if goal["met"] else "missed"
        print(f"{goal['name']}: {goal['value']:.3g}, goal {goal['goal']}: {met}")
    print("wrote", options.out)


if __name__ == "__main__":
    main()
