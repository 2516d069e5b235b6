"""Mutants of what says who may do what, and how much: users, access control lists, quotas."""

from typing import Any, Final

from antiphon.gateway.quotas import Quotas, _Bucket
from antiphon.http import connection as http_connection
from antiphon.kafka.handlers.produce import ProduceHandler
from antiphon.model.access import AccessBook
from antiphon.native.session import NativeSession
from antiphon.security.authenticator import Authenticator, _Scram
from antiphon.security.authorizer import Authorizer
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, CRASHES, only

_ACCESS: Final[dict[str, Any]] = {**CALM, **only(appenders=1, putters=1, principals=2, fault_ms=3_000)}

ACCESS_MUTANTS: Final = (
    ClusterMutant(
        "access-ignores-deny",
        "an entry that denies something does not count where another one allows it",
        Edit(Authorizer, "_decide", "if any(acl.permission is Permission.DENY and", "if False and any("),
        options=_ACCESS,
    ),
    ClusterMutant(
        "access-keeps-decisions",
        "a node goes on with what it has decided, whatever entries have come and gone since",
        Edit(Authorizer, "_follow", "self._kept.clear()", "pass"),
        options=_ACCESS,
    ),
    ClusterMutant(
        "access-keeps-entries",
        "an entry that is removed stays in effect at all nodes but the coordinator's own",
        Edit(AccessBook, "apply", "self.acls.pop(key, None)", "pass"),
        options=_ACCESS,
    ),
    ClusterMutant(
        "access-keeps-users",
        "a user who is removed can still log in at nodes that had known of him",
        Edit(AccessBook, "apply", "self.users.pop(name, None)", "pass"),
        options=_ACCESS,
    ),
    ClusterMutant(
        "access-refuses-early",
        "a node that was just started, and knows no users yet, says that a login is wrong",
        Edit(Authenticator, "failed", "if not self.knows_users:", "if False:"),
        options={**CRASHES, **_ACCESS, "fault_every_ms": 250, "kill_weight": 2, "power_weight": 4},
    ),
    ClusterMutant(
        "access-refuses-strangers-of-before",
        "a node that hears of its users between the two messages of a login says that it is wrong",
        Edit(_Scram, "step", "if not self._known and not self._owner.knows_users:", "if False:"),
        options={
            **_ACCESS,
            "delay_us": (5_000, 20_000),
            "fault_ms": 6_000,
            "fault_every_ms": 1_500,
            "power_all_weight": 1,
        },
        first_seed=2,
    ),
    ClusterMutant(
        "access-native-asks-nobody",
        "the native listener lets everybody who has logged in do everything",
        Edit(
            NativeSession,
            "connected",
            "self.exchange.is_guarded = self.exchange.session is not OPEN",
            "self.exchange.is_guarded = False",
        ),
        options=_ACCESS,
    ),
    ClusterMutant(
        "access-produce-asks-nobody",
        "Kafka's Produce takes records from whoever has logged in",
        Edit(ProduceHandler, "_denied", "if may(", "if True or may("),
        options=_ACCESS,
    ),
    ClusterMutant(
        "access-http-asks-nobody",
        "pages are shown to everybody over HTTP",
        ((http_connection, "refused", lambda *_: None),),
        options=_ACCESS,
    ),
    ClusterMutant(
        "quota-never-throttles",
        "what a client takes beyond its quota is counted, and it does not have to wait",
        Edit(Quotas, "charge", "if wait_s > 0.0 and charged is not None:", "if False:"),
        options=_ACCESS,
    ),
    ClusterMutant(
        "quota-counts-nothing",
        "what a client uses is not taken out of what its quota holds",
        Edit(_Bucket, "take", "self.left - amount", "self.left"),
        options=_ACCESS,
    ),
)
