"""Decoders that many threads make at once for a class that msgspec has not examined before."""

import subprocess
import sys

# Threads switch after nearly each step, so that without a lock this crashes in the first rounds.
PROGRAM = """
import sys
import threading

import msgspec

from holdfast.common import json_decoder, message_pack_decoder


def new_class():
    leaf = msgspec.defstruct("Leaf", [(f"leaf_{i}", int, 0) for i in range(30)])
    node = msgspec.defstruct("Node", [(f"node_{i}", tuple[leaf, ...], ()) for i in range(30)])
    return msgspec.defstruct("Tree", [(f"tree_{i}", node | None, None) for i in range(30)])


def decodes(tree, barrier):
    barrier.wait()
    message_pack_decoder(tree).decode(msgspec.msgpack.encode(tree()))
    json_decoder(tree).decode(msgspec.json.encode(tree()))


sys.setswitchinterval(1e-6)
for _ in range(100):
    tree, barrier = new_class(), threading.Barrier(4)
    threads = [threading.Thread(target=decodes, args=(tree, barrier)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_can_make_decoders_of_one_class_at_once() -> None:
    program = [sys.executable, "-X", "faulthandler", "-c", PROGRAM]
    ran = subprocess.run(program, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
