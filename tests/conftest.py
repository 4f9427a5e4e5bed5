"""Precision, memory and fixtures for all tests."""

import gc
import importlib.metadata
import importlib.util
import os
import resource
import shutil
import signal
import subprocess
from pathlib import Path

# Compiled programs are kept for the next run; `make clean` removes them. Read when jax is imported.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# Tracebacks of operations inside of programs, which nobody reads here, take time to write.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

import hypothesis
import jax
import jaxtyping
import pytest

os.environ.setdefault("MPLBACKEND", "Agg")
# Compiling is most of what the tests do, and takes half the time so; what changes is rounding.
FLAGS = [
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_parallel_codegen_split_count=1",
]
# XLA ends the process at a flag that it does not know.
if importlib.metadata.version("jaxlib").startswith("0.10."):
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
# It is read when the first array is made.
os.environ.setdefault("XLA_FLAGS", " ".join(FLAGS))

# A shell ignores Ctrl-C in what it runs in the background, and so would the programs under test.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The first example compiles, so times say nothing; a failure must come back at the next run.
# A function-scoped fixture is fine here: `x64` is the same for every example.
hypothesis.settings.register_profile(
    "lagrax",
    deadline=None,
    derandomize=True,
    suppress_health_check=[
        hypothesis.HealthCheck.function_scoped_fixture,
        hypothesis.HealthCheck.too_slow,
    ],
)
hypothesis.settings.load_profile("lagrax")


# Measuring coverage makes these half as slow again, and they reach few lines that no other test
# does: some of the adjoint's.
UNMEASURED = {
    "test_coming_from",
    "test_docs",
    "test_examples",
    "test_gradients",
    "test_order",
    "test_properties",
    "test_readme",
    "test_trust",
    "test_tutorials",
}


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.stem in UNMEASURED:
            item.add_marker(pytest.mark.no_cover)


@pytest.fixture
def x64():
    """Float64 for one test; everything else runs in JAX's default float32."""
    with jax.enable_x64(True):
        yield


def pytest_collection_finish():
    # Tracing makes many objects, few of them in cycles. With the default thresholds the garbage
    # collector goes through all of jax's objects again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


# Programs of several modules share traces, so they are kept while the process is smaller than this.
ENOUGH_MEMORY = 3 * 2**30  # bytes


@pytest.fixture(autouse=True, scope="module")
def _clear_caches():
    """Compiled programs are dropped after a module once the process is large."""
    yield
    # Linux counts in kilobytes. macOS counts in bytes, and drops them after each module.
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > ENOUGH_MEMORY:
        jax.clear_caches()


@pytest.fixture(scope="session")
def load_script():
    """A script outside the package as a module, by its path."""

    def load(path: Path):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def unchecked():
    """Users have no run-time type checking, which would speak first."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def lagrax_command(command_line):
    """Runs a command line of `lagrax` in an empty folder: exit code, stdout, stderr."""
    from lagrax._cli import app

    return command_line(app.run)


@pytest.fixture
def reproduction_command(command_line):
    """Runs a command line of `python -m reproduction`: exit code, stdout, stderr."""
    from reproduction import __main__

    return command_line(__main__.run)


@pytest.fixture
def command_line(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def make(run):
        def call(*arguments):
            code = run(list(arguments))
            output = capsys.readouterr()
            return code, output.out, output.err

        return call

    return make


BROWSER_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    from selenium.webdriver.chrome.service import Service

    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromedriver are not both installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in [*BROWSER_FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    yield chrome
    chrome.quit()


@pytest.fixture
def small(monkeypatch):
    """Each data set has as many images as `helpers.data_files` makes."""
    from helpers.data_files import TEST, TRAIN

    from reproduction.data.sources import SOURCES

    for name, source in SOURCES.items():
        monkeypatch.setitem(SOURCES, name, source._replace(counts=(TRAIN, TEST)))


@pytest.fixture
def kills(load_script):
    return load_script(Path(__file__).parents[1] / "results" / "soak" / "kills.py")


@pytest.fixture
def disk(tmp_path):
    """A disk of sixteen pages of 4 KiB, if the tests may mount one."""
    from helpers.faults import mount

    place = tmp_path / "disk"
    place.mkdir()
    options = ["-t", "tmpfs", "-o", "size=64k", "tmpfs", place]
    if not shutil.which("mount") or not mount(*options):
        pytest.skip("no disk can be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)
