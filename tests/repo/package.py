"""Installs the built wheel and sdist into empty environments and tries them there.

    python tests/repo/package.py dist      (`make package` builds them first)

The wheel is installed alone, as by one who only wants to solve; the sdist with all extras.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUFFIXES = {".py", ".css", ".html", ".js", ".json", ".typed"}

SOLVES = """
import importlib.metadata, importlib.resources, sys
import jax.numpy as jnp, lagrax

assert lagrax.__version__ == importlib.metadata.version("lagrax")
assert importlib.resources.files("lagrax").joinpath("py.typed").is_file()
system = lagrax.systems.Population(a=2.0)
sol = lagrax.solve(system, 0.0, 3.0, system.y0, delays=system.delays)
assert jnp.allclose(sol.ys[-1], system.solution(jnp.array([3.0]))[0], rtol=1e-4)
layer = lagrax.nn.NPCDDE(lambda t, y, args, *, history: -history[0], 2, steps=1)
assert jnp.allclose(layer(jnp.ones(3)), 0.25)
assert "optax" not in sys.modules and "matplotlib" not in sys.modules
"""

TRAINS = """
import jax.numpy as jnp, optax
from lagrax.training import train

loss = lambda model, rows: (model - rows[:, 0]) ** 2
trained = train(
    loss, lambda key: jnp.zeros(()), jnp.ones((8, 1)), optax.sgd(0.5), steps=3, progress=False
)
assert jnp.allclose(trained.model, 1.0)
"""


def check_wheel(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    about = f"lagrax-{wheel.name.split('-')[1]}.dist-info/"
    own = [name for name in names if name.startswith("lagrax/") and Path(name).suffix in SUFFIXES]
    foreign = [name for name in names if name not in own and not name.startswith(about)]
    if foreign:
        raise SystemExit(f"{wheel.name} holds files that are not part of the library: {foreign}")


def check_sdist(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        folders = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    missing = {"lagrax", "reproduction", "tests", "docs", "README.md"} - folders
    if missing:
        raise SystemExit(f"{sdist.name} lacks {missing}")


class Environment:
    """An empty virtual environment with one package installed."""

    def __init__(self, folder: Path, what: str):
        self.folder, self.bin = folder, folder / "bin"
        venv.create(folder, with_pip=True)
        # The versions that the tests run with, so that what fails here is the package.
        pins = ["-c", str(ROOT / "requirements.lock")]
        self.run(
            "python", "-m", "pip", "--disable-pip-version-check", "-qq", "install", *pins, what
        )

    def run(self, command: str, *arguments: str, expect: int = 0) -> str:
        """What a command of the environment prints, in a folder where lagrax's sources are not."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV"))}
        done = subprocess.run(
            [self.bin / command, *arguments],
            cwd=self.folder,
            env={**environment, "MPLBACKEND": "Agg"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != expect:
            said = (done.stdout + done.stderr)[-2000:]
            raise SystemExit(f"{command} {' '.join(arguments)} exited {done.returncode}:\n{said}")
        return done.stdout + done.stderr


def check_version(environment: Environment) -> None:
    code = "from importlib.metadata import version; print('lagrax', version('lagrax'))"
    assert environment.run("lagrax", "--version") == environment.run("python", "-c", code)


def try_wheel(folder: Path, wheel: Path) -> None:
    bare = Environment(folder, str(wheel))
    bare.run("python", "-W", "error", "-c", SOLVES)
    check_version(bare)
    assert 'pip install "lagrax[cli]"' in bare.run("lagrax", "info", expect=2)


def try_sdist(folder: Path, sdist: Path) -> None:
    full = Environment(folder, f"{sdist}[all]")
    full.run("python", "-W", "error", "-c", SOLVES)
    full.run("python", "-W", "error", "-c", TRAINS)
    check_version(full)
    full.run("lagrax", "simulate", "population", "--out", "x.png", "--csv", "x.csv")
    assert (folder / "x.png").stat().st_size > 5000
    for command in ("fit", "analyse", "explore", "info"):
        assert command in full.run("lagrax", command, "--help")


def main() -> None:
    (wheel,), (sdist,) = (list(Path(sys.argv[1]).resolve().glob(p)) for p in ("*.whl", "*.tar.gz"))
    check_wheel(wheel)
    check_sdist(sdist)
    with tempfile.TemporaryDirectory() as folder:
        for try_it, built in ((try_wheel, wheel), (try_sdist, sdist)):
            try_it(Path(folder) / built.suffix[1:], built)
            print(f"{built.name} installs and works in an empty environment")


if __name__ == "__main__":
    main()
