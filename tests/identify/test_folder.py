"""Models are saved to folders and loaded again."""

import json

import numpy as np
import pytest
from helpers.measurements import population_series

from lagrax import Hold, Identifier, Learn, holds
from lagrax._solve.delays import describe


def test_a_saved_network_is_the_same(network, tmp_path):
    network.save(tmp_path / "model")
    loaded = Identifier.load(tmp_path / "model")
    later = np.array([20.5, 21.0])
    for saved, again in zip(network.forecast(later), loaded.forecast(later), strict=True):
        np.testing.assert_array_equal(saved, again)
        assert again.shape == (2,)
    assert describe(loaded.delays) == describe(network.delays)
    assert type(loaded.solver) is type(network.solver)
    others = {"delays": 0, "solver": 0}
    assert loaded.get_params() | others == network.get_params() | others
    np.testing.assert_array_equal(loaded.losses_["loss"].values, network.losses_["loss"].values)
    assert loaded.held_out_from_ == network.held_out_from_
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == [
        "model.json",
        "model.safetensors",
    ]


def test_a_series_with_an_axis_of_states_is_saved_with_it(tmp_path):
    ts, ys = population_series()
    Identifier([Hold(1.0)], "library").fit(ts, ys[:, None]).save(tmp_path)
    assert Identifier.load(tmp_path).forecast([20.5]).low.shape == (1, 1)


def test_a_model_of_an_earlier_version_has_no_names_of_columns(library, tmp_path):
    library.save(tmp_path)
    path = tmp_path / "model.json"
    content = json.loads(path.read_text())
    del content["columns"]
    path.write_text(json.dumps(content))
    assert Identifier.load(tmp_path).equations() == library.equations()


@pytest.mark.slow
def test_a_library_with_a_learned_period_is_saved(tmp_path):
    model = Identifier(holds(Learn(0.95, 0.9, 1.1), 2), "library", ensemble=2)
    model.fit(*population_series(span=10)).save(tmp_path)
    loaded = Identifier.load(tmp_path)
    assert loaded.equations() == model.equations()
    assert loaded.periods_ == model.periods_
    assert loaded.delays[0].tau is loaded.delays[1].tau
