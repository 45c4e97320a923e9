"""Messages survive the wire, and what is not a message is refused."""

import pytest

from shoal.train.messages import (
    Checkpoint,
    Checkpointed,
    Commit,
    ControllerMessage,
    Formed,
    Generation,
    Hello,
    MalformedMessage,
    Message,
    Progress,
    StoreAddress,
    WorkerMessage,
)

FROM_WORKER: list[WorkerMessage] = [
    Hello("w1", pid=7, host="10.0.0.1"),
    Formed("w1", generation=3),
    Progress("w1", 1, 20, 640, 1000, "train", 32, 16, 81.5, 3),
    Checkpointed("w1", step=20, path="s3://b/c", bytes=10, seconds=0.5),
]
FROM_CONTROLLER: list[ControllerMessage] = [
    Generation(2, ("a", "b"), ("n1", "n2"), ("b",), None, recover=False),
    Generation(2, ("a", "b"), ("n1", "n2"), ("b",), StoreAddress("h", 1), recover=True),
    Commit(2),
    Checkpoint("notice"),
]


@pytest.mark.parametrize("message", [*FROM_WORKER, *FROM_CONTROLLER], ids=lambda m: m.TYPE)
def test_a_message_reads_back_as_it_was_written(message: Message) -> None:
    line = message.to_json()
    parse = WorkerMessage if isinstance(message, WorkerMessage) else ControllerMessage
    assert "\n" not in line
    assert parse.from_json(line) == message


def test_the_two_directions_have_different_checkpoint_messages() -> None:
    assert ControllerMessage.from_json(Checkpoint("x").to_json()) == Checkpoint("x")
    with pytest.raises(MalformedMessage):
        WorkerMessage.from_json(Checkpoint("x").to_json())


def test_fields_of_a_newer_version_are_ignored() -> None:
    assert ControllerMessage.from_json('{"type":"commit","generation":1,"new":2}') == Commit(1)


@pytest.mark.parametrize(
    "line", ["", "{", "[]", "3", '{"type":"no such"}', '{"type":"commit"}', '{"generation":1}']
)
def test_what_is_not_a_message_is_refused(line: str) -> None:
    with pytest.raises(MalformedMessage):
        ControllerMessage.from_json(line)
