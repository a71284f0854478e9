"""`gpulatch-runtime create | run | restore` and crun's `update`: from the engine's call to the low-level runtime.

The launcher starts this file by path, as `python3 -IS -B main.py RUNTIME_NAME LOW_LEVEL_LINK ARGUMENTS...`; every other
subcommand never gets here. Standard library only. What can be refused is refused with one line and exit code 1 before
the container exists; otherwise this process becomes the low-level runtime and stays the claim's holder, so that a claim
whose container never came to be ends with it and nothing has to be released.
"""

import os
import signal
import sys
from dataclasses import replace
from typing import NoReturn

if __name__ == "__main__":  # started by path in isolated mode: the package lies in the folder above
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

from runtime_wrapper import argv, engine, events, lowlevel, report, sources, spec
from runtime_wrapper.argv import Invocation, Update
from runtime_wrapper.errors import GpulatchError
from runtime_wrapper.events import Story


def main(words: list[str]) -> NoReturn:
    """Prepare the container and become the low-level runtime; exit 1 with one line when the container is refused."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # end as the low-level runtime would, without a traceback
    runtime_name, link, *arguments = words
    invocation = story = None
    try:
        invocation = argv.parse(arguments, link, _working_directory(), os.environ, os.geteuid())
        if invocation:  # one root has one name: dockerd says /var/run, which is a link to /run
            invocation = replace(invocation, root=os.path.realpath(invocation.root))
            story = _story(runtime_name, link, invocation)
            prepare(link, invocation, story)
        elif update := argv.parse_update(arguments, link, _working_directory(), os.environ):
            arguments = _with_the_same_devices(update, arguments)
    except GpulatchError as error:
        _refuse_or_let_pass(error, runtime_name, invocation, story)
    except Exception as error:
        _refuse_or_let_pass(report.unexpected(error), runtime_name, invocation, story)
    if story:
        events.append([story.to_json()])
    try:
        lowlevel.become(link, arguments)
    except GpulatchError as error:
        _refuse(error, invocation, story)


def prepare(link: str, invocation: Invocation, story: Story) -> None:
    """Give the container of this call its GPUs, or leave everything untouched when it asks for none.

    Raises GpulatchError when it must not start.
    """
    with story.phase("spec"):
        found = spec.read(invocation.config)
        if found is None:
            return
        original = spec.original(found)
        story.engine = engine.of(original.data, invocation.root)
        story.name = engine.container_name(story.engine, original.data, invocation.container_id, os.getppid())
        story.notes += sources.unheard(original.data)
        restoring = invocation.subcommand == "restore"
        untouched = original is found
        wishes = sources.wishes(original.data, invocation.container_id, annotations=not restoring or not untouched)
    by_nvidia = lowlevel.is_nvidia_runtime(link) or sources.has_nvidia_hook(original.data)
    if untouched and not wishes and not sources.unlimited(original.data) and not by_nvidia:
        return
    with story.phase("import"):
        from runtime_wrapper import pipeline  # here, because most containers ask for no GPU and need none of it

    pipeline.prepare(pipeline.Start(link, invocation, found, original, story), wishes)


def _with_the_same_devices(update: Update, arguments: list[str]) -> list[str]:
    from runtime_wrapper import crun_update  # here, because it is rare

    return crun_update.with_the_same_devices(update, arguments)


def _story(runtime_name: str, link: str, call: Invocation) -> Story:
    return Story(call.container_id, call.root, call.bundle, runtime_name, os.path.basename(link))


def _refuse_or_let_pass(
    error: GpulatchError, runtime_name: str, invocation: Invocation | None, story: Story | None
) -> None:
    """In observe mode nothing that gpulatch thinks or gets wrong keeps a container from starting."""
    from runtime_wrapper import settings  # here, because most calls neither ask for a GPU nor fail

    try:
        observing = settings.load(runtime_name).mode == settings.OBSERVE
    except GpulatchError:
        observing = False
    if not observing:
        _refuse(error, invocation, story)
    if story:
        story.kind, story.error = events.PASSED, error


def _refuse(error: GpulatchError, invocation: Invocation | None, story: Story | None) -> NoReturn:
    if story:
        story.kind, story.error = events.REFUSED, error
        events.append([story.to_json()])
    if invocation:
        report.refusal(error, invocation.log, invocation.log_format)
    else:
        report.refusal(error, None, "text")
    sys.exit(1)


def _working_directory() -> str:
    """Where relative paths start; a caller whose directory was removed can only give absolute ones."""
    try:
        return os.getcwd()
    except OSError:
        return "/"


if __name__ == "__main__":
    main(sys.argv[1:])
