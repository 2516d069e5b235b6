"""Logins, access control lists and users."""

from typing import Annotated

from antiphon.kafka.messages.shared import Outcome, ReasonResponse, Response
from antiphon.kafka.schema import I8, I16, I32, I64, Message, V


class SaslHandshakeRequest(Message, kw_only=True):
    """Which mechanism the client will log in with."""

    mechanism: str


class SaslHandshakeResponse(Message, kw_only=True):
    """The mechanisms that are served."""

    error_code: I16
    mechanisms: list[str]


class SaslAuthenticateRequest(Message, kw_only=True):
    """A message of the mechanism."""

    auth_bytes: bytes


class SaslAuthenticateResponse(Message, kw_only=True):
    """The answer to it. `session_lifetime_ms` 0: for as long as the connection stands."""

    error_code: I16
    error_message: str | None
    auth_bytes: bytes
    session_lifetime_ms: Annotated[I64, V(1)] = 0


# -- access control lists ---------------------------------------------------------------------------------------------


class DescribeAclsRequest(Message, kw_only=True):
    """A filter; 1 of a type, pattern, operation or permission: any; None of a text: any."""

    resource_type_filter: I8
    resource_name_filter: str | None
    pattern_type_filter: Annotated[I8, V(1)] = 3
    principal_filter: str | None
    host_filter: str | None
    operation: I8
    permission_type: I8


class AclDescription(Message, kw_only=True):
    """One entry about a resource."""

    principal: str
    host: str
    operation: I8
    permission_type: I8


class DescribeAclsResource(Message, kw_only=True):
    """A resource and the entries about it."""

    resource_type: I8
    resource_name: str
    pattern_type: Annotated[I8, V(1)] = 3
    acls: list[AclDescription]


class DescribeAclsResponse(ReasonResponse, kw_only=True):
    """What matches the filter."""

    resources: list[DescribeAclsResource] = []


class AclCreation(Message, kw_only=True):
    """An entry to add."""

    resource_type: I8
    resource_name: str
    resource_pattern_type: Annotated[I8, V(1)] = 3
    principal: str
    host: str
    operation: I8
    permission_type: I8


class CreateAclsRequest(Message, kw_only=True):
    """Add entries."""

    creations: list[AclCreation]


class CreateAclsResponse(Response, kw_only=True):
    """Outcomes in the order of the request."""

    results: list[Outcome]


class DeleteAclsFilter(DescribeAclsRequest, kw_only=True):
    """The same filter."""


class DeleteAclsRequest(Message, kw_only=True):
    """Remove what matches."""

    filters: list[DeleteAclsFilter]


class DeletedAcl(Outcome, kw_only=True):
    """An entry that was removed."""

    resource_type: I8
    resource_name: str
    pattern_type: Annotated[I8, V(1)] = 3
    principal: str
    host: str
    operation: I8
    permission_type: I8


class DeleteAclsFilterResult(Outcome, kw_only=True):
    """What one filter removed."""

    matching_acls: list[DeletedAcl] = []


class DeleteAclsResponse(Response, kw_only=True):
    """Outcomes in the order of the request."""

    filter_results: list[DeleteAclsFilterResult]


# -- users ------------------------------------------------------------------------------------------------------------


class UserName(Message, kw_only=True):
    """A user that is asked about."""

    name: str


class DescribeUserScramCredentialsRequest(Message, kw_only=True):
    """None or no users: all."""

    users: list[UserName] | None


class CredentialInfo(Message, kw_only=True):
    """Mechanism 1: SCRAM-SHA-256, 2: SCRAM-SHA-512."""

    mechanism: I8
    iterations: I32


class DescribedUser(Message, kw_only=True):
    """A user's credentials, without their keys."""

    user: str
    error_code: I16 = 0
    error_message: str | None = None
    credential_infos: list[CredentialInfo] = []


class DescribeUserScramCredentialsResponse(ReasonResponse, kw_only=True):
    """The users that were asked about."""

    results: list[DescribedUser] = []


class CredentialDeletion(Message, kw_only=True):
    """A credential to remove."""

    name: str
    mechanism: I8


class CredentialUpsertion(Message, kw_only=True):
    """A credential to set, from which the server computes its keys."""

    name: str
    mechanism: I8
    iterations: I32
    salt: bytes
    salted_password: bytes


class AlterUserScramCredentialsRequest(Message, kw_only=True):
    """Remove and set credentials."""

    deletions: list[CredentialDeletion]
    upsertions: list[CredentialUpsertion]


class AlteredUser(Message, kw_only=True):
    """Outcome for one user."""

    user: str
    error_code: I16 = 0
    error_message: str | None = None


class AlterUserScramCredentialsResponse(Response, kw_only=True):
    """An outcome for each user."""

    results: list[AlteredUser]
