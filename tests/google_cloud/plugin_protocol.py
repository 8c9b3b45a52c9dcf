"""Terraform's plugin protocol 6 on a unix socket, as far as a provider of resources needs it.

The messages are written down here, in a notation of our own, and become classes through protobuf's descriptors: no
compiler, no generated code. Names and numbers are the protocol's
(github.com/hashicorp/terraform/tree/main/docs/plugin-protocol); what is left out of a message is skipped when read.
Terraform speaks plainly, without a certificate for the socket, when TF_DISABLE_PLUGIN_TLS is set.
"""

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

MESSAGES = """
Empty
DynamicValue         msgpack=1:bytes json=2:bytes
Step                 attribute_name=1:string element_key_string=2:string element_key_int=3:int64
AttributePath        steps=1:*Step
Diagnostic           severity=1:int64 summary=2:string detail=3:string attribute=4:AttributePath
RawState             json=1:bytes
Attribute            name=1:string type=2:bytes required=4:bool optional=5:bool computed=6:bool sensitive=7:bool
NestedBlock          type_name=1:string block=2:Block nesting=3:int64 min_items=4:int64 max_items=5:int64
Block                version=1:int64 attributes=2:*Attribute block_types=3:*NestedBlock
Schema               version=1:int64 block=2:Block
NamedSchema          key=1:string value=2:Schema
SchemaAnswer         provider=1:Schema resource_schemas=2:*NamedSchema diagnostics=4:*Diagnostic
Configured           config=2:DynamicValue
ProviderChecked      config=1:DynamicValue
Answer               diagnostics=1:*Diagnostic
ProviderAnswer       diagnostics=2:*Diagnostic
Stopped              error=1:string
ResourceConfig       type_name=1:string config=2:DynamicValue
OldState             type_name=1:string version=2:int64 raw_state=3:RawState
NewState             state=1:DynamicValue diagnostics=2:*Diagnostic
Current              type_name=1:string current_state=2:DynamicValue
Wanted               type_name=1:string prior_state=2:DynamicValue state=3:DynamicValue config=4:DynamicValue
Planned              planned_state=1:DynamicValue requires_replace=2:*AttributePath legacy_type_system=5:bool
Applied              new_state=1:DynamicValue diagnostics=3:*Diagnostic legacy_type_system=4:bool
"""
"""A line for each message: `field=number:type`, with `*` for many. An enumeration is read as the number that it is, and
a map as the list of pairs that it is on the wire."""
METHODS = {
    "GetProviderSchema": ("Empty", "SchemaAnswer"),
    "ValidateProviderConfig": ("ProviderChecked", "ProviderAnswer"),
    "ValidateResourceConfig": ("ResourceConfig", "Answer"),
    "ConfigureProvider": ("Configured", "Answer"),
    "UpgradeResourceState": ("OldState", "NewState"),
    "ReadResource": ("Current", "NewState"),
    "PlanResourceChange": ("Wanted", "Planned"),
    "ApplyResourceChange": ("Wanted", "Applied"),
    "StopProvider": ("Empty", "Stopped"),
}
"""Of the service, with what each is asked and answers."""
NESTING = {"single": 1, "list": 2, "set": 3, "map": 4}
ERROR = 1
"""A diagnostic's severity."""
Message = Any


def _classes() -> dict[str, Any]:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="standin.proto", package="standin", syntax="proto3")
    for line in MESSAGES.strip().splitlines():
        name, *fields = line.split()
        message = file.message_type.add(name=name)
        for field in fields:
            label, _, rest = field.partition("=")
            number, _, kind = rest.partition(":")
            many, kind = kind.startswith("*"), kind.lstrip("*")
            made = message.field.add(name=label, number=int(number))
            made.label = kinds.LABEL_REPEATED if many else kinds.LABEL_OPTIONAL
            if kind in ("string", "bytes", "bool", "int64"):
                made.type = getattr(kinds, f"TYPE_{kind.upper()}")
            else:
                made.type, made.type_name = kinds.TYPE_MESSAGE, f".standin.{kind}"
            if message.name == "Step":
                made.oneof_index = 0
        if message.name == "Step":  # an index of 0 must be written, though it is the default
            message.oneof_decl.add(name="selector")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindFileByName("standin.proto").message_types_by_name
    return {name: message_factory.GetMessageClass(kind) for name, kind in found.items()}


CLASSES = _classes()


def message(name: str, /, **fields: Any) -> Message:
    return CLASSES[name](**fields)


def error(summary: str, detail: str = "") -> Message:
    return message("Diagnostic", severity=ERROR, summary=summary, detail=detail)


def serve(answers: dict[str, Callable[[Message], Message]]) -> None:
    """Answers METHODS until Terraform says that it is done, or is gone."""
    done = threading.Event()

    def handler(asked: str, answer: Callable[[Message], Message]) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(
            lambda request, _: answer(request),
            request_deserializer=CLASSES[asked].FromString,
            response_serializer=lambda response: response.SerializeToString(),
        )

    def shutdown(_: Message) -> Message:
        done.set()
        return message("Empty")

    server = grpc.server(futures.ThreadPoolExecutor(8))
    provider = {name: handler(asked, answers[name]) for name, (asked, _) in METHODS.items()}
    control = {"Shutdown": handler("Empty", shutdown)}
    for service, handlers in (("tfplugin6.Provider", provider), ("plugin.GRPCController", control)):
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    signal.signal(signal.SIGTERM, lambda *_: done.set())
    parent = os.getppid()
    with tempfile.TemporaryDirectory() as folder:
        server.add_insecure_port(f"unix:{folder}/provider")
        server.start()
        # version of go-plugin's handshake | of the protocol | where | how
        print(f"1|6|unix|{folder}/provider|grpc", flush=True)
        while not done.wait(1.0) and os.getppid() == parent:
            pass
        server.stop(0.2)
    sys.stdout.flush()
