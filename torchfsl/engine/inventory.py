"""Contents of a model: embedding tables, other trained parameters, buffers, each named once.

Names are those of `state_dict()`, without the prefixes that wrappers add (`torch.compile`,
`DataParallel`, Opacus), so that a compiled client and an uncompiled server agree. A tensor with
several names goes by the first.

Hooks see what a module is called with. A scaled embedding passes its ids on, so what hooks see is
what is read. Learned positions (BART, OPT, fairseq) read other rows than they are given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from torchfsl.engine.policies import Fixed, Rows
from torchfsl.errors import ParameterError
from torchfsl.submodel.segments import TensorSpec

_DTYPES = {
    torch.float16: "float16",
    torch.bfloat16: "float32",
    torch.float32: "float32",
    torch.float64: "float64",
}
"""dtype in plans and at the servers; NumPy has no bfloat16, so such tensors travel as float32."""


@dataclass(slots=True, eq=False)
class Table:
    """One embedding table, shared or not.

    Attributes:
        name: of the weight.
        weight: [m, tau].
        modules: every `Embedding` or `EmbeddingBag` that looks rows up in it.
        padding: row that all these modules use for padding and that therefore never moves, or -1.
        offset: of its row 0 in the segment's index space.
        aliases: other names of the weight, where it is tied.
    """

    name: str
    weight: nn.Parameter
    modules: list[Lookup] = field(default_factory=list)
    padding: int = -1
    offset: int = 0
    aliases: tuple[str, ...] = ()

    @property
    def num_rows(self) -> int:
        """Rows of the table."""
        return self.weight.shape[0]

    @property
    def tau(self) -> int:
        """Values a row."""
        return self.weight.shape[1]


@dataclass(slots=True)
class Inventory:
    """A model's tensors, sorted by what happens to them.

    Attributes:
        tables: rows segments by name, each a list of tables of equal width and dtype.
        rest: trained parameters outside the tables, in `named_parameters` order.
        buffers: floating-point buffers of the state_dict.
        frozen: names of parameters that no optimizer trains.
        bystanders: of these the ones that could be trained: they require gradients.
        untrained_tables: of the bystanders the names of embedding tables.
        hidden_lookups: names of embedding tables that are not sent by row, since their class reads
            other rows than it is given.
        local: parameters that stay at the client, trained or not.
        local_buffers: buffers that stay there.
    """

    tables: dict[str, list[Table]]
    rest: dict[str, nn.Parameter]
    buffers: dict[str, torch.Tensor]
    frozen: list[str]
    bystanders: dict[str, nn.Parameter]
    untrained_tables: list[str]
    hidden_lookups: list[str]
    local: dict[str, nn.Parameter]
    local_buffers: dict[str, torch.Tensor]

    @property
    def all_tables(self) -> list[Table]:
        """The tables of all segments."""
        return [table for group in self.tables.values() for table in group]

    @property
    def fingerprint(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of everything trained; differs when the set of parameters does."""
        trained = [(t.name, tuple(t.weight.shape)) for t in self.all_tables]
        return dict(trained + [(name, tuple(p.shape)) for name, p in self.rest.items()])


def spec(name: str, tensor: torch.Tensor) -> TensorSpec:
    """The tensor as plans describe it."""
    return TensorSpec(name, tuple(tensor.shape), _DTYPES[tensor.dtype])


def clean_name(name: str) -> str:
    """A parameter's name without the prefixes of wrapping modules."""
    parts = [part for part in name.split(".") if part != "_orig_mod"]
    return ".".join(parts)


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module inside `torch.compile`, `DataParallel` or Opacus wrappers."""
    while True:
        inner: object = None
        if type(model).__name__ == "OptimizedModule":
            inner = getattr(model, "_orig_mod", None)
        elif isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        elif type(model).__module__.startswith("opacus."):
            inner = getattr(model, "_module", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def take_inventory(
    model: nn.Module,
    optimizers: Iterable[torch.optim.Optimizer],
    rows: Rows | None,
    stays: Sequence[str] = (),
) -> Inventory:
    """Sort the model's tensors.

    Args:
        model: unwrapped.
        optimizers: everything that trains it.
        rows: which tables are sent by row; None for none.
        stays: names of parameters, buffers or modules that stay at the client.

    Raises:
        ParameterError: a parameter cannot be handled, an optimizer trains one that the model does
            not have, or `rows` names a table that is not there.
    """
    trained = {id(p) for o in optimizers for g in o.param_groups for p in g["params"]}
    lookups = _lookups(model)
    names = {id(p): clean_name(name) for name, p in model.named_parameters()}
    _check_known(optimizers, names)
    tables: list[Table] = []
    rest: dict[str, nn.Parameter] = {}
    frozen: list[str] = []
    bystanders: dict[str, nn.Parameter] = {}
    local: dict[str, nn.Parameter] = {}
    hidden: list[str] = []
    for raw_name, parameter in model.named_parameters():
        name = clean_name(raw_name)
        if _is_within(name, stays):
            local[name] = parameter
            continue
        if not parameter.requires_grad or id(parameter) not in trained:
            frozen.append(name)
            if parameter.requires_grad:
                bystanders[name] = parameter
            continue
        _check_parameter(name, parameter)
        wanted = rows is not None and (rows.tables is None or _is_named(name, rows.tables))
        found = lookups.get(id(parameter), [])
        if wanted and found and rows is not None and rows.tables is None and rows.find == "hooks":
            wanted = all(passes_ids_on(module) for module in found)
            hidden += [] if wanted else [name]
        if wanted and found:
            table = _table(name, parameter, found)
            table.aliases = _aliases(model, parameter)
            tables.append(table)
        else:
            rest[name] = parameter
    mine = {clean_name(n): b for n, b in model.named_buffers() if _is_within(clean_name(n), stays)}
    buffers = {name: b for name, b in _float_buffers(model).items() if name not in mine}
    _check_local(stays, [*local, *mine], [clean_name(n) for n, _ in model.named_parameters()])
    _check_wanted(rows, tables, frozen, rest, lookups)
    if rows is not None and rows.find == "hooks":
        _check_not_shared(model, tables, optimizers, rows)
    idle = [name for name, p in bystanders.items() if id(p) in lookups]
    return Inventory(_group(tables), rest, buffers, frozen, bystanders, idle, hidden, local, mine)


def _is_named(name: str, names: Iterable[str]) -> bool:
    return any(given in (name, name.removesuffix(".weight")) for given in names)


def _is_within(name: str, modules: Iterable[str]) -> bool:
    """Whether `name` is one of these tensors or belongs to one of these modules."""
    return any(name == given or name.startswith(f"{given}.") for given in modules)


def _check_local(stays: Sequence[str], held: Sequence[str], parameters: Sequence[str]) -> None:
    for given in stays:
        if not any(_is_within(name, [given]) for name in held):
            raise ParameterError(
                f"local= has {given!r}, expected the name of a parameter, buffer or module: "
                f"choose from the parameters {', '.join(parameters)}"
            )


def _lookups(model: nn.Module) -> dict[int, list[Lookup]]:
    found: dict[int, list[Lookup]] = {}
    for module in model.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            found.setdefault(id(module.weight), []).append(module)
    return found


def lookup_names(model: object) -> set[str]:
    """Names of a model's embedding tables, trained or not; none where it is not a module."""
    if not isinstance(model, nn.Module):
        return set()
    lookups = _lookups(inner := unwrap(model))
    return {clean_name(name) for name, p in inner.named_parameters() if id(p) in lookups}


def _table(name: str, weight: nn.Parameter, modules: list[Lookup]) -> Table:
    paddings = {-1 if m.padding_idx is None else m.padding_idx for m in modules}
    padding = paddings.pop() if len(paddings) == 1 else -1
    return Table(name, weight, modules, padding)


def _aliases(model: nn.Module, weight: nn.Parameter) -> tuple[str, ...]:
    """Names of a weight but the first."""
    every = model.named_parameters(remove_duplicate=False)
    return tuple(clean_name(name) for name, parameter in every if parameter is weight)[1:]


def _group(tables: list[Table]) -> dict[str, list[Table]]:
    """Tables of equal width and dtype share one index space, in order."""
    widths: dict[int, set[torch.dtype]] = {}
    for table in tables:
        widths.setdefault(table.tau, set()).add(table.weight.dtype)
    groups: dict[str, list[Table]] = {}
    for table in tables:
        dtype = table.weight.dtype
        several = len(widths[table.tau]) > 1
        suffix = "_" + str(dtype).removeprefix("torch.") if several else ""
        group = groups.setdefault(f"rows{table.tau}{suffix}", [])
        table.offset = sum(t.num_rows for t in group)
        group.append(table)
    return groups


def _float_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    saved = set(model.state_dict(keep_vars=True))
    return {
        clean_name(name): buffer
        for name, buffer in model.named_buffers()
        if name in saved and buffer.dtype in _DTYPES
    }


def _check_known(optimizers: Iterable[torch.optim.Optimizer], names: dict[int, str]) -> None:
    for optimizer in optimizers:
        for number, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                if id(parameter) not in names:
                    raise ParameterError(
                        f"parameter group {number} of {type(optimizer).__name__} has a tensor of "
                        f"shape {tuple(parameter.shape)} that is not in the model: pass Federated "
                        "the module with this tensor, or make a new optimizer "
                        "(load_state_dict(assign=True) replaces parameters)"
                    )


def _check_parameter(name: str, parameter: nn.Parameter) -> None:
    if isinstance(parameter, nn.parameter.UninitializedParameter):
        raise ParameterError(
            f"{name} is not initialised yet: run one forward pass through the lazy module before "
            "you make torchfsl.Federated"
        )
    if parameter.is_meta:
        raise ParameterError(
            f'{name} is on the meta device: call model.to_empty(device="cpu") and load values '
            "before torchfsl.Federated"
        )
    if parameter.dtype not in _DTYPES:
        raise ParameterError(
            f"{name} has dtype {parameter.dtype}, expected float16, bfloat16, float32 or float64: "
            "convert the parameter, or call requires_grad_(False) on it"
        )
    if parameter.layout is not torch.strided:
        raise ParameterError(
            f"{name} has layout {parameter.layout}, expected torch.strided: convert the parameter "
            "with to_dense()"
        )


def _check_wanted(
    rows: Rows | None,
    tables: list[Table],
    frozen: list[str],
    rest: dict[str, nn.Parameter],
    lookups: Mapping[int, Any],
) -> None:
    if rows is None:
        return
    held = {table.name for table in tables}
    fixed = _fixed_tables(rows.fixed, tables) if rows.fixed else []
    for name in [*(rows.tables or ()), *fixed]:
        if any(_is_named(table, [name]) for table in held):
            continue
        if name in frozen:
            why = "is frozen or in no optimizer of Federated"
        elif name in rest:
            why = "is not the weight of an nn.Embedding or nn.EmbeddingBag"
        else:
            why = "is not a parameter of the model"
        known = sorted(held | {name for name, p in rest.items() if id(p) in lookups})
        remedy = (
            f"choose from the trained tables {known}"
            if known
            else "pass Federated an optimizer that trains the tables, or leave out Rows"
        )
        raise ParameterError(f"Rows names the table {name!r}, which {why}: {remedy}")


def _fixed_tables(fixed: Fixed, tables: list[Table]) -> list[str]:
    """The names that `fixed` gives to tables, sorted."""
    if isinstance(fixed.positions, Mapping):
        names = sorted(fixed.positions)
    elif len(tables) > 1:
        known = sorted(table.name for table in tables)
        raise ParameterError(
            f"Fixed expects a mapping from table names to row ids: choose from the tables {known}"
        )
    else:
        names = [table.name for table in tables]
    for table in tables:
        ids, last = fixed.ids(table.name), table.num_rows
        if ids.numel() and int(ids[-1]) >= last:
            raise ParameterError(
                f"{table.name}: row id {int(ids[-1])} of Fixed is out of range: pass ids from 0 to "
                f"{last - 1}"
            )
    return names


def _check_not_shared(
    model: nn.Module, tables: list[Table], optimizers: Iterable[torch.optim.Optimizer], rows: Rows
) -> None:
    by_id = {id(table.weight): table for table in tables}
    for path, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            continue
        for attribute, parameter in module.named_parameters(recurse=False):
            table = by_id.get(id(parameter))
            if table is not None:
                decays = any(
                    any(p is parameter for p in group["params"])
                    and (group.get("weight_decay") or group.get("lambd"))
                    for optimizer in optimizers
                    for group in optimizer.param_groups
                )
                also = ", untouched='restrict'" if decays and rows.untouched == "reject" else ""
                raise ParameterError(
                    f"{table.name} is also {clean_name(f'{path}.{attribute}')} of a "
                    f"{type(module).__name__}, so steps move rows that no lookup touched: use "
                    f"rows=torchfsl.Rows(top=1000, find='scan'{also}) to send the rows that "
                    "changed most, or rows=None"
                )


Lookup = nn.Embedding | nn.EmbeddingBag

_PLAIN: Final = (nn.Embedding.forward, nn.EmbeddingBag.forward)
_READS: Final = ("embedding", "embedding_bag")


class _Reads(TorchFunctionMode):
    """Notes the ids that lookups in one weight read."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self._weight, self.ids = weight, list[torch.Tensor]()
        self.others = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(value is self._weight for value in (*args, *kwargs.values())):
            name = getattr(func, "__name__", "")
            ids = [value for value in args[:2] if value is not self._weight]
            if name in _READS and len(args) > 1 and ids:  # torch has weight first, functional last
                self.ids.append(ids[0].detach().flatten())
            elif name != "__get__":
                self.others = True
        return func(*args, **kwargs)


def passes_ids_on(module: Lookup) -> bool:
    """Whether a call of the module reads exactly the rows that it is given.

    A class with torch's own `forward` does. Another one is called a few times with three ids,
    without gradients; what it returns is dropped.
    """
    if type(module).forward in _PLAIN:
        return True
    if module.max_norm is not None:  # a lookup would change the weight
        return False
    last = module.num_embeddings - 1
    inside = ([last, 0, last // 2], [last // 3, last, last])
    if not all(_read(module, ids) == ids for ids in inside):
        return False
    # A class that maps ids (a hash, a clamp) takes those outside, too. An accelerator would stop.
    outside = ([last + 1, 0, 0], [-1, 0, 0]) if module.weight.device.type == "cpu" else ()
    return all(_read(module, ids) is None for ids in outside)


def _read(module: Lookup, ids: list[int]) -> list[int] | None:
    """The rows that a call with these ids reads; None where it fails or reads in other ways."""
    given = torch.tensor([ids], device=module.weight.device)
    was = module.training
    module.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng([]), _Reads(module.weight) as reads:
            nn.Module.__call__(module, given)
    except Exception:
        return None
    finally:
        module.training = was
    found: list[int] = torch.cat(reads.ids).tolist() if reads.ids else []
    return None if reads.others else found
