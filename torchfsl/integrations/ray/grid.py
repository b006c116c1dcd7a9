"""How the front reaches its shards: a protocol, and shards in this process."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, Protocol, TypeAlias

from torchfsl.fsl.plan.plan import Plan
from torchfsl.integrations.ray.cuts import Cut, cuts_of
from torchfsl.integrations.ray.shard import Shard

log = logging.getLogger("torchfsl.integrations.ray")

ATTEMPTS: Final = 20
"""How often what a lost shard leaves undone is done again."""


class ShardLost(Exception):
    """A call has no result, since its shard ended before or while it ran."""


class Grid(Protocol):
    """The shards of one party.

    Calls of one shard run one after the other, in the order in which they were sent, as long as the
    shard lives. A shard that ends is replaced by an empty one. Results stay after their shard.

    Attributes:
        size: number of shards.
    """

    size: int

    def put(self, value: object) -> object:
        """Keep a value where shards find it; what stands for it among the arguments of a call."""

    def send(self, shard: int, method: str, *arguments: object) -> object:
        """Call a method of a `Shard`; what stands for the result, also among arguments."""

    def get(self, sent: object) -> Any:
        """The result of a call, waited for.

        Raises:
            ShardLost: there is none.
        """

    def close(self) -> None:
        """End the shards."""


OpenGrid: TypeAlias = Callable[[Plan, int], Grid]
"""Makes the grid of a plan and a party."""


class InProcessGrid:
    """A `Grid` of objects in this process, for tests and for measuring what a grid costs.

    Attributes:
        shards: the objects.
        fault: called before and after each call with its shard, its method and `before` or
            `after`; whether the shard ends there.
    """

    def __init__(self, plan: Plan, party: int, size: int) -> None:
        """New shards."""
        self._plan, self._party, self.size = plan, party, size
        self.fault: Callable[[int, str, str], bool] = lambda shard, method, when: False
        self.shards = [self._new(number) for number in range(size)]

    def put(self, value: object) -> object:
        """See `Grid.put`."""
        return value

    def send(self, shard: int, method: str, *arguments: object) -> object:
        """See `Grid.send`."""
        lost = next((a for a in arguments if isinstance(a, ShardLost)), None)
        if lost is not None:
            return lost
        if self.fault(shard, method, "before"):
            self.kill(shard)
            return ShardLost(f"the process of shard {shard} ended, and its call {method}() is lost")
        result = getattr(self.shards[shard], method)(*arguments)
        if self.fault(shard, method, "after"):
            self.kill(shard)
        return result

    def get(self, sent: object) -> Any:
        """See `Grid.get`."""
        if isinstance(sent, ShardLost):
            raise sent
        return sent

    def close(self) -> None:
        """See `Grid.close`."""
        self.shards = []

    def kill(self, shard: int) -> None:
        """End a shard; an empty one takes its place."""
        self.shards[shard] = self._new(shard)

    def _new(self, number: int) -> Shard:
        return Shard(self._plan, self._party, number, self.size)


class EngineLost(OSError):
    """Shards were lost again and again. The server ends, and goes on from its log when restarted.

    An error of the state, as a full disk is one: the server has not what it needs to go on.
    """


class Shards:
    """The grid for a plan, and how the plan is cut for it.

    Args:
        plan: of the task.
        party: of the server.
        open_grid: makes the shards.
        early: make them at once and in parallel, since this may take half a minute in which a round
            would stand still. Otherwise make them when they are first needed.
    """

    def __init__(self, plan: Plan, party: int, open_grid: OpenGrid, *, early: bool = False) -> None:
        """Nothing is waited for."""
        self._plan, self._party, self._open_grid = plan, party, open_grid
        self._opened: Grid | None = None
        self._coming: Future[Grid] | None = None
        if early:
            self._coming = Future()
            whither = (self._coming,)
            threading.Thread(
                target=self._open, args=whither, name="torchfsl-shards", daemon=True
            ).start()

    @property
    def is_open(self) -> bool:
        """Whether there are shards."""
        return self._opened is not None

    @property
    def grid(self) -> Grid:
        """The shards, waited for; raises what opening them raises, and then tries again."""
        if self._opened is None:
            coming, self._coming = self._coming, None
            if coming is None:
                coming = Future()
                self._open(coming)
            self._opened = coming.result()
        return self._opened

    @functools.cached_property
    def cuts(self) -> list[dict[str, Cut]]:
        """By shard and segment."""
        return [cuts_of(self._plan, i, self.grid.size) for i in range(self.grid.size)]

    def ask(self, shard: int, method: str, *arguments: object) -> Any:
        """The result of a call that may be repeated; sent again where its shard was lost.

        Raises:
            EngineLost: as often as it was sent.
        """
        for _ in range(ATTEMPTS):
            try:
                return self.grid.get(self.grid.send(shard, method, *arguments))
            except ShardLost as error:
                log.warning("the cluster lost shard %d and replaces it: %s", shard, error)
        raise EngineLost(
            f"the cluster lost shard {shard} {ATTEMPTS} times in {method}(): see the logs of Ray"
        )

    def got(self, sent: object) -> Any:
        """The result of a call, or None if its shard was lost."""
        try:
            return self.grid.get(sent)
        except ShardLost as error:
            log.warning("the cluster lost a shard and replaces it: %s", error)
            return None

    def tell(self, method: str, *arguments: object) -> None:
        """Call a method of all shards, and wait for none; nothing if there are no shards yet."""
        if self._opened is not None:
            for shard in range(self._opened.size):
                self._opened.send(shard, method, *arguments)

    def _open(self, whither: Future[Grid]) -> None:
        try:
            whither.set_result(self._open_grid(self._plan, self._party))
        except BaseException as error:  # whoever asks for the shards is told
            log.warning("the cluster cannot start the shards (%s): see the logs of Ray", error)
            whither.set_exception(error)
