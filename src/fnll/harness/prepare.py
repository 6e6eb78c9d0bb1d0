"""From a composed config to the objects of one run, and to the name that identifies it."""

from __future__ import annotations

import inspect
import math
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import get_class, get_method, instantiate
from omegaconf import DictConfig, OmegaConf

from fnll.errors import UserError, nearest, require
from fnll.federation import Executor, Method, World
from fnll.harness import identity
from fnll.harness.budget import in_rounds, too_small
from fnll.harness.config import Request
from fnll.harness.declared import check_parts, check_settings
from fnll.harness.hydra_versions import as_partial
from fnll.harness.known import key_of
from fnll.harness.label import labelled
from fnll.harness.making import completed, networks
from fnll.harness.moved import new_home
from fnll.harness.provenance import described
from fnll.harness.sizes import check_network
from fnll.images import content_digest
from fnll.lengths import Horizon
from fnll.net import Net
from fnll.scenario.scenario import Dataset, GivenByData, Scenario, Truth
from fnll.scenario.sound import require_sound

WALK = "shuffled"  # how evaluation passes go where the order matters; in the ids of such runs only
COMPLETED = ("scenario", "model", "method", "executor")  # groups whose things need more than their YAML can say


@dataclass(frozen=True)
class Run:
    """One run, ready to start: what can change its numbers, and the objects made from that."""

    asked: Request  # as it was typed: lengths may be percentages
    dataset: Dataset
    scenario: Scenario
    truth: Truth
    device: torch.device
    key: str | None = None  # by which the run is found once it is finished

    @cached_property
    def request(self) -> Request:
        """What was asked for, with every length as a number: what the run is called and records."""
        return in_rounds(self.asked, Horizon(self.budget, self.cohort_size, self.world))

    @property
    def cfg(self) -> DictConfig:
        return self.request.cfg

    @property
    def cohort_size(self) -> int:
        """m = max(1, floor(fraction * clients))."""
        return max(1, math.floor(self.asked.cfg.fraction * len(self.scenario.shards) + 1e-9))

    @property
    def budget(self) -> int:
        """Client updates that every method may spend."""
        return self.asked.cfg.rounds * self.cohort_size

    @property
    def whole_round(self) -> int | None:
        """What a round with fewer clients than it asked for counts as; None: as many updates as it has."""
        return self.cohort_size if self.asked.cfg.budget == "rounds" else None

    def too_small(self) -> str | None:
        """Why the budget does not do for the method's stages, with the smallest that would; None if it does."""
        return too_small(lambda rounds: self.with_rounds(rounds).method, self.cfg.rounds, self.cohort_size, self.world)

    def with_rounds(self, rounds: int) -> Run:
        """The same with another budget."""
        cfg = self.asked.cfg.copy()
        cfg.rounds = rounds
        return replace(self, asked=replace(self.asked, cfg=cfg))

    @property
    def world(self) -> World:
        return World(self.scenario.sizes, self.scenario.num_classes, self.scenario.input_shape)

    @cached_property
    def method(self) -> Method:
        shared = {"net": self.net, "local": made(self.cfg.local, "local"), "cohort_size": self.cohort_size}
        return completed(made(self.cfg.method, "method"), shared, "method", complete)

    @cached_property
    def net(self) -> Net:
        build = made(self.cfg.model, "model")
        return Net.of(build, num_classes=self.scenario.num_classes, input_shape=self.scenario.input_shape)

    @property
    def batch_dependent(self) -> bool:
        """Whether a network of this run normalises by the batch in evaluation, so that the order of samples matters."""
        return any(net.batch_dependent for net in (self.net, *networks(self.method)))

    def check(self) -> None:
        """Make what a run starts with, so that a mistake in its settings shows before there is a folder of it."""
        check_network(self.net)
        _ = self.method, self.net.head_names
        if dict(self.net.settings).get("pretrained") not in (None, "torchvision"):
            self.net.fresh(0)  # a file that is not there, or holds something else
        self.executor().close()  # its workers start when they are first needed

    def executor(self) -> Executor:
        return complete(
            made(self.cfg.executor, "executor"), {"scenario": self.scenario, "device": self.device}, "executor"
        )

    @cached_property
    def run_id(self) -> str:
        """`<method>-<12 hex>`: a hash of everything that can change the numbers, and of nothing else."""
        return identity.run_id(
            self.request,
            numerics=numerics_of(self.cfg),
            **revision_of(self.cfg),
            threads=OmegaConf.select(self.cfg, "executor.threads", default=1),
            device=self.device.type,
            fingerprint=self.scenario.fingerprint,
            **({"walk": WALK} if self.batch_dependent else {}),
            **self._review(),
        )

    def _review(self) -> dict[str, str]:
        """A hash of labels that somebody reviewed: they change what is recorded, and no fingerprint tells them."""
        known = self.dataset.reviewed
        return {} if known is None else {"reviewed": content_digest(known.numpy())}


def __getattr__(name: str) -> Any:
    if name != "Experiment":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{__name__}.Experiment is called Run since 0.2", FutureWarning, stacklevel=2)
    return Run


def loaded(node: DictConfig) -> Dataset:
    """The data set that a config describes."""
    dataset: Dataset = made(node, "dataset")
    return dataset


def prepare(request: Request, load: Callable[[DictConfig], Dataset] = loaded) -> Run:
    """Check the settings, build the scenario and put the pieces together."""
    cfg = request.cfg
    check_settings(cfg)
    check_parts(cfg)
    known_as = labelled(described(request))
    device = device_of(cfg.device)
    if cfg.precision == "16-mixed" and device.type == "cpu":  # Lightning would quietly compute in bfloat16
        raise UserError("precision=16-mixed needs a GPU; type precision=bf16-mixed, or 32-true")
    key = key_of(request)  # before the data are read: what changes from now on is seen next time
    dataset = load(cfg.dataset)
    require_sound(dataset)
    known_as = with_given_clients(known_as, dataset)
    scenario, truth = scenario_of(cfg, dataset)
    require(sum(scenario.sizes) > 0, "no client has a sample; type more samples, or a smaller dataset.validation")
    run = Run(known_as, dataset, scenario, truth, device, key)
    run.check()
    return run


def with_given_clients(request: Request, dataset: Dataset) -> Request:
    """The request with the number of clients that the data name, where the partition takes those."""
    if not issubclass(
        get_class(str(OmegaConf.select(request.cfg, "partition._target_", default="builtins.object"))), GivenByData
    ):
        return request
    count = len(dataset.client_names)
    typed = [word for word in request.overrides if re.match(r"\+{0,2}num_clients=", word)]
    if typed and dataset.owners is not None and request.cfg.num_clients != count:
        raise UserError(f"{dataset.name} names {count} clients, and {typed[-1]} was typed; leave it out")
    cfg = request.cfg.copy()
    cfg.num_clients = max(1, count)
    return replace(request, cfg=cfg)


def scenario_of(cfg: DictConfig, dataset: Dataset) -> tuple[Scenario, Truth]:
    """The scenario that a config describes, and the truth about it; `dataset` is the config's, loaded."""
    builder = made(cfg.scenario, "scenario")
    parts = {name: made(cfg[name], name) for name in ("partition", "noise")}
    shared = {**parts, "dataset": dataset, "num_clients": cfg.num_clients, "seed": cfg.scenario_seed}
    scenario, truth = complete(builder, shared, "scenario")
    return scenario, truth


def numerics_of(cfg: DictConfig) -> str:
    """`exact`, or `vectorised` for the one executor whose sums are grouped differently."""
    return str(getattr(get_class(cfg.executor._target_), "numerics", "exact"))


def revision_of(cfg: DictConfig) -> dict[str, int]:
    """The revision of an executor that is not exact: its numbers may change while those of the others do not."""
    revision = getattr(get_class(cfg.executor._target_), "revision", None)
    return {} if revision is None else {"revision": revision}


def device_of(name: str) -> torch.device:
    """`auto` is cuda where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", str(name)):
        raise UserError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        seen = torch.cuda.device_count() or "no"
        raise UserError(f"device={name} was asked for, but torch sees {seen} GPU here; type device=auto")
    return device


def made(node: DictConfig, group: str) -> Any:
    """What a config node describes."""
    if not isinstance(node, DictConfig) or "_target_" not in node:
        raise UserError(f"{group} names no `_target_`; its YAML should say which class or function it configures")
    if group in COMPLETED and not node.get("_partial_"):
        raise UserError(f"{group} lacks `_partial_: true` in its YAML: the run completes it with what only it knows")
    try:
        return as_partial(instantiate(node, _convert_="object"))
    except InstantiationException as error:
        raise _mistake(node, group, error) from error
    except (
        TypeError,
        ValueError,
    ) as error:  # about Hydra's own flags; what a class raises is an InstantiationException
        flag = re.search(r"_[a-z]+_", str(error))
        raise UserError(
            f"{group}: {flag[0] if flag else 'a flag'} in its YAML has no value that Hydra takes"
        ) from error


def complete(factory: Any, shared: dict[str, Any], group: str) -> Any:
    """Call a Hydra partial with the settings that every choice of its group shares."""
    try:
        return factory(**shared)
    except TypeError as error:
        raise _explain_arguments(getattr(factory, "func", factory), group, error, shared) from error


def _mistake(node: DictConfig, group: str, error: InstantiationException) -> Exception:
    if misspelt := _misspelt(str(node._target_), group):
        return misspelt
    cause: BaseException | None = error
    root: BaseException = error
    while cause is not None:
        if isinstance(cause, UserError):
            return cause
        if isinstance(cause, TypeError):
            return _explain_arguments(get_method(node._target_), group, cause, {})
        root, cause = cause, cause.__cause__
    if isinstance(root, ModuleNotFoundError) and root.name and (home := new_home(root.name)):
        return UserError(
            f"{group}: {root.name} is {home} since 0.2; change the import in {node.get('_target_')}'s module"
        )
    if isinstance(root, ModuleNotFoundError):
        return UserError(
            f"{group}: Python finds no module {root.name!r}, which _target_: {node.get('_target_')} needs; install its "
            "package, or put the folder that holds it first: PYTHONPATH=FOLDER fnll ..."
        )
    return UserError(f"{group}: {str(root).splitlines()[0]} (while making {node.get('_target_')})")


def _misspelt(target: str, group: str) -> UserError | None:
    """The message about a target whose module exists and does not hold it."""
    module, _, name = target.rpartition(".")
    try:
        home = import_module(module)
    except Exception:  # the module does not exist, or has a mistake of its own, which is the message then
        return None
    if hasattr(home, name):
        return None
    there = [known for known, value in vars(home).items() if getattr(value, "__module__", None) == module]
    return UserError(f"{group}: there is no {name} in {module}; {nearest(name, there)}")


def _explain_arguments(target: Any, group: str, error: TypeError, shared: dict[str, Any]) -> Exception:
    text = str(error)
    known = [name for name in inspect.signature(target).parameters if name not in shared] if target else []
    unexpected = re.search(r"unexpected keyword argument '([^']*)'", text)
    if unexpected:
        return UserError(f"{group} has no setting called {unexpected[1]!r}; {nearest(unexpected[1], known)}")
    missing = re.search(r"missing \d+ required .*?: (.*)", text)
    if missing:
        return UserError(f"{group} needs values for {missing[1].strip()}")
    return error
