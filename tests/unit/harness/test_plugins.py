"""Config folders of other packages: found by their entry points, or refused with a reason."""

from importlib.metadata import EntryPoint

import pytest

from fnll.errors import UserError
from fnll.harness import choices
from fnll.harness.config import compose


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A way to pretend that packages are installed: (entry point's name, package, its `__init__`, has configs)."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(*packages):
        for _, package, init, has_configs in packages:
            (tmp_path / package).mkdir()
            (tmp_path / package / "__init__.py").write_text(init)
            if has_configs:
                (tmp_path / package / "configs/noise").mkdir(parents=True)
                (tmp_path / package / "configs/noise/swap.yaml").write_text("_target_: builtins.dict\n")
        points = [EntryPoint(name, f"{package}:configs", choices.ENTRY_POINTS) for name, package, _, _ in packages]
        monkeypatch.setattr(choices, "entry_points", lambda group: points)

    choices.plugin_dirs.cache_clear()
    choices.plugin_packages.cache_clear()
    yield install
    choices.plugin_dirs.cache_clear()
    choices.plugin_packages.cache_clear()


def test_a_folder_is_found(installed, tmp_path):
    installed(("plug_one", "plug_one", "", True))
    assert choices.plugin_dirs() == {"plug_one": tmp_path / "plug_one/configs"}
    assert choices.options("noise")["swap"] == tmp_path / "plug_one/configs/noise/swap.yaml"


def test_the_same_choice_from_two_packages_is_refused_in_every_group(installed):
    installed(("plug_a", "plug_a", "", True), ("plug_b", "plug_b", "", True))
    with pytest.raises(UserError, match=r"noise=swap is defined twice: in .*plug_a.* and in .*plug_b.*; rename"):
        compose(["method=fedavg"])


def test_one_entry_point_name_for_two_packages_is_refused(installed):
    installed(("mine", "plug_c", "", True), ("mine", "plug_d", "", True))
    with pytest.raises(UserError, match=r"under the name 'mine': .*plug_c.* and .*plug_d"):
        choices.plugin_dirs()


def test_a_package_that_cannot_be_imported_is_named(installed):
    installed(("plug_e", "plug_e", "import no_such_thing", True))
    with pytest.raises(UserError, match="'plug_e:configs' with fnll, but importing it fails: No module named"):
        choices.plugin_dirs()


def test_a_folder_that_is_not_there_is_named(installed):
    installed(("plug_f", "plug_f", "", False))
    with pytest.raises(UserError, match=r"but there is no folder .*plug_f"):
        choices.plugin_dirs()
