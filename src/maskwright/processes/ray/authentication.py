"""Ray's token authentication: a client sends its token only in the mode `token`, and a cluster may refuse the others.

A cluster without tokens takes clients with one (seen with 2.60).
"""

from __future__ import annotations

import os

from maskwright.core.errors import InputError

ASK_SECONDS = 10.0
GET_ID, PING = ("/ray.rpc.NodeInfoGcsService/GetClusterId", b""), ("/ray.rpc.RayletDriver/ClusterInfo", b"\x08\x06")
"""What a GCS and a server for clients are asked first by Ray's own client: method and message, in Ray's protocol."""


def choose_mode() -> str:
    """Sets RAY_AUTH_MODE to `token` if there is a token, else to `disabled`, unless it is set; returns it. `ray start`
    chooses alike (2.60), but a client with an address sends a token only if the variable says so."""
    names, file = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"), os.path.expanduser("~/.ray/auth_token")
    has_token = any(os.environ.get(name) for name in names) or os.path.exists(file)
    return os.environ.setdefault("RAY_AUTH_MODE", "token" if has_token else "disabled").lower()


def refusal(where: str) -> InputError:
    fix = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) to the cluster's token"
    return InputError("the cluster refuses the token, or there is none", where=where, fix=fix)


def require_token(address: str) -> None:
    """Raises `InputError` if the cluster at `address` (HOST:PORT of its GCS, or ray://HOST:PORT) refuses this process.
    Ray itself asks again for 25 seconds, prints each refusal, and ends with an error that does not say why (2.60)."""
    import grpc
    from ray._private.grpc_utils import init_grpc_channel

    method, message = PING if address.startswith("ray://") else GET_ID
    try:
        with init_grpc_channel(address.removeprefix("ray://")) as channel:
            channel.unary_unary(method)(message, timeout=ASK_SECONDS)
    except grpc.RpcError as error:  # any other error is for `ray.init` to meet, and to explain
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            raise refusal(f"ray:{address}") from None
