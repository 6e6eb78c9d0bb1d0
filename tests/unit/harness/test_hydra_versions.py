"""Ready for later versions of Hydra, as far as this one can show it."""

import functools
import warnings
from pathlib import Path
from types import SimpleNamespace

import hydra
import pytest
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

import fnll
from fnll.harness import choices, identity
from fnll.harness.config import compose, composed
from fnll.harness.hydra_versions import VERSION_BASE, PluginFolders, _version_base, as_partial, register_plugins
from fnll.harness.prepare import made
from fnll.models import mlp
from fnll.net import Net


@pytest.mark.parametrize(
    ("version", "given"), [("1.3.8", "1.3"), ("1.4.0rc1", None), ("1.4", None), ("1.10.2", None), ("2.0.0", None)]
)
def test_version_base_is_given_to_those_who_take_it(version, given):
    assert _version_base(version).get("version_base") == given


def test_folders_of_plugins_are_registered_once_and_found_by_nobody_else(monkeypatch, tmp_path):
    monkeypatch.setattr(choices, "plugin_dirs", lambda: {"mine": tmp_path})
    register_plugins()
    register_plugins()
    assert Plugins.instance().discover(SearchPathPlugin).count(PluginFolders) == 1
    path: ConfigSearchPath = SimpleNamespace(append=lambda **found: added.append(found))
    added: list[dict[str, str]] = []
    PluginFolders().manipulate_search_path(path)
    assert added == [{"provider": "fnll plugin mine", "path": f"file://{tmp_path}"}]
    assert not list(Path(fnll.__file__).parents[1].glob("hydra_plugins/*.py")), "nothing is there to be scanned"


def test_a_choice_of_a_plugin_is_composed(monkeypatch, tmp_path):
    (tmp_path / "noise").mkdir()
    (tmp_path / "noise" / "swap.yaml").write_text("_target_: mine.Swap\nshare: 0.3\n")
    monkeypatch.setattr(choices, "plugin_dirs", lambda: {"mine": tmp_path})
    assert composed(["noise=swap"]).noise.share == 0.3


class Unfinished:
    """A partial as another version may make it: it cannot be pickled, and is no `functools.partial`."""

    def __init__(self, func, **keywords):
        self.func, self.args, self.keywords = func, (), keywords

    def __call__(self, **more):
        return self.func(**self.keywords, **more)

    def __reduce__(self):
        raise TypeError("not to be pickled")


def test_another_kind_of_partial_becomes_the_standard_one(monkeypatch):
    inner = Unfinished(mlp, hidden=[3])
    found = as_partial(Unfinished(dict, net=inner, nets=[inner], by_name={"one": inner}, rate=0.1))
    assert isinstance(found, functools.partial)
    kept = found()
    assert {type(value) for value in (kept["net"], kept["nets"][0], kept["by_name"]["one"])} == {functools.partial}
    monkeypatch.setattr("fnll.harness.prepare.instantiate", lambda node, **_: inner)
    build = made(compose(["model=mlp"]).cfg.model, "model")
    net = Net.of(build, num_classes=2, input_shape=(1, 2, 2))
    assert (net.build, dict(net.settings)["hidden"]) == (mlp, (3,))


def test_a_tuple_names_the_run_that_a_list_names(monkeypatch):
    """OmegaConf 2.4 keeps tuples; this one makes lists of them, so what it would return is put in its place."""
    request = compose(["model=mlp", "model.hidden=[8,4]"])
    name = identity.run_id(request)
    plain = identity.settings(request)
    plain["model"]["hidden"] = tuple(plain["model"]["hidden"])
    monkeypatch.setattr(identity, "settings", lambda _: plain)
    assert identity.run_id(request) == name


def test_composing_warns_of_nothing_that_later_versions_refuse():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compose(["experiment=demo", "method=fedcorr"])
    assert not [warning for warning in caught if "ydra" in str(warning.message)], hydra.__version__
    assert VERSION_BASE == {"version_base": "1.3"} or not hydra.__version__.startswith("1.3")
