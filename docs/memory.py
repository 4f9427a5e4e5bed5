"""Measures the memory of a gradient and writes the table of docs/gradients.md.

    python docs/memory.py           measures and writes the table
    python docs/memory.py --check   measures and exits 1 if the table is more than 25 % off

XLA's compiler for the CPU reports the size of the temporary buffers of the compiled gradient. It
depends on the version of jaxlib, hence the tolerance.
"""

import argparse
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp

import lagrax

PAGE = Path(__file__).parent / "gradients.md"
TABLE = re.compile(r"(?<=<!-- memory -->\n).*?(?=<!-- /memory -->)", re.DOTALL)
TOLERANCE = 0.25

WAYS = {
    "Direct()": lagrax.Direct(),
    "Checkpointed()": lagrax.Checkpointed(),
    "Adjoint()": lagrax.Adjoint(),
}
STEPS = (10, 20, 50, 100, 200)
INTERVALS, WIDTH, BATCH = 10, 64, 16


def temporary_bytes(gradient, steps: int) -> int:
    """Returns the memory of the gradient of a solve with respect to the weights of its field."""
    w = jnp.zeros((2 * WIDTH, WIDTH), jnp.float32)
    y0 = jnp.ones((BATCH, WIDTH), jnp.float32)

    def field(t, y, w, *, history):
        return jnp.tanh(jnp.concatenate([y, history[0]], axis=-1) @ w)

    def loss(w):
        sol = lagrax.solve(
            field,
            0.0,
            float(INTERVALS),
            y0,
            w,
            delays=[lagrax.Hold(1.0)],
            steps=steps,
            gradient=gradient,
            throw=False,
        )
        return jnp.sum(sol.ys)

    return jax.jit(jax.grad(loss)).lower(w).compile().memory_analysis().temp_size_in_bytes


def measure() -> dict[str, list[float]]:
    """Returns megabytes for each gradient and each number of steps."""
    return {
        way: [temporary_bytes(gradient, steps) / 1e6 for steps in STEPS]
        for way, gradient in WAYS.items()
    }


def as_table(measured: dict[str, list[float]]) -> str:
    lines = [
        "| steps an interval | " + " | ".join(str(s) for s in STEPS) + " |",
        "|---|" + "--:|" * len(STEPS),
    ]
    for way, megabytes in measured.items():
        lines.append(f"| `{way}` | " + " | ".join(f"{m:.2f} MB" for m in megabytes) + " |")
    return "\n".join(lines) + "\n"


def read_table(page: str) -> dict[str, list[float]]:
    """Reads the table between the markers of the page."""
    found = TABLE.search(page)
    if found is None:
        raise ValueError("No table: expected the markers <!-- memory --> and <!-- /memory -->.")
    rows = re.findall(r"^\| `(.+?)` \|(.+)\|$", found.group(), re.MULTILINE)
    return {way: [float(cell.split()[0]) for cell in cells.split("|")] for way, cells in rows}


def differences(measured: dict[str, list[float]], written: dict[str, list[float]]) -> list[str]:
    """Returns a sentence for each cell that is off by more than the tolerance."""
    if {w: len(m) for w, m in measured.items()} != {w: len(m) for w, m in written.items()}:
        return ["The table has other rows or columns than those measured."]
    return [
        f"{way} at {steps} steps: the table says {then:.2f} MB, measured {now:.2f} MB."
        for way in measured
        for steps, now, then in zip(STEPS, measured[way], written[way], strict=True)
        if abs(now - then) > TOLERANCE * now
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    options = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    written = read_table(page)
    measured = measure()
    print(as_table(measured), end="")
    if options.check:
        off = differences(measured, written)
        print("\n".join(off) or f"{PAGE} agrees within {TOLERANCE:.0%}.")
        return 1 if off else 0
    PAGE.write_text(TABLE.sub(lambda _: as_table(measured), page), encoding="utf-8")
    print(f"Wrote the table of {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
