from collections.abc import Callable

from serving.core.servable import ServableId
from serving.manager.control_thread import Inbox, Message, Progress, Stop
from serving.manager.harness import LoaderHarness
from tests.unit.fakes.clocks import FakeClock

FIRST, SECOND = ServableId("m", 1), ServableId("m", 2)


def step(harness: LoaderHarness) -> LoaderHarness:
    return harness


def another_step(harness: LoaderHarness) -> LoaderHarness:
    return harness


def progress(servable_id: ServableId, *steps: Callable[[LoaderHarness], LoaderHarness]) -> Progress:
    return Progress(servable_id, steps)


def taken(*messages: Message) -> list[Message]:
    """The messages that the control thread takes if it comes after all of these."""
    inbox = Inbox(FakeClock())
    for message in messages:
        inbox.post(message)
    return list(inbox.take())


def test_waiting_progress_is_joined_in_order():
    steps = [progress(FIRST, step), progress(FIRST, another_step), progress(FIRST, step)]
    assert taken(*steps) == [progress(FIRST, step, another_step, step)]


def test_progress_passes_no_other_message():
    messages: list[Message] = [
        progress(FIRST, step),
        progress(SECOND, step),
        progress(FIRST, step),
        Stop(),
    ]
    assert taken(*messages, progress(FIRST, step)) == [*messages, progress(FIRST, step)]


def test_message_that_arrives_meanwhile_is_taken_too():
    inbox = Inbox(FakeClock())
    inbox.post(progress(FIRST, step))
    messages = inbox.take()
    assert next(messages) == progress(FIRST, step)
    inbox.post(progress(FIRST, another_step))
    assert list(messages) == [progress(FIRST, another_step)]
